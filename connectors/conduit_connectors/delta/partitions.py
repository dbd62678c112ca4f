"""Partitions of Delta tables: how tasks divide rows by them, and which values a partition does not keep."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

_NULLS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that a partition has for null."""
_FOLDER_MAX = 255
"""The bytes of a name that file systems allow. The library makes a folder for each partition."""
_DIVIDED = ("string", "long", "integer", "short", "byte", "boolean", "date", "timestamp", "timestamp_ntz")
"""The types of columns by which tasks divide rows, in Delta's words. The forms of others are the library's matter."""


class PartitionRows(NamedTuple):
    """The rows of one partition, without its columns, and its values as the log has them."""

    values: dict[str, str | None]
    rows: pa.Table


def why_not_divided(columns: Mapping[str, str] | None, partition_by: Sequence[str]) -> str | None:
    """Return why tasks cannot divide the rows of a table that has such columns; None if they can."""
    other = [name for name in partition_by if columns is not None and columns.get(name, "string") not in _DIVIDED]
    if other:
        return (
            f"the driver has to divide the rows by {other[0]}: partition by texts, integers, booleans, dates or times"
        )
    return None


def divides(schema: pa.Schema, partition_by: Sequence[str]) -> bool:
    """Return True if tasks can divide rows with these columns: a file must have a column that is left."""
    return len(partition_by) < len(schema) and all(_is_divided(schema.field(name).type) for name in partition_by)


def _is_divided(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (
        types.is_string,
        types.is_large_string,
        types.is_integer,
        types.is_boolean,
        types.is_date,
        types.is_timestamp,
    )
    return any(test(kind) for test in tests)


def divide(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[PartitionRows]:
    """Divide rows by the values of these columns. Those of one partition keep their order."""
    if not partition_by:
        yield PartitionRows({}, rows)
        return
    # Numbered, because columns may have any name.
    names = [str(place) for place in range(len(partition_by))]
    keys = pa.table([*(rows.column(name) for name in partition_by), pa.array(range(len(rows)))], [*names, "row"])
    groups = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
    rest = rows.drop_columns(list(partition_by))
    for group in groups.to_pylist():
        values = {column: _text_of(group[name]) for column, name in zip(partition_by, names, strict=True)}
        yield PartitionRows(values, rest.take(pa.array(group["row_list"], pa.int64())))


def undivided(rows: pa.Table, values: Mapping[str, str | None], schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of their partition, in the types that a table has for these."""
    for name, text in values.items():
        kind = schema.field(name).type if name in schema.names else pa.string()
        value = None if text is None else _parse(text, kind)
        rows = rows.append_column(name, pa.array([value] * len(rows), kind))
    return rows


def _text_of(value: Any) -> str | None:
    """Return the form that the log has for a value. `test_partitions_are_those_of_the_library` compares."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return plain.isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)


def _parse(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(text).replace(tzinfo=UTC if kind.tz else None)
    return date.fromisoformat(text) if pa.types.is_date(kind) else text


def refuse_lost(rows: pa.Table, partition_by: Sequence[str], refused: dict[int, str], size: int) -> pa.Table | None:
    """Return the rows whose values a partition keeps, and add to `refused` why others do not.

    They are those of a batch of this size that are not `refused` yet.
    """
    # Invariant 12: what the library would make null, or something else, is refused.
    lost: dict[int, str] = {}
    for name in partition_by:
        column = rows.column(name)
        reasons = {value: why for value in column.unique().to_pylist() if (why := _why_lost(name, value)) is not None}
        if reasons:
            lost |= {row: reasons[value] for row, value in enumerate(column.to_pylist()) if value in reasons}
    if not lost:
        return rows
    kept = [index for index in range(size) if index not in refused]
    refused |= {kept[row]: why for row, why in lost.items()}
    rest = [row for row in range(len(rows)) if row not in lost]
    return rows.take(rest) if rest else None


def _why_lost(name: str, value: Any) -> str | None:
    if value in _NULLS:
        return f"{name!r} is {value!r}, which as a partition would be null"
    if isinstance(value, str) and len(f"{quote(name, safe='')}={quote(value, safe='')}") > _FOLDER_MAX:
        return f"{name!r} is too long for the name of a folder"
    if isinstance(value, bytes):
        return f"{name!r} has bytes, which partitions of a Delta table do not keep"
    if isinstance(value, Decimal) and value < 0 and value != value.to_integral_value():
        return f"{name!r} is a negative decimal, with which as a partition nobody could read the table"
    if isinstance(value, float) and math.isinf(value):
        return f"{name!r} is infinite, which no partition can be"
    return None
