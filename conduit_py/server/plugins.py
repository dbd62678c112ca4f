"""Plugins over HTTP: what is installed, and which options it takes."""

import msgspec
import trio
from fastapi import APIRouter

from conduit_py.sdk import registry
from conduit_py.server.errors import error_responses
from conduit_py.server.views import PluginDetailsView, PluginView

router = APIRouter(prefix="/api/v1/plugins", tags=["plugins"])


@router.get("", responses=error_responses())
async def list_plugins() -> list[PluginView]:
    """Every connector and processor that is installed."""
    # In a thread: the first call imports every plugin, which takes seconds.
    entries = await trio.to_thread.run_sync(registry.list_plugins)
    return [PluginView(**msgspec.structs.asdict(entry)) for entry in entries]


@router.get("/{kind}/{name}", responses=error_responses(404, 503))
async def show_plugin(kind: registry.Kind, name: str) -> PluginDetailsView:
    """A plugin with the JSON schema of its options."""
    # In a thread: loading a plugin imports its client library, and pipelines share this event loop.
    return await trio.to_thread.run_sync(_details, kind, name)


def _details(kind: registry.Kind, name: str) -> PluginDetailsView:
    plugin = registry.load_plugin(kind, name)
    summary, options = registry.summary(plugin), registry.options_schema(plugin)
    return PluginDetailsView(kind=kind, name=name, summary=summary, available=True, options=options)
