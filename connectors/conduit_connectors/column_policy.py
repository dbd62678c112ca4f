"""What a destination with typed columns does with fields and values that do not fit, as `policy_options` says."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from conduit_py.sdk import Batch, RecordRefused, Structured, encode_json
from conduit_py.sdk.arrow import ARROW_ERRORS

COLUMNS_MAX: Final = 2000
"""How many columns records may make. Their fields may have any number of names."""


def new_fields(batch: Batch, known: set[str]) -> dict[str, pa.DataType | None]:
    """Return the fields that have no column and are not null, with their types; None for values without one.

    The first values decide the type.
    """
    if batch.table is not None:
        columns = {name: batch.table.column(name) for name in batch.table.column_names if name not in known}
        return {name: column.type for name, column in columns.items() if column.null_count < len(column)}
    found: dict[str, pa.DataType | None] = {}
    for row in batch.payloads:
        if isinstance(row, dict) and not known.issuperset(row):
            for name, value in row.items():
                if name not in known and name not in found and value is not None:
                    found[name] = _type_of(value)
    return found


def _type_of(value: object) -> pa.DataType | None:
    try:
        # Not `infer_type`, which has a type for integers that no array holds.
        return pa.array([value]).type
    except ARROW_ERRORS:
        return None


def check_new_column(name: str, kind: pa.DataType | None, taken: Sequence[str]) -> pa.DataType:
    """Return the type of the column for a new field. Raises ValueError if it can have none."""
    if kind is None:
        raise ValueError("Arrow has no type for its value")
    if not isinstance(name, str) or not name or _SURROGATE.search(name):
        raise ValueError("no column can have this name")
    if len(taken) >= COLUMNS_MAX:
        raise ValueError(f"records have made {COLUMNS_MAX} columns, which is the most")
    for other in taken:
        if other.lower() == name.lower():
            raise ValueError(f"its name and that of the column {other!r} differ only in case")
    # The first value has few digits, and later ones may have more.
    return pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) and kind.scale <= 38 else kind


_SURROGATE = re.compile("[\0\ud800-\udfff]")


def explain(refused: dict[int, str], unfit: Mapping[str, str], batch: Batch) -> dict[int, str]:
    """Return the reasons, with that of a field that gets no column where a record has such a field."""
    for index in refused if unfit else ():
        row = batch.payloads[index]
        refused[index] = next((why for name, why in unfit.items() if name in (row or ())), refused[index])
    return refused


def with_texts(rows: Sequence[Structured], schema: pa.Schema) -> list[Structured]:
    """Return the rows with text for every value whose column is of text, where the value has one."""
    names = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    return [_with_texts(row, names) for row in rows]


def _with_texts(row: Structured, names: Sequence[str]) -> Structured:
    values = {name: row[name] for name in names if not isinstance(row.get(name), str | bytes | None)}
    return {**row, **{name: _text_of(value) for name, value in values.items()}} if values else row


def _text_of(value: Any) -> Any:
    """Return a value as text, from which it can be read again; the value itself if it has no such text."""
    try:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, dict | list | tuple):
            return encode_json(value).decode()
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        return repr(value) if isinstance(value, float) else str(value)
    except (RecordRefused, ValueError):
        # It has no JSON form, or too many digits. The column refuses the value itself.
        return value


def widen(schema: pa.Schema, rows: Sequence[Structured]) -> pa.Schema:
    """Return the schema with wider types where these rows need them and there are such types."""
    kinds = {field.name: field.type for field in schema}
    for row in rows:
        for name in kinds.keys() & row.keys():
            kinds[name] = wider_type(kinds[name], row[name]) or kinds[name]
    return pa.schema([field.with_type(kinds[field.name]) for field in schema])


def wider_type(kind: pa.DataType, value: Any) -> pa.DataType | None:
    """Return the narrowest type that holds a value and all values of a type exactly; None if there is none.

    None too if the type holds the value already.
    """
    for wider in (kind, *_wider(kind, value)):
        try:
            pa.array([value], wider)
        except ARROW_ERRORS:
            continue
        return None if wider == kind else wider
    return None


def _wider(kind: pa.DataType, value: Any) -> list[pa.DataType]:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return []
    if pa.types.is_integer(kind) and isinstance(value, int):
        larger = kind.bit_width if pa.types.is_signed_integer(kind) else kind.bit_width * 2
        return [each for each in (pa.int16(), pa.int32(), pa.int64()) if each.bit_width >= larger]
    if pa.types.is_floating(kind) and not isinstance(value, Decimal):
        return [pa.float64()]
    if pa.types.is_decimal(kind) and isinstance(value, int | Decimal):
        return _wider_decimals(kind, Decimal(value))
    return []


def _wider_decimals(kind: pa.DataType, value: Decimal) -> list[pa.DataType]:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # not a number, or infinite
        return []
    scale = max(kind.scale, -exponent)
    whole = max(kind.precision - kind.scale, len(digits) + exponent)
    return [pa.decimal128(whole + scale, scale)] if whole + scale <= 38 else []
