"""Plugins over HTTP: what is installed, and which options it takes."""

import inspect
from typing import Any, get_args

import trio
from fastapi import APIRouter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from conduit_py.errors import EnvironmentUnfit
from conduit_py.sdk import registry
from conduit_py.server.problems import documented
from conduit_py.server.views import PluginDetailsView, PluginView

router = APIRouter(prefix="/api/v1/plugins", tags=["plugins"])


@router.get("", responses=documented())
async def list_plugins() -> list[PluginView]:
    """Every connector and processor that is installed."""
    return await trio.to_thread.run_sync(_list)  # the first time it imports them, which takes a while


@router.get("/{kind}/{name}", responses=documented(404, 503))
async def show_plugin(kind: registry.Kind, name: str) -> PluginDetailsView:
    """A plugin with the JSON schema of its options."""
    return await trio.to_thread.run_sync(_details, kind, name)


def _list() -> list[PluginView]:
    return [_view(kind, name) for kind in get_args(registry.Kind) for name in sorted(registry.installed(kind))]


def _view(kind: registry.Kind, name: str) -> PluginView:
    try:
        return PluginView(kind=kind, name=name, summary=_summary(registry.find(kind, name)), available=True)
    except EnvironmentUnfit as unfit:
        return PluginView(kind=kind, name=name, summary=unfit.message, available=False)


def _details(kind: registry.Kind, name: str) -> PluginDetailsView:
    if name not in registry.installed(kind):
        raise registry.UnknownPlugin(kind, name)
    plugin = registry.find(kind, name)
    options = plugin.options_model.model_json_schema(schema_generator=_Lenient)
    return PluginDetailsView(kind=kind, name=name, summary=_summary(plugin), available=True, options=options)


def _summary(plugin: type[Any]) -> str:
    return (inspect.getdoc(plugin) or "").partition("\n\n")[0].replace("\n", " ")


class _Lenient(GenerateJsonSchema):
    """Shows an option that only Python can give, such as a function, as one that may be anything."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}
