"""Values: Arrow tables as rows and columns as Python values: what Arrow's `to_pylist` gives, sooner. Needs pyarrow."""

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, Literal

import pyarrow as pa

Maps = Literal["lossy", "strict"] | None
"""What `to_pylist` takes as `maps_as_pydicts`."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps that have no zone
_TO_ORDINAL = _EPOCH.toordinal()
_SINCE: dict[str, Callable[[list[int]], Iterator[timedelta]]] = {
    "s": lambda numbers: map(timedelta, repeat(0), numbers),
    "ms": lambda numbers: map(timedelta, repeat(0), repeat(0), repeat(0), numbers),
    "us": lambda numbers: map(timedelta, repeat(0), repeat(0), numbers),
}


def rows_of(table: pa.Table | pa.RecordBatch, *, maps: Maps = None) -> list[dict[str, Any]]:
    """The rows as `to_pylist` gives them, each a dict that nobody else has."""
    if not table.num_columns or not (maps or any(map(_way, table.schema.types))):
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    names, columns = table.schema.names, [values_of(column, maps=maps) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.Array | pa.ChunkedArray, *, maps: Maps = None) -> list[Any]:
    """The values of a column as `to_pylist` gives them, of the same types, or the error that it raises."""
    made: list[Any]
    if (way := _way(column.type)) is not None:
        kind, make = way
        try:
            if not column.null_count:
                return list(make(column.cast(kind).to_pylist()))
            there = make(column.drop_null().cast(kind).to_pylist())
            return [next(there) if valid else None for valid in column.is_valid().to_pylist()]
        except (pa.ArrowException, OverflowError, ValueError):
            pass  # There are times that Python's types do not reach: let Arrow find the words.
    made = column.to_pylist(maps_as_pydicts=maps) if maps and _may_have_maps(column.type) else column.to_pylist()
    return made


def _way(kind: pa.DataType) -> tuple[pa.DataType, Callable[[list[Any]], Iterator[Any]]] | None:
    """A type to cast to and what to make of its values, where Arrow itself would go through an object for each."""
    if pa.types.is_timestamp(kind) and kind.unit in _SINCE and kind.tz in (None, "UTC"):
        # Not any UTC: it must be the object for a zone that Arrow would take.
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
    """Asked for maps as dicts, Arrow takes the slow way for all that it is asked for."""
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
