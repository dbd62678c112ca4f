"""The plugins installed on this machine, found by name through entry points, and a catalogue of them."""

import functools
import inspect
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from conduit_py.errors import ConduitError, EnvironmentUnfit
from conduit_py.sdk.plugin import Plugin, did_you_mean

Kind: TypeAlias = Literal["source", "destination", "processor"]


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """Return the plugins of one kind by name, without importing them."""
    return all_installed()[kind]


# Cached: entry points are read from the files of every installed distribution.
@functools.cache
def all_installed() -> dict[Kind, dict[str, EntryPoint]]:
    """Return the plugins of each kind by name, without importing them."""
    found = entry_points()
    return {kind: {entry.name: entry for entry in found.select(group=f"conduit_py.{kind}s")} for kind in get_args(Kind)}


def find(kind: Kind, name: str) -> type[Plugin[Any]]:
    """Import and return a plugin class. Conduit's `builtin:` prefix and `@version` suffix are accepted."""
    # The version is dropped: only one version of a Python package can be installed.
    bare = name.removeprefix("builtin:").partition("@")[0]
    entry = installed(kind).get(bare)
    if entry is None:
        raise UnknownPlugin(kind, bare)
    try:
        plugin = entry.load()
    except ImportError as error:
        raise EnvironmentUnfit(
            f"the {kind} plugin {bare!r} cannot be loaded: {error}",
            suggestion=what_to_install(error) or "install what it needs",
        ) from error
    except Exception as error:
        # A boundary: code of an installed package. One that is broken must not hide the others.
        raise _broken(kind, entry, f"{type(error).__name__}: {error}") from error
    if not isinstance(plugin, type):
        raise _broken(kind, entry, f"{entry.value} is no class")
    return plugin


def _broken(kind: Kind, entry: EntryPoint, reason: str) -> EnvironmentUnfit:
    package = entry.dist.name if entry.dist is not None else "its package"
    return EnvironmentUnfit(
        f"the {kind} plugin {entry.name!r} cannot be loaded: {reason}",
        suggestion=f"correct its entry point {entry.value!r}, or uninstall {package}",
    )


def what_to_install(error: ImportError) -> str | None:
    """Return the command that installs what an import of ours has missed; None if it is no optional package of ours."""
    found = EXTRAS.get((error.name or "").partition(".")[0])
    trace = error.__traceback__
    while trace is not None:
        # The connector decides where it can: pyarrow alone is not all that some of them need.
        package, _, module = trace.tb_frame.f_globals.get("__name__", "").partition(".")
        extra = module.partition(".")[0]
        if package == "conduit_connectors" and (extra in EXTRAS.values() or extra in _OWN_EXTRAS):
            found = extra
        trace = trace.tb_next
    return found and f"pip install 'conduit-dataflow[{found}]'"


EXTRAS = {
    "boto3": "sqs",
    "confluent_kafka": "kafka",
    "deltalake": "delta",
    "dlt": "dlt",
    "duckdb": "duckdb",
    "jsonpath_rfc9535": "jsonpath",
    "nats": "nats",
    "paho": "mqtt",
    "pandas": "spark-connect",
    "pika": "rabbitmq",
    "psycopg": "postgres",
    "pyarrow": "arrow",
    "pyiceberg": "iceberg",
    "pymysql": "mysql",
    "pyspark": "spark",
    "redis": "redis",
    "sqlalchemy": "sqlalchemy",
    "websockets": "websocket",
}
"""The extra of our distribution that has each optional package."""
_OWN_EXTRAS = {"parquet"}
"""Connectors with an extra of their own, of packages that others need too."""


def name_of(kind: Kind, plugin: type[Plugin[Any]]) -> str:
    """Return the name under which a plugin class is registered, or "" if it is not registered."""
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    for name, entry in installed(kind).items():
        module, _, attribute = entry.value.partition(":")
        # A package may re-export a class from the module it is written in.
        if entry.value == target or (plugin.__module__.startswith(f"{module}.") and attribute == plugin.__qualname__):
            return name
    return ""


class UnknownPlugin(LookupError):
    """No installed package offers a plugin of this kind and name."""

    def __init__(self, kind: Kind, name: str) -> None:
        known = sorted(installed(kind))
        self.message = f"there is no {kind} plugin {name!r}"
        self.suggestion = did_you_mean(name, known) or f"installed are {', '.join(known)}"
        super().__init__(f"{self.message} ({self.suggestion})")


class PluginUnknown(ConduitError):
    """No installed package offers such a plugin."""

    code = "plugin.unknown"


class PluginEntry(msgspec.Struct, frozen=True):
    """A plugin in a list. One that cannot be imported is not available, and its summary has the reason."""

    kind: Kind
    name: str
    summary: str
    available: bool
    needs: str = ""
    """What to install before it can be used; "" if nothing is missing."""


def list_plugins() -> list[PluginEntry]:
    """Return every plugin of this machine. Imports all of them."""
    return [_entry(kind, name) for kind in get_args(Kind) for name in sorted(installed(kind))]


def load_plugin(kind: Kind, name: str) -> type[Any]:
    """Import a plugin by its exact name. Raises PluginUnknown, or EnvironmentUnfit if a package it needs is missing."""
    if name not in installed(kind):
        unknown = UnknownPlugin(kind, name)
        raise PluginUnknown(unknown.message, suggestion=unknown.suggestion)
    return find(kind, name)


def options_schema(plugin: type[Any]) -> dict[str, Any]:
    """The JSON schema of a plugin's options."""
    schema: dict[str, Any] = plugin.options_model.model_json_schema(schema_generator=_Lenient)
    return schema


def summary(plugin: type[Any]) -> str:
    """The first paragraph of a plugin's docstring, in one line."""
    return (inspect.getdoc(plugin) or "").partition("\n\n")[0].replace("\n", " ")


def _entry(kind: Kind, name: str) -> PluginEntry:
    try:
        plugin = find(kind, name)
    except EnvironmentUnfit as unfit:
        return PluginEntry(kind, name, unfit.message, available=False, needs=unfit.suggestion or "")
    missing = [extra for module, extra in plugin.requires.items() if find_spec(module) is None]
    needs = f"pip install {' '.join(map(repr, missing))}" if missing else ""
    return PluginEntry(kind, name, summary(plugin), available=not missing, needs=needs)


class _Lenient(GenerateJsonSchema):
    """Describes an option that only Python can set, such as a function, as one that accepts anything."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


def connector_label(connector: object) -> str:
    """Return the short name of a connector: its module if it is one of ours, else its class."""
    package, _, module = type(connector).__module__.partition(".")
    return module.partition(".")[0] if package == "conduit_connectors" else type(connector).__name__
