"""yaml_schema: the JSON Schema of pipeline files in YAML, by which editors complete keys and explain them.

It allows everything that `load_yaml` allows. In settings it names the options of each plugin, and refuses none: a
value may be a reference such as `${X}`, and Conduit has other names for some options. `check` finds the rest.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

from pydantic import BaseModel

from conduit_py.config.yaml_file import (
    DESCRIPTION_LENGTH_MAX,
    DOCUMENT_KEYS,
    NAME_LENGTH_MAX,
    PIPELINE_KEYS,
    SPARK_KEYS,
    TRANSACTION_KEYS,
    VERSIONS,
)
from conduit_py.config.yaml_nodes import CONNECTOR_KEYS, PROCESSOR_KEYS, QUEUE_KEYS, RATE_KEYS
from conduit_py.errors import EnvironmentUnfit
from conduit_py.pipeline_settings import (
    Delivery,
    DestinationSettings,
    EngineName,
    ProcessorSettings,
    RateLimit,
    SourceSettings,
    Spark,
    TransactionLimits,
)
from conduit_py.sdk import registry
from conduit_py.sdk.processor import Where

Schema = dict[str, Any]

_TEXTS: Final = {
    "version": "the version of the format",
    "pipelines": "the pipelines of this file",
    "id": "the name by which it is known, in positions and metrics too: letters, digits, - _ : and .",
    "status": "whether a server starts it",
    "name": "a name for people",
    "description": "what it is for",
    "connectors": "its sources and destinations",
    "processors": "what every record passes, in this order",
    "dead-letter-queue": "where records go that were refused; without it the first one stops the pipeline",
    "delivery": "what it promises",
    "transaction": "when a transaction of an exactly-once pipeline closes",
    "engine": "where it runs",
    "spark": "the Spark it runs on",
    "type": "a source or a destination",
    "plugin": "the name of the plugin; `conduit-py plugins list` has them all",
    "settings": "the options of the plugin",
    "rate": "how much it reads or writes in a second",
    "condition": "a template or a CEL expression: records for which it is false pass by",
    "workers": "how many records are processed at once, order kept",
    "where": "its workers are threads, or each is a process of its own, for what computes in Python",
    "state-cache-bytes": "about how much of its state is in memory; the rest is read from the store",
    "window-size": "of how many records so many may be refused; 0 for no limit",
    "window-nack-threshold": "how many of them may be refused before the pipeline stops",
    "conf": "settings of Spark",
}


def yaml_schema() -> Schema:
    """The schema, with the plugins that are installed here. Imports all of them."""
    kinds = {kind: _plugins_of(kind) for kind in get_args(registry.Kind)}
    ends = {**kinds["source"], **kinds["destination"]}
    connector = _object(
        CONNECTOR_KEYS,
        ["id", "type", "plugin"],
        SourceSettings,
        DestinationSettings,
        type={"enum": ["source", "destination"]},
        plugin=_names(ends),
        settings={"type": "object"},
        processors={"type": "array", "items": {"$ref": "#/$defs/processor"}},
        rate={"$ref": "#/$defs/rate"},
    )
    connector["allOf"] = [rule for kind in ("source", "destination") for rule in _rules(kind, kinds[kind])]
    processor = _object(
        PROCESSOR_KEYS,
        ["id"],
        ProcessorSettings,
        plugin=_names(kinds["processor"]),
        settings={"type": "object"},
        where={"enum": list(get_args(Where))},
    )
    processor["allOf"] = _rules("processor", kinds["processor"])
    queue = _object(QUEUE_KEYS, [], plugin=_names([*kinds["destination"], "journal"]), settings={"type": "object"})
    known: dict[str, Schema] = {
        "status": {"enum": ["running", "stopped"]},
        "name": {"maxLength": NAME_LENGTH_MAX},
        "description": {"maxLength": DESCRIPTION_LENGTH_MAX},
        "connectors": {"type": "array", "items": {"$ref": "#/$defs/connector"}, "minItems": 2},
        "processors": {"type": "array", "items": {"$ref": "#/$defs/processor"}},
        "dead-letter-queue": queue,
        "delivery": {"enum": list(get_args(Delivery))},
        "transaction": _object(TRANSACTION_KEYS, [], TransactionLimits),
        "engine": {"enum": list(get_args(EngineName))},
        "spark": _object(SPARK_KEYS, [], Spark, conf={"type": "object"}),
    }
    pipeline = _object(PIPELINE_KEYS, ["id", "connectors"], **known)
    pipelines = {"type": "array", "items": {"$ref": "#/$defs/pipeline"}}
    # A version such as 2.2 is a number in YAML.
    version = {"enum": [*VERSIONS, *map(float, VERSIONS)]}
    document = _object(DOCUMENT_KEYS, ["pipelines"], version=version, pipelines=pipelines)
    settings = {f"{kind}.{name}": each for kind, plugins in kinds.items() for name, each in plugins.items()}
    rate = _object(RATE_KEYS, [], RateLimit)
    nodes = {"pipeline": pipeline, "connector": connector, "processor": processor, "rate": rate}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Pipelines of conduit-py"}
    return {**head, **document, "$defs": {**nodes, **settings}}


def _object(keys: list[str], required: list[str], *models: type[BaseModel], **known: Schema) -> Schema:
    """A mapping of these keys and no others. A key is described by a model that has a field of its name."""
    properties: Schema = {}
    for key in keys:
        fields = [model.model_fields[name] for model in models if (name := key.replace("-", "_")) in model.model_fields]
        about = next((field.description for field in fields if field.description), None) or _TEXTS.get(key)
        properties[key] = {**({"description": about} if about else {}), **known.get(key, {})}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _plugins_of(kind: registry.Kind) -> dict[str, Schema]:
    """The schema of the settings of each plugin; one whose packages are missing takes any."""
    return {name: _settings(kind, name) for name in sorted(registry.installed(kind))}


def _settings(kind: registry.Kind, name: str) -> Schema:
    try:
        plugin = registry.find(kind, name)
    except EnvironmentUnfit as unfit:
        return {"description": unfit.message}
    described = registry.options_schema(plugin).get("properties", {})
    kept = ("description", "default")
    properties = {option: {key: about[key] for key in kept if key in about} for option, about in described.items()}
    return {"description": registry.summary(plugin), "type": "object", "properties": properties}


def _names(plugins: Iterable[str]) -> Schema:
    # Examples, and no list of all that is allowed: Conduit writes builtin:file@latest, too.
    return {"type": "string", "examples": sorted(plugins)}


def _rules(kind: str, plugins: Iterable[str]) -> list[Schema]:
    """For each plugin of a kind: what its settings are."""
    of_kind = {} if kind == "processor" else {"type": {"const": kind}}
    return [
        {
            "if": {"properties": {**of_kind, "plugin": {"enum": [name, f"builtin:{name}"]}}, "required": ["plugin"]},
            "then": {"properties": {"settings": {"$ref": f"#/$defs/{kind}.{name}"}}},
        }
        for name in plugins
    ]
