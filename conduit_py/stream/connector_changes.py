"""Connector changes: calls connectors that were created, changed or removed since the last run."""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.errors import EnvironmentUnfit
from conduit_py.redaction import redact
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Connector, Options
from conduit_py.store.store import ConnectorEntry, Store
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors

log = logging.getLogger("conduit_py")


async def notify_of_change(store: Store, pipeline: str, node: str, kind: registry.Kind, calls: PluginCaller) -> None:
    """Call `on_created` or `on_updated` if the connector is new or changed, then save its options.

    Another plugin under the same id is another connector. The old connector is deleted together with
    its position, because a position has no meaning for another plugin.
    """
    connector = calls.plugin
    assert isinstance(connector, Connector)
    stored = (await store.connectors(pipeline)).get(node)
    entry = _entry(connector, kind)
    unchanged = stored is not None and matches(stored.digest, connector.options)
    if stored is not None and (stored.kind, stored.plugin) != (entry.kind, entry.plugin):
        # The entry goes last: after a crash in between, the next run still sees another plugin and repeats this.
        await store.forget_positions(pipeline, node)
        await store.forget_position_history(pipeline, node)
        await _delete(store, pipeline, node, stored)
        stored = None
    if stored is None:
        with PluginErrors(node, "on_created"):
            await calls("on_created")
    # An entry of the old form is written again even if unchanged: it may hold secrets in plain text.
    elif unchanged and not is_old_form(stored.digest):
        return
    elif not unchanged:
        with PluginErrors(node, "on_updated"):
            await calls("on_updated", stored.options)
    # After the call: a crash in between repeats the call, and never skips it.
    await store.save_connector(pipeline, node, entry)


async def notify_of_removal(store: Store, pipeline: str, present: Mapping[str, Any]) -> None:
    """Call `on_deleted` of connectors that are no longer in the pipeline, then forget them."""
    for node, entry in (await store.connectors(pipeline)).items():
        if node not in present:
            await _delete(store, pipeline, node, entry)


async def _delete(store: Store, pipeline: str, node: str, entry: ConnectorEntry) -> None:
    connector = _revive(node, entry)
    if connector is not None:
        calls = PluginCaller(node, connector)
        try:
            with PluginErrors(node, "on_deleted"):
                await calls("on_deleted")
        finally:
            calls.close()
    await store.forget_connector(pipeline, node)


def _revive(node: str, entry: ConnectorEntry) -> Connector[Any] | None:
    """Make the removed connector from its stored options; possible only for registered plugins."""
    kind: registry.Kind = "source" if entry.kind == "source" else "destination"
    try:
        connector = registry.find(kind, entry.plugin)(**entry.options)
    except (registry.UnknownPlugin, EnvironmentUnfit):
        log.info("%s was removed from the pipeline, but on_deleted was not called: its plugin is not installed", node)
        return None
    return connector if isinstance(connector, Connector) and not connector.problems else None


def _entry(connector: Connector[Any], kind: registry.Kind) -> ConnectorEntry:
    plugin = registry.name_of(kind, type(connector.declared))
    return ConnectorEntry(kind, plugin, mask_secrets(connector.options), fingerprint(connector.options))


_FORM = "k1"


def fingerprint(options: Options) -> str:
    """Return a digest of all options under a random key, so that equal secrets have different digests."""
    salt = secrets.token_bytes(16)
    return f"{_FORM}:{salt.hex()}:{_digest(options, salt)}"


def matches(stored: str, options: Options) -> bool:
    """Return True if a fingerprint, of this form or an older one, belongs to these options."""
    form, _, rest = stored.partition(":")
    if form != _FORM:
        return hmac.compare_digest(stored, _old_digest(options))
    salt, _, digest = rest.partition(":")
    return hmac.compare_digest(digest, _digest(options, bytes.fromhex(salt)))


def is_old_form(stored: str) -> bool:
    """Return True for a fingerprint of an older form; the options stored with it may hold secrets in plain text."""
    return not stored.startswith(f"{_FORM}:")


def mask_secrets(options: Options) -> dict[str, Any]:
    """Return the options as JSON values: secrets masked, also those from references, and live objects as text."""
    return {name: _mask(getattr(options, name)) for name in type(options).model_fields}


def _mask(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _mask(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {redact(str(key)): _mask(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_mask(each) for each in value]
    plain = msgspec.to_builtins(value, enc_hook=str, builtin_types=())
    return redact(plain) if isinstance(plain, str) else plain


def _digest(options: Options, salt: bytes) -> str:
    return hashlib.blake2b(_reveal(options).encode(errors="surrogatepass"), digest_size=16, key=salt).hexdigest()


def _reveal(value: Any) -> str:
    """Return everything in a value as text, secrets in plain text. The text must not leave this module."""
    if isinstance(value, SecretStr | SecretBytes):
        return repr(value.get_secret_value())
    if isinstance(value, BaseModel):
        fields = sorted(type(value).model_fields)
        return _join(type(value).__qualname__, (f"{name}={_reveal(getattr(value, name))}" for name in fields))
    if isinstance(value, dict):
        return _join("dict", (f"{_reveal(key)}: {_reveal(each)}" for key, each in value.items()))
    if isinstance(value, list | tuple):
        return _join("list", map(_reveal, value))
    if isinstance(value, set | frozenset):
        # Sorted: the order of a set differs in every process.
        return _join("set", sorted(map(_reveal, value)))
    return _value_text(value)


def _join(kind: str, parts: Iterable[str]) -> str:
    return f"{kind}({', '.join(parts)})"


def _value_text(value: Any) -> str:
    # The repr has an address, which differs in every process and would make the options look changed.
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _old_digest(options: Options) -> str:
    """Return the fingerprint of the first form: without a key, and without secrets inside other values."""
    revealed = {name: _old_reveal(getattr(options, name)) for name in type(options).model_fields}
    return hashlib.blake2b(repr(sorted(revealed.items())).encode(), digest_size=16).hexdigest()


def _old_reveal(value: Any) -> str:
    if isinstance(value, SecretStr | SecretBytes):
        return repr(value.get_secret_value())
    if isinstance(value, str | int | float | bool | bytes | list | tuple | dict | None):
        return repr(value)
    return _value_text(value)
