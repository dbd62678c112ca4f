"""Schemas in the form in which values are checked: JSON Schema, with the types of Python in place of those of JSON.

They come from an Avro schema, from what a source announces, or from values. `change_for` changes one.
"""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from conduit_processors.avro.codec import ParsedSchema
from conduit_processors.registry.client import SchemaUnusable
from conduit_py.sdk import JSON_DEPTH_MAX, CollectionSchema, RecordRefused

Shape = dict[str, Any]


def type_of(value: Any) -> str:
    """Return the type of a value; "unknown" for one that records do not have."""
    if isinstance(value, datetime):
        return "timestamp" if value.utcoffset() is None else "timestamptz"
    return _TYPES.get(type(value), "unknown")


_TYPES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    Decimal: "decimal",
    str: "string",
    bytes: "bytes",
    date: "date",
    time: "time",
    timedelta: "interval",
    UUID: "uuid",
    list: "array",
    tuple: "array",
    dict: "object",
}


def shape_of_value(value: Any, depth: int = 0) -> Shape:
    """Return the schema of a value: its fields are all required, and no others are allowed."""
    if depth > JSON_DEPTH_MAX:
        raise RecordRefused("is nested too deeply")
    kind = type_of(value)
    shape: Shape = {"type": [kind]}
    if kind == "object":
        fields = {str(key): shape_of_value(item, depth + 1) for key, item in value.items()}
        shape |= {"properties": fields, "required": list(fields), "additionalProperties": False}
    elif kind == "array" and value:
        items = shape_of_value(value[0], depth + 1)
        for item in value[1:]:
            merge(items, shape_of_value(item, depth + 1))
        shape["items"] = items
    return shape


def merge(shape: Shape, other: Shape) -> None:
    """Change a schema of values so that it takes those of another one as well."""
    both_objects = "properties" in shape and "properties" in other
    shape["type"] = list(dict.fromkeys(shape["type"] + other["type"]))
    if "properties" in other and not both_objects:
        shape |= {key: other[key] for key in ("properties", "required", "additionalProperties")}
    if both_objects:
        for name, inner in other["properties"].items():
            if name in shape["properties"]:
                merge(shape["properties"][name], inner)
            else:
                shape["properties"][name] = inner
        shape["required"] = [name for name in shape["required"] if name in other["required"]]
    if "items" in shape and "items" in other:
        merge(shape["items"], other["items"])
    elif "items" in other:
        shape["items"] = other["items"]


def shape_of_collection(schema: CollectionSchema) -> Shape:
    """Return the schema that a source announces. Only keys are required: a change may lack what it did not change."""
    fields: dict[str, Any] = {}
    for field in schema.fields:
        kinds = _ANNOUNCED.get(field.type, [field.type])
        fields[field.name] = {"type": [*kinds, "null"] if field.nullable else kinds} if kinds else {}
    required = [field.name for field in schema.fields if field.key]
    return {"type": ["object"], "properties": fields, "required": required, "additionalProperties": False}


_ANNOUNCED: Final[dict[str, list[str]]] = {
    "float": ["number"],
    "decimal": ["decimal", "number"],
    "list": ["array"],
    "record": ["object"],
    "json": [],
    "unknown": [],
}


def shape_of_avro(schema: ParsedSchema) -> Shape:
    """Return the form of an Avro schema. A field with a default may be missing, as avro.encode has it."""
    definitions: dict[str, Any] = {}
    root = _avro(schema.root, schema.names, definitions)
    # A copy: the root may be one of the definitions, and contains them.
    return {**root, "$defs": definitions}


def _avro(schema: Any, names: dict[str, Any], definitions: dict[str, Any]) -> Shape:
    if isinstance(schema, list):
        return _avro_union([_avro(branch, names, definitions) for branch in schema])
    if isinstance(schema, str):
        if schema in _AVRO:
            return {"type": [_AVRO[schema]], **_RANGES.get(schema, {})}
        if schema not in definitions:
            _avro(names[schema], names, definitions)
        return {"$ref": f"#/$defs/{schema}"}
    kind, logical = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):
        return _avro(kind, names, definitions)
    if (kind, logical) in _AVRO_LOGICAL:
        return {"type": [_AVRO_LOGICAL[kind, logical]]}
    if kind == "array":
        return {"type": ["array"], "items": _avro(schema["items"], names, definitions)}
    if kind == "map":
        return {"type": ["object"], "additionalProperties": _avro(schema["values"], names, definitions)}
    if kind == "enum":
        return _define(schema["name"], {"type": ["string"], "enum": list(schema["symbols"])}, definitions)
    if kind == "fixed":
        return _define(schema["name"], {"type": ["bytes"]}, definitions)
    if kind == "record":
        shape: Shape = {"type": ["object"], "additionalProperties": False}
        _define(schema["name"], shape, definitions)
        shape["properties"] = {each["name"]: _avro(each["type"], names, definitions) for each in schema["fields"]}
        shape["required"] = [each["name"] for each in schema["fields"] if "default" not in each]
        return shape
    return _avro(kind, names, definitions)


def _define(name: str, shape: Shape, definitions: dict[str, Any]) -> Shape:
    definitions[name] = shape
    return shape


def _avro_union(branches: list[Shape]) -> Shape:
    """One schema with several types if they do not hinder each other, so that it can change; else alternatives."""
    plain = [branch for branch in branches if list(branch) == ["type"]]
    others = [branch for branch in branches if list(branch) != ["type"]]
    if len(others) == 1 and "$ref" not in others[0]:
        return {**others[0], "type": [*others[0]["type"], *(kind for each in plain for kind in each["type"])]}
    if not others:
        return {"type": [kind for each in plain for kind in each["type"]]}
    return {"anyOf": branches}


_AVRO: Final = {
    "null": "null",
    "boolean": "boolean",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bytes": "bytes",
    "string": "string",
}
_RANGES: Final[dict[str, Shape]] = {
    "int": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "long": {"minimum": -(2**63), "maximum": 2**63 - 1},
}
_AVRO_LOGICAL: Final[dict[tuple[str, Any], str]] = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamptz",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-millis"): "timestamp",
    ("long", "local-timestamp-micros"): "timestamp",
    ("string", "uuid"): "uuid",
    ("fixed", "uuid"): "uuid",
    ("bytes", "decimal"): "decimal",
    ("fixed", "decimal"): "decimal",
}


def change_for(root: Shape, error: Any, *, strict: bool) -> bool:
    """Change a schema so that it takes the value of this error; return False if it cannot be changed for it.

    The types are those of Python with `strict`, else those of JSON.
    """
    *path, keyword = error.absolute_schema_path
    shape = _find(root, path, keyword)
    if shape is None:
        return False
    if keyword == "additionalProperties":
        fields = shape.setdefault("properties", {})
        for name, value in error.instance.items():
            if name not in fields:
                # Records before this one did not have it, and it may be null where it is there.
                inner = shape_of_value(value)
                inner["type"] = list(dict.fromkeys([*inner["type"], "null"]))
                fields[name] = inner if strict else with_json_types(inner)
        return True
    if keyword == "required":
        shape["required"] = [name for name in shape["required"] if name in error.instance]
        return True
    if keyword == "type":
        kinds = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
        kind = type_of(error.instance)
        shape["type"] = [*kinds, kind if strict else _JSON_TYPES.get(kind, kind)]
        return kind != "unknown"
    return False


_JSON_TYPES: Final = {"decimal": "number"} | dict.fromkeys(
    ["bytes", "date", "time", "timestamp", "timestamptz", "interval", "uuid"], "string"
)


def with_json_types(shape: Shape) -> Shape:
    """Change the types of a schema of values to those that JSON has for them; return it."""
    shape["type"] = list(dict.fromkeys(_JSON_TYPES.get(kind, kind) for kind in shape["type"]))
    for inner in [*shape.get("properties", {}).values(), *([shape["items"]] if "items" in shape else [])]:
        with_json_types(inner)
    return shape


def _find(root: Shape, path: list[Any], keyword: str) -> Shape | None:
    """Return the part of a schema that has the keyword. The library leaves references out of its paths."""
    shape: Any = root
    for step in [*path, keyword]:
        shape = _follow(root, shape, step)
        if step is keyword or shape is None:
            break
        try:
            shape = shape[step]
        except (KeyError, IndexError, TypeError):
            return None
    return shape if isinstance(shape, dict) and keyword in shape else None


def _follow(root: Shape, shape: Any, step: Any) -> Any:
    for _ in range(JSON_DEPTH_MAX):
        if not isinstance(shape, dict) or step in shape or "$ref" not in shape:
            return shape
        target = shape["$ref"]
        if not isinstance(target, str) or not target.startswith("#/"):
            return None
        shape = root
        for part in target[2:].split("/"):
            shape = shape.get(part) if isinstance(shape, dict) else None
    return None


def require_object(schema: Any) -> Shape:
    """Return the schema if it is an object: true and false are schemas too, and cannot be changed."""
    if not isinstance(schema, dict):
        raise SchemaUnusable("it is no object")
    return schema
