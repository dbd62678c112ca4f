"""Telling connectors that they were created, changed or taken out since the last run."""

import logging
from collections.abc import Mapping
from typing import Any

from conduit_py.errors import EnvironmentUnfit
from conduit_py.sdk import registry
from conduit_py.sdk.plugin import Connector
from conduit_py.store.store import ConnectorEntry, Store
from conduit_py.stream.border import border
from conduit_py.stream.calls import Calls
from conduit_py.stream.fingerprint import fingerprint, masked, matches, outdated

log = logging.getLogger("conduit_py")


async def tell_changed(store: Store, pipeline: str, node: str, kind: registry.Kind, calls: Calls) -> None:
    """Call `on_created` or `on_updated` if that is what happened, then remember the options.

    Another plugin under the same id is another connector: the old one is deleted with its position,
    which would mean something else, or nothing, to the new one.
    """
    connector = calls.plugin
    assert isinstance(connector, Connector)
    known = (await store.connectors(pipeline)).get(node)
    entry = _entry(connector, kind)
    unchanged = known is not None and matches(known.digest, connector.options)
    if known is not None and (known.kind, known.plugin) != (entry.kind, entry.plugin):
        await store.forget_positions(pipeline, node)
        await store.forget_trail(pipeline, node)
        await _delete(store, pipeline, node, known)
        known = None
    if known is None:
        with border(node, "on_created"):
            await calls("on_created")
    elif unchanged and not outdated(known.digest):
        return
    elif not unchanged:
        with border(node, "on_updated"):
            await calls("on_updated", known.options)
    await store.save_connector(pipeline, node, entry)


async def tell_deleted(store: Store, pipeline: str, present: Mapping[str, Any]) -> None:
    """Call `on_deleted` of connectors that are no longer in the pipeline, then forget them."""
    for node, entry in (await store.connectors(pipeline)).items():
        if node not in present:
            await _delete(store, pipeline, node, entry)


async def _delete(store: Store, pipeline: str, node: str, entry: ConnectorEntry) -> None:
    connector = _revived(node, entry)
    if connector is not None:
        calls = Calls(node, connector)
        try:
            with border(node, "on_deleted"):
                await calls("on_deleted")
        finally:
            calls.close()
    await store.forget_connector(pipeline, node)


def _revived(node: str, entry: ConnectorEntry) -> Connector[Any] | None:
    """The connector that used to be there; only registered plugins can be made from their stored name."""
    kind: registry.Kind = "source" if entry.kind == "source" else "destination"
    try:
        connector = registry.find(kind, entry.plugin)(**entry.options)
    except (registry.UnknownPlugin, EnvironmentUnfit):
        log.info("%s is gone from the pipeline and its plugin is not installed: on_deleted was not called", node)
        return None
    return connector if isinstance(connector, Connector) and not connector.problems else None


def _entry(connector: Connector[Any], kind: registry.Kind) -> ConnectorEntry:
    plugin = registry.name_of(kind, type(connector.declared))
    return ConnectorEntry(kind, plugin, masked(connector.options), fingerprint(connector.options))
