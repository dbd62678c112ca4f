"""Catalog: the installed plugins as plain values: what they are for, and the options that they take."""

import inspect
from typing import Any, get_args

import msgspec
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from conduit_py.errors import ConduitError, EnvironmentUnfit
from conduit_py.sdk import registry


class PluginUnknown(ConduitError):
    """No installed package offers such a plugin."""

    code = "plugin.unknown"


class PluginEntry(msgspec.Struct, frozen=True):
    """A plugin at a glance. One that cannot be imported is not available, and its summary says why."""

    kind: registry.Kind
    name: str
    summary: str
    available: bool


def list_plugins() -> list[PluginEntry]:
    """Every plugin of this machine. Imports them all."""
    return [_entry(kind, name) for kind in get_args(registry.Kind) for name in sorted(registry.installed(kind))]


def load_plugin(kind: registry.Kind, name: str) -> type[Any]:
    """Import a plugin by its very name. Raises PluginUnknown, or EnvironmentUnfit for what it needs and is missing."""
    if name not in registry.installed(kind):
        unknown = registry.UnknownPlugin(kind, name)
        raise PluginUnknown(unknown.message, suggestion=unknown.suggestion)
    return registry.find(kind, name)


def options_schema(plugin: type[Any]) -> dict[str, Any]:
    """The JSON schema of a plugin's options."""
    schema: dict[str, Any] = plugin.options_model.model_json_schema(schema_generator=_Lenient)
    return schema


def summary(plugin: type[Any]) -> str:
    """The first paragraph of a plugin's docstring, in one line."""
    return (inspect.getdoc(plugin) or "").partition("\n\n")[0].replace("\n", " ")


def _entry(kind: registry.Kind, name: str) -> PluginEntry:
    try:
        return PluginEntry(kind, name, summary(registry.find(kind, name)), available=True)
    except EnvironmentUnfit as unfit:
        return PluginEntry(kind, name, unfit.message, available=False)


class _Lenient(GenerateJsonSchema):
    """Shows an option that only Python can give, such as a function, as one that may be anything."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}
