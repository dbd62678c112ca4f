"""Fingerprint: what is remembered of a connector's options, to see a change of any of them, secrets included."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.config.secrets import redact
from conduit_py.sdk.options import Options

_FORM = "k1"


def fingerprint(options: Options) -> str:
    """A digest over everything in the options, with a key of its own: equal secrets give different ones."""
    salt = secrets.token_bytes(16)
    return f"{_FORM}:{salt.hex()}:{_digest(options, salt)}"


def matches(known: str, options: Options) -> bool:
    """Whether a fingerprint, of this form or an older one, is of these options."""
    form, _, rest = known.partition(":")
    if form != _FORM:
        return hmac.compare_digest(known, _old_digest(options))
    salt, _, digest = rest.partition(":")
    return hmac.compare_digest(digest, _digest(options, bytes.fromhex(salt)))


def outdated(known: str) -> bool:
    """Whether the fingerprint, and what was stored with it, has an older form, which may hold secrets in plain text."""
    return not known.startswith(f"{_FORM}:")


def masked(options: Options) -> dict[str, Any]:
    """The options as JSON can carry them; secrets come out masked, those from references too, live objects as text."""
    return {name: _masked(getattr(options, name)) for name in type(options).model_fields}


def _masked(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _masked(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {redact(str(key)): _masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(each) for each in value]
    plain = msgspec.to_builtins(value, enc_hook=str, builtin_types=())
    return redact(plain) if isinstance(plain, str) else plain


def _digest(options: Options, salt: bytes) -> str:
    return hashlib.blake2b(_revealed(options).encode(errors="surrogatepass"), digest_size=16, key=salt).hexdigest()


def _revealed(value: Any) -> str:
    """Everything in a value as text, secrets in the clear. It must not leave this module."""
    if isinstance(value, SecretStr | SecretBytes):
        return repr(value.get_secret_value())
    if isinstance(value, BaseModel):
        fields = sorted(type(value).model_fields)
        return _joined(type(value).__qualname__, (f"{name}={_revealed(getattr(value, name))}" for name in fields))
    if isinstance(value, dict):
        return _joined("dict", (f"{_revealed(key)}: {_revealed(each)}" for key, each in value.items()))
    if isinstance(value, list | tuple):
        return _joined("list", map(_revealed, value))
    if isinstance(value, set | frozenset):
        return _joined("set", sorted(map(_revealed, value)))
    return _written(value)


def _joined(kind: str, parts: Iterable[str]) -> str:
    return f"{kind}({', '.join(parts)})"


def _written(value: Any) -> str:
    # An object that only lives in this process has no value that could be compared with a later one.
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _old_digest(options: Options) -> str:
    """The fingerprint of the first form: without a key, and blind to secrets within other values."""
    revealed = {name: _old_revealed(getattr(options, name)) for name in type(options).model_fields}
    return hashlib.blake2b(repr(sorted(revealed.items())).encode(), digest_size=16).hexdigest()


def _old_revealed(value: Any) -> str:
    if isinstance(value, SecretStr | SecretBytes):
        return repr(value.get_secret_value())
    if isinstance(value, str | int | float | bool | bytes | list | tuple | dict | None):
        return repr(value)
    return _written(value)
