"""The columns of an Iceberg table: as Arrow has them, and how the table gets more or wider ones."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

from conduit_connectors.column_policy import check_new_column

_NO_NAME = re.compile("[.\0\ud800-\udfff]")
_DIGITS_MAX = 38


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a table in the types to which rows are fitted."""
    return pa.schema(
        [pa.field(field.name, _small(field.type), field.nullable) for field in schema_to_pyarrow(schema, {}, False)]
    )


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a type without the long offsets that Iceberg's library prefers: rows are fitted to the short ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return kind


def _small_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _small(field.type), field.nullable)


def make_column(name: str, kind: pa.DataType | None, taken: Sequence[str]) -> pa.Field:
    """Return the column for a new field. Raises ValueError if it can have none."""
    wanted = _iceberg_type(check_new_column(name, kind, taken))
    if "." in name:
        raise ValueError("no column that is added to an Iceberg table can have a dot in its name")
    if wanted is None:
        raise ValueError(f"Iceberg has no type for {kind}")
    return pa.field(name, wanted)


def _iceberg_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type that an Iceberg table stores such values in; None if there is none."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(_DIGITS_MAX, kind.scale) if kind.precision <= _DIGITS_MAX and kind.scale >= 0 else None
    if pa.types.is_integer(kind):
        return None if pa.types.is_uint64(kind) else pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz is not None else None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _iceberg_type(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(kind):
        items = [(field.name, _iceberg_type(field.type)) for field in kind]
        bad = not items or any(item is None or not name or _NO_NAME.search(name) for name, item in items)
        return None if bad else pa.struct(items)
    if pa.types.is_time(kind):
        return pa.time64("us")
    plain = (pa.types.is_boolean, pa.types.is_floating, pa.types.is_string, pa.types.is_binary, pa.types.is_date)
    return kind if any(test(kind) for test in plain) else None


def wider_types(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> dict[str, IcebergType]:
    """Return the columns that would hold more values of these rows in a wider type, which Iceberg allows."""
    wider: dict[str, IcebergType] = {}
    for field in schema.fields:
        for row in rows:
            kind = wider.get(field.name, field.field_type)
            value = row.get(field.name) if isinstance(row, dict) else None
            if (found := _wider(kind, value)) is not None:
                wider[field.name] = found
    return wider


def _wider(kind: IcebergType, value: Any) -> IcebergType | None:
    if isinstance(kind, IntegerType) and type(value) is int and not -(2**31) <= value < 2**31:
        return LongType() if -(2**63) <= value < 2**63 else None
    if isinstance(kind, FloatType) and type(value) is int and abs(value) > 2**24:
        return DoubleType()
    if isinstance(kind, DecimalType) and type(value) in (int, Decimal) and (number := Decimal(value)).is_finite():
        # Only digits before the point can be added: the scale of a column is for ever.
        _, digits, exponent = number.as_tuple()
        needed = max(len(digits) + int(exponent), 0) + kind.scale
        return DecimalType(needed, kind.scale) if kind.precision < needed <= _DIGITS_MAX else None
    return None
