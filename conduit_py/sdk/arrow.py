"""Records as Arrow columns of one schema, and Arrow columns as Python values. Needs pyarrow."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from conduit_py.arrow_values import ARROW_ERRORS, check_values, is_binary, is_text, python_rows, rows_of, values_of
from conduit_py.record import Structured

__all__ = [
    "ARROW_ERRORS",
    "FittedRows",
    "NoCommonSchema",
    "check_values",
    "columns",
    "fit_to_schema",
    "infer_schema",
    "misfit_reason",
    "python_rows",
    "rows_of",
    "select_columns",
    "values_of",
]


class FittedRows(NamedTuple):
    """The rows that fit, with their indices in `kept`, and the reasons why the others do not."""

    batch: pa.RecordBatch
    kept: Sequence[int]
    refused: dict[int, str]


def fit_to_schema(rows: Sequence[Structured], schema: pa.Schema, *, more: bool = False) -> FittedRows:
    """Return the rows as columns of the schema. A row fits if Arrow stores its values unchanged.

    Only floats may be rounded, to the digits of their column, if they stay finite. Missing fields are null. With
    `more`, fields that are not in the schema are left out; otherwise a row with such a field does not fit.
    """
    values, complete = _columns(rows, schema.names)
    # Cheaper than comparing names: a row that has every field of the schema has others only if it has more fields.
    known = more or (max(map(len, rows)) <= len(values) if complete else _has_only_fields_of(rows, schema))
    refused: dict[int, str] = {}
    if not known or not _fit_plainly(values, schema):
        refused = _reasons(misfit_reason(row, schema, more=more) for row in rows)
    try:
        return _without(refused, values, schema, len(rows))
    except ARROW_ERRORS:
        return _without(_reasons(_unfit(row, schema) for row in rows) | refused, values, schema, len(rows))


def _has_only_fields_of(rows: Sequence[Structured], schema: pa.Schema) -> bool:
    """Return True if every field of every row is in the schema."""
    return all(map(set(schema.names).issuperset, rows))


def _without(refused: dict[int, str], values: dict[str, list[Any]], schema: pa.Schema, count: int) -> FittedRows:
    if not refused:
        return FittedRows(_batch(values, schema, count), range(count), refused)
    kept = [index for index in range(count) if index not in refused]
    left = {name: [column[index] for index in kept] for name, column in values.items()}
    return FittedRows(_batch(left, schema, len(kept)), kept, dict(sorted(refused.items())))


def _reasons(found: Iterable[str | None]) -> dict[int, str]:
    return {index: reason for index, reason in enumerate(found) if reason is not None}


def columns(rows: Sequence[Structured], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of these fields, None where a field is missing."""
    return _columns(rows, names)[0]


def _columns(rows: Sequence[Structured], names: Iterable[str]) -> tuple[dict[str, list[Any]], bool]:
    """Return the values of these fields, and True if none is missing."""
    # Only for dicts: a defaultdict would make up a missing value, and change the record.
    if {*map(type, rows)} == {dict}:
        with suppress(KeyError):
            return {name: list(map(itemgetter(name), rows)) for name in names}, True
    return {name: [row.get(name) for row in rows] for name in names}, False


def misfit_reason(row: Structured, schema: pa.Schema, *, more: bool = False) -> str | None:
    """Return why a row does not fit, where Arrow would drop fields or digits without an error."""
    if not more:
        known = set(schema.names)
        extra = [name for name in row if name not in known]
        if extra:
            return f"has fields that are not in the schema: {', '.join(map(repr, extra))}"
    for field in schema:
        value = row.get(field.name)
        if value is None:
            if not field.nullable:
                return f"{field.name} is missing, and its column takes no null"
        elif reason := _change_reason(value, field.type, more):
            return f"{field.name} {reason}"
    return None


def _batch(values: Mapping[str, list[Any]], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not schema.names:
        # `from_arrays` takes the number of rows from its arrays, and there are none.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    # For some types Arrow cannot build an array from values, not even from no values.
    arrays = [pa.array(values[field.name], field.type) if count else pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _unfit(row: Structured, schema: pa.Schema) -> str | None:
    """Return why Arrow refuses one row; None if it does not."""
    for field in schema:
        try:
            pa.array([row.get(field.name)], field.type)
        except ARROW_ERRORS as error:
            return f"{field.name} does not fit the column's type {field.type}: {error}"
    return None


def _fit_plainly(values: Mapping[str, list[Any]], schema: pa.Schema) -> bool:
    """Return True if the types of the values show that all rows fit; if not, each row must be checked."""
    for field in schema:
        kinds = set(map(type, values[field.name]))
        if field.nullable:
            kinds.discard(type(None))
        if not kinds <= _plain_types(field.type) and not _fit_at_a_glance(values[field.name], kinds, field.type):
            return False
    return True


def _fit_at_a_glance(values: Sequence[Any], kinds: set[type], kind: pa.DataType) -> bool:
    """Return True if all values fit, for types of which the whole column is looked at in one call."""
    if pa.types.is_timestamp(kind) and kinds == {datetime} and kind.unit in ("us", "ns"):
        zones = set(map(attrgetter("tzinfo"), filter(None, values)))
        return None not in zones if kind.tz is not None else zones == {None}
    if pa.types.is_floating(kind) and kinds <= {int, float}:
        return _stay_finite([value for value in values if value is not None], kind)
    return False


def _plain_types(kind: pa.DataType) -> set[type]:
    """Return the types of values that such a column stores unchanged or refuses."""
    if pa.types.is_integer(kind):
        return {int}
    if pa.types.is_float64(kind):
        return {int, float}
    if pa.types.is_string(kind):
        return {str}
    if pa.types.is_boolean(kind):
        return {bool}
    if pa.types.is_binary(kind):
        return {bytes}
    return set()


def _change_reason(value: Any, kind: pa.DataType, more: bool) -> str | None:
    """Return how Arrow would change a value in a column; None if it stores it unchanged or refuses it."""
    if value is None:
        return None
    if pa.types.is_integer(kind) and not hasattr(value, "__index__"):
        # Arrow cuts the fraction of a float or a decimal, and takes whatever can become an integer, such as a UUID.
        return f"is {value!r}, and its column takes integers"
    if pa.types.is_floating(kind):
        return _float_change_reason(value, kind)
    if pa.types.is_temporal(kind):
        return _time_change_reason(value, kind)
    if is_binary(kind) and isinstance(value, str):
        return "is text, and its column takes bytes"
    if is_text(kind) and isinstance(value, bytes | bytearray):
        return "is bytes, and its column takes text"
    if pa.types.is_dictionary(kind):
        return _change_reason(value, kind.value_type, more)
    return _nested_change_reason(value, kind, more) if pa.types.is_nested(kind) else None


def _float_change_reason(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, bool):
        return f"is {value!r}, and its column takes numbers"
    if isinstance(value, int | float) and not _stay_finite([value], kind):
        return f"is finite, and its column {kind} would make it infinite"
    return None


def _stay_finite(values: Sequence[float], kind: pa.DataType) -> bool:
    """Return True if no finite value becomes infinite in a column of floats."""
    try:
        struct.pack(f"<{len(values)}{_FLOAT_CODES[kind]}", *values)
    except (OverflowError, struct.error):
        return False
    return True


_FLOAT_CODES = {pa.float16(): "e", pa.float32(): "f", pa.float64(): "d"}


def _time_change_reason(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, date | time | timedelta):
        return f"is {value!r}, and its column takes {kind}"
    if pa.types.is_date(kind) and isinstance(value, datetime):
        return "is a time, and its column takes dates"
    if pa.types.is_time(kind) and getattr(value, "tzinfo", None) is not None:
        return "has a time zone, and its column takes none"
    if pa.types.is_timestamp(kind) and isinstance(value, datetime) and (value.tzinfo is None) != (kind.tz is None):
        # Arrow would drop the zone, or take a time without one for a time of UTC.
        return (
            f"has {'no' if kind.tz else 'a'} time zone, and its column takes {'times with one' if kind.tz else 'none'}"
        )
    if _is_finer(value, getattr(kind, "unit", "us")):
        return f"is {value!s}, of which its column {kind} would cut digits"
    return None


def _is_finer(value: Any, unit: str) -> bool:
    """Return True if a value has digits behind those of a unit. Python's have microseconds."""
    step = {"s": 1_000_000, "ms": 1000}.get(unit, 1)
    return bool(getattr(value, "microseconds" if isinstance(value, timedelta) else "microsecond", 0) % step)


def _nested_change_reason(value: Any, kind: pa.DataType, more: bool) -> str | None:
    wrong = f"is {type(value).__name__}, and its column takes {kind}"
    if pa.types.is_struct(kind):
        return _struct_change_reason(value, kind, more) if isinstance(value, dict) else wrong
    if pa.types.is_map(kind):
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list | tuple) or any(not isinstance(each, tuple) for each in pairs):
            return wrong
        fields = (kind.key_field, kind.item_field)
        return _first_reason(
            _field_change_reason(*each, more) for pair in pairs for each in zip(pair, fields, strict=False)
        )
    if not hasattr(kind, "value_field"):
        return None
    if not isinstance(value, list | tuple):
        # Arrow would take a text for the list of its letters.
        return wrong
    return _first_reason(_field_change_reason(item, kind.value_field, more) for item in value)


def _first_reason(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason), None)


def _field_change_reason(value: Any, field: pa.Field, more: bool) -> str | None:
    """The same for a value in another one."""
    if value is None:
        return None if field.nullable else "is missing, and its field takes no null"
    return _change_reason(value, field.type, more)


def _struct_change_reason(value: dict[str, Any], kind: pa.StructType, more: bool) -> str | None:
    known = {field.name for field in kind}
    extra = [name for name in value if name not in known]
    if extra and not more:
        return f"has fields that are not in the schema: {', '.join(map(repr, extra))}"
    for field in kind:
        if reason := _field_change_reason(value.get(field.name), field, more):
            return f"{field.name} {reason}"
    return None


class NoCommonSchema(Exception):
    """Rows have no common schema; for a single row, the message is the reason it has none."""


def infer_schema(rows: Sequence[Structured]) -> pa.Schema:
    """Return the columns of these rows, in the types that Arrow infers. Raises NoCommonSchema if there are none."""
    fields = []
    for name, values in columns(rows, dict.fromkeys(chain.from_iterable(rows))).items():
        try:
            fields.append(pa.field(name, pa.infer_type(values)))
        except ARROW_ERRORS as error:
            raise NoCommonSchema(f"Arrow has no column for {name!r}: {error}") from error
        if pa.types.is_timestamp(fields[-1].type) and len(set(map(_has_zone, filter(None, values)))) > 1:
            raise NoCommonSchema(f"{name} has times with a zone and times without one")
    return pa.schema(fields)


def _has_zone(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def select_columns(table: pa.Table, schema: pa.Schema, *, fill: bool = False) -> pa.Table | None:
    """Return the columns of a schema, in its types; None if rows must be looked at one by one, with `fit_to_schema`.

    With `fill` a column that the table lacks is null.
    """
    columns: list[pa.ChunkedArray] = []
    for field in schema:
        if field.name in table.column_names:
            column = _select_column(table.column(field.name), field)
        else:
            column = pa.chunked_array([pa.nulls(table.num_rows, field.type)]) if fill and field.nullable else None
        if column is None:
            return None
        columns.append(column)
    # Arrow forgets the number of rows of a table without columns when it is sliced.
    return pa.table(columns, schema=schema) if columns else None


def _select_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray | None:
    if column.null_count and not field.nullable:
        return None
    if column.type == field.type:
        return column
    if not _widens(column.type, field.type):
        return None
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        return None


def _widens(kind: pa.DataType, into: pa.DataType) -> bool:
    """Return True if Arrow stores every value unchanged in the other type, or refuses to."""
    if pa.types.is_integer(kind):
        return bool(pa.types.is_integer(into) or pa.types.is_float64(into))
    if pa.types.is_float32(kind):
        return bool(pa.types.is_float64(into))
    return is_text(kind) and is_text(into)
