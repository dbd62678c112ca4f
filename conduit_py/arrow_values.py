"""Arrow columns as Python values, as records have them. Needs pyarrow."""

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

ARROW_ERRORS = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)
"""The errors of Arrow for a value that it cannot store."""

Maps = Literal["lossy", "strict"] | None
"""The argument `maps_as_pydicts` of `to_pylist`."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps that have no zone
_TO_ORDINAL = _EPOCH.toordinal()
_SINCE: dict[str, Callable[[list[int]], Iterator[timedelta]]] = {
    "s": lambda numbers: map(timedelta, repeat(0), numbers),
    "ms": lambda numbers: map(timedelta, repeat(0), repeat(0), repeat(0), numbers),
    "us": lambda numbers: map(timedelta, repeat(0), repeat(0), numbers),
}


def rows_of(table: pa.Table | pa.RecordBatch, *, maps: Maps = None) -> list[dict[str, Any]]:
    """Return the rows as `to_pylist` does, each as a new dict."""
    if not table.num_columns or not (maps or any(map(_fast_conversion, table.schema.types))):
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    names, columns = table.schema.names, [values_of(column, maps=maps) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.Array | pa.ChunkedArray, *, maps: Maps = None) -> list[Any]:
    """Return the values of a column as `to_pylist` does, with the same types and errors."""
    made: list[Any]
    if (way := _fast_conversion(column.type)) is not None:
        kind, make = way
        try:
            if not column.null_count:
                return list(make(column.cast(kind).to_pylist()))
            there = make(column.drop_null().cast(kind).to_pylist())
            return [next(there) if valid else None for valid in column.is_valid().to_pylist()]
        except (pa.ArrowException, OverflowError, ValueError):
            pass  # Python's types cannot hold every time. Arrow raises an error that names the value.
    made = column.to_pylist(maps_as_pydicts=maps) if maps and _may_have_maps(column.type) else column.to_pylist()
    return made


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows as records have them: with Python's own values, and none of pandas or numpy.

    Raises one of ARROW_ERRORS for a value that Python cannot hold, such as a time in nanoseconds.
    """
    kinds = [_python_type(kind) for kind in table.schema.types]
    if kinds == table.schema.types:
        return rows_of(table)
    names, columns = table.schema.names, map(python_values, table.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as records have them."""
    kind = _python_type(column.type)
    return values_of(column if kind == column.type else column.cast(kind))


def _python_type(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that converts to Python's own values; the others give pandas' or numpy's."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_list(kind):
        return pa.list_(_python_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _python_type(field.type)) for field in kind])
    return kind


def check_values(table: pa.Table | pa.RecordBatch) -> None:
    """Raise one of ARROW_ERRORS if a table has a value that no record can hold. Costs little: no row is made."""
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            _check_column(column)
        # LookupError: a time zone that this machine does not have.
        except (*ARROW_ERRORS, LookupError) as error:
            raise pa.ArrowInvalid(f"{field.name} has a value that a record cannot hold: {error}") from error


def _check_column(column: Any) -> None:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return
    if is_text(kind) or is_binary(kind):
        # Text of Parquet may be no UTF-8, which Python would refuse when a row is made.
        column.validate(full=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        column.validate(full=True)
        _check_column(pc.list_flatten(column))
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        # The order of times is that of their values, so the first and the last show whether all can be held.
        wanted = _python_type(kind)
        pc.min_max(column if wanted == kind else column.cast(wanted)).as_py()
    else:
        python_values(column)


def _fast_conversion(kind: pa.DataType) -> tuple[pa.DataType, Callable[[list[Any]], Iterator[Any]]] | None:
    """Return a type to cast to and a conversion of its values, for types that Arrow converts slowly, one by one."""
    if pa.types.is_timestamp(kind) and kind.unit in _SINCE and kind.tz in (None, "UTC"):
        # The zone object that Arrow uses: with another one for UTC, values would not equal those of `to_pylist`.
        epoch = _EPOCH if kind.tz is None else pa.scalar(0, kind).as_py()
        since = _SINCE[kind.unit]
        return pa.int64(), lambda numbers: map(epoch.__add__, since(numbers))
    if pa.types.is_duration(kind) and kind.unit in _SINCE:
        return pa.int64(), _SINCE[kind.unit]
    if pa.types.is_date32(kind):
        return pa.int32(), lambda numbers: map(date.fromordinal, map(_TO_ORDINAL.__add__, numbers))
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return pa.string(), lambda texts: map(Decimal, texts)
    return None


def _may_have_maps(kind: pa.DataType) -> bool:
    """Return True if a type may contain maps. With `maps_as_pydicts` Arrow converts every type the slow way."""
    return not (pa.types.is_primitive(kind) or any(is_kind(kind) for is_kind in _WITHOUT_MAPS))


_WITHOUT_MAPS = (
    pa.types.is_null,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


def is_same(before: pa.ChunkedArray | pa.Array, after: pa.ChunkedArray | pa.Array) -> bool:
    """Return True if both are the same column, by their buffers. False says only that their values may differ."""
    # Buffers of a nested column do not show where its children begin.
    if before.type != after.type or pa.types.is_nested(before.type):
        return False
    return _buffers(before) == _buffers(after)


def _buffers(column: Any) -> list[Any]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [
        (chunk.offset, len(chunk), [buffer and buffer.address for buffer in chunk.buffers()])
        for chunk in chunks
        if len(chunk)
    ]


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BINARY)


_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
