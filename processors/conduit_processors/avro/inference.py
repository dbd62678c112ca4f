"""infer_schema: an Avro schema that a value fits, for records whose schema nobody has written down."""

import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from conduit_py.sdk import JSON_DEPTH_MAX, RecordRefused
from conduit_py.sdk.template import kind_of

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRECISION: Final = 38
_encode = msgspec.json.Encoder().encode


def infer_schema(value: Any, name: str) -> str:
    """Return the schema of a record, its fields in the order of their names, so that equal records have equal schemas.

    Integers are longs and floats doubles, whatever their size. A field that is null may be null or text. Raises
    RecordRefused, with the field, for what Avro has no type for.
    """
    if not isinstance(value, dict):
        raise RecordRefused(f"is {kind_of(value)} and not a record")
    return _encode(infer_type(value, name)).decode()


def infer_type(value: Any, path: str) -> Any:
    """Return the Avro type of a value; `path` names it, and the types inside it."""
    # By exact type: True is an int to Python, and a datetime a date.
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple
    if path.count(".") > JSON_DEPTH_MAX:
        raise RecordRefused("is nested too deeply")
    if isinstance(value, dict):
        return {
            "type": "record",
            "name": path,
            "fields": [_field(key, value[key], path) for key in _sorted(value, path)],
        }
    if isinstance(value, list | tuple):
        return {"type": "array", "items": _items(value, path)}
    if isinstance(value, datetime):
        logical = "timestamp-micros" if value.utcoffset() is not None else "local-timestamp-micros"
        return {"type": "long", "logicalType": logical}
    if isinstance(value, Decimal) and value.is_finite():
        # The exponent of a finite number is an integer.
        scale = max(-int(value.as_tuple().exponent), 0)
        if scale <= _PRECISION:
            return {"type": "bytes", "logicalType": "decimal", "precision": _PRECISION, "scale": scale}
    raise RecordRefused(f"the field {_shown(path)} is {kind_of(value)}, for which Avro has no type")


_SIMPLE: Final[dict[type, Any]] = {
    type(None): ["null", "string"],
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}


def _sorted(value: dict[str, Any], path: str) -> list[str]:
    for key in value:
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise RecordRefused(
                f"the field {_shown(path)} has the name {str(key)[:100]!r}, which Avro does not allow",
                suggestion="rename it with field.rename, or give a schema with a map",
            )
    return sorted(value)


def _field(key: str, value: Any, path: str) -> dict[str, Any]:
    return {"name": key, "type": infer_type(value, f"{path}.{key}")}


def _items(value: list[Any] | tuple[Any, ...], path: str) -> list[Any]:
    """A union of null and the types of all items; lists among them are one type, whose items are those of all."""
    types: dict[bytes, Any] = {b"null": "null"}
    records: dict[bytes, None] = {}
    inner: list[Any] = []
    for item in value:
        if isinstance(item, list | tuple):
            inner += item
        elif isinstance(item, dict):
            # The same shape is the same type, so the name must not depend on where it is in the list.
            shape = _encode(infer_type(item, "item"))
            records.setdefault(shape)
            inferred = infer_type(item, f"{path}.item{list(records).index(shape)}")
            types[_encode(inferred)] = inferred
        elif item is not None:
            inferred = infer_type(item, f"{path}.item")
            types[_encode(inferred)] = inferred
    if any(isinstance(item, list | tuple) for item in value):
        types[b"array"] = {"type": "array", "items": _items(inner, f"{path}.items")}
    found = list(types.values()) if len(types) > 1 else ["null", "string"]
    _refuse_doubles(found, path)
    return found


def _refuse_doubles(types: list[Any], path: str) -> None:
    """A union has one type of each kind, unless they have names."""
    kinds = [each if isinstance(each, str) else each["type"] for each in types]
    doubles = [kind for kind in kinds if kind != "record" and kinds.count(kind) > 1]
    if doubles:
        raise RecordRefused(
            f"the field {_shown(path)} is a list of values that are all {doubles[0]} in Avro and different here",
            suggestion="give a schema",
        )


def _shown(path: str) -> str:
    """The path without the name of the record around it."""
    return repr(path.partition(".")[2][:200] or path[:200])
