"""The schema of an Avro file for columns of Arrow."""

import re
from typing import Any

import pyarrow as pa

from conduit_py.sdk import FatalError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return the schema, in which every field may be null. Raises FatalError for a column that Avro does not have."""
    return _record("row", list(schema))


def _record(name: str, fields: list[pa.Field]) -> dict[str, Any]:
    made = []
    for field in fields:
        if not _NAME.fullmatch(field.name):
            hint = "rename the field with a processor, or write Parquet"
            raise FatalError(f"Avro has no field of the name {field.name!r}", suggestion=hint)
        made.append({"name": field.name, "type": ["null", _type(f"{name}_{field.name}", field.type)], "default": None})
    return {"type": "record", "name": name, "fields": made}


def _type(name: str, kind: pa.DataType) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind) and kind.unit in ("ms", "us"):
        prefix = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{prefix}timestamp-{'millis' if kind.unit == 'ms' else 'micros'}"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": ["null", _type(f"{name}_item", kind.value_type)]}
    if pa.types.is_struct(kind):
        return _record(name, list(kind))
    raise FatalError(f"Avro has no type for {kind}", suggestion="name other types in `columns`, or write Parquet")
