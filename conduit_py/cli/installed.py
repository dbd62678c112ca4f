"""The commands `plugins` and `version`: what is installed here."""

import inspect
import json
import platform
import sqlite3
from importlib.metadata import version
from typing import Any

import msgspec

from conduit_py import __version__
from conduit_py.cli.errors import print_error_as_json
from conduit_py.cli.output import ExitCode, put, put_json, put_lines, put_table
from conduit_py.sdk import registry


def show_all(*, as_json: bool) -> ExitCode:
    """Print a line for each plugin."""
    plugins = registry.list_plugins()
    if as_json:
        put_json({"plugins": msgspec.to_builtins(plugins)})
    else:
        rows = [(each.kind, each.name, each.needs or "installed", each.summary) for each in plugins]
        put_table(("KIND", "NAME", "NEEDS", "WHAT IT DOES"), rows)
    return ExitCode.OK


def show(kind: registry.Kind, name: str, *, as_json: bool) -> ExitCode:
    """Print what a plugin promises, and each of its options."""
    with print_error_as_json(as_json=as_json):
        # Loaded, not only listed: its options are known to its class alone.
        plugin = registry.load_plugin(kind, name)
    if as_json:
        summary, schema = registry.summary(plugin), registry.options_schema(plugin)
        put_json({"kind": kind, "name": name, "summary": summary, "available": True, "options": schema})
        return ExitCode.OK
    put(f"{kind} {name}")
    put("")
    put_lines(inspect.getdoc(plugin) or "It says nothing about itself.")
    put("")
    options = option_rows(plugin)
    if options:
        put_table(("OPTION", "TYPE", "DEFAULT", "MEANING"), options)
    else:
        put("It takes no options.")
    return ExitCode.OK


def show_schema() -> ExitCode:
    """Print the schema by which editors complete and check pipeline files in YAML."""
    from conduit_py.config.yaml_schema import yaml_schema

    put_json(yaml_schema())
    return ExitCode.OK


def option_rows(plugin: type[Any]) -> list[tuple[str, ...]]:
    """Name, type, default and meaning of each option of a plugin."""
    schema = registry.options_schema(plugin)
    return [_row(option, schema) for option in schema.get("properties", {})]


def _row(name: str, schema: dict[str, Any]) -> tuple[str, ...]:
    option = schema["properties"][name]
    required = name in schema.get("required", ())
    default = "required" if required else json.dumps(option.get("default"), ensure_ascii=False)
    return name, _type(option, schema.get("$defs", {})), default, option.get("description", "")


def _type(option: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The type of an option in few words."""
    if "$ref" in option:
        target = option["$ref"].rpartition("/")[2]
        return _type(definitions.get(target, {}), {})
    if "enum" in option or "const" in option:
        return "|".join(str(value) for value in option.get("enum", [option.get("const")]))
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in option:
            types = dict.fromkeys(_type(each, definitions) for each in option[choice])
            return "|".join(each for each in types if each != "null")
    if option.get("type") == "array":
        return f"list of {_type(option.get('items', {}), definitions)}"
    return str(option.get("type", "any"))


def show_version(*, as_json: bool) -> ExitCode:
    """Print the versions that a bug report needs."""
    facts = {
        "conduit-py": __version__,
        "python": platform.python_version(),
        "trio": version("trio"),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
    }
    if as_json:
        put_json(facts)
    else:
        put(f"conduit-py {__version__}")
        put(", ".join(f"{name} {value}" for name, value in facts.items() if name != "conduit-py"))
    return ExitCode.OK
