"""Columns: what the columns of a DataFrame mean, and the records that its rows are."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from conduit_py.errors import Problem, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk import values
from conduit_py.spark.format.envelope import COLUMNS, record_of
from conduit_py.spark.format.settings import invalid

_DATA = (types.BinaryType, types.StringType, types.StructType, types.MapType, types.NullType)
_ENVELOPE: dict[str, tuple[type[types.DataType], ...]] = {
    "position": (types.BinaryType, types.NullType),
    "operation": (types.StringType, types.NullType),
    "metadata": (types.MapType, types.NullType),
    "key": _DATA,
    "before": _DATA,
    "after": _DATA,
    "refused": (types.StringType, types.NullType),
}
_PLAIN = (
    types.NullType,
    types.BooleanType,
    types.IntegralType,
    types.FractionalType,
    types.StringType,
    types.CharType,
    types.VarcharType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.TimeType,
    types.DayTimeIntervalType,
)
"""Types whose values are plain Python values of a record."""


READ = types.StructType(
    [
        types.StructField("position", types.BinaryType()),
        types.StructField("operation", types.StringType()),
        types.StructField("metadata", types.MapType(types.StringType(), types.StringType())),
        *(types.StructField(name, types.BinaryType()) for name in ("key", "before", "after")),
        types.StructField("refused", types.StringType()),
    ]
)
"""Of rows that are read."""


class Columns:
    """Rows with a column `after`, and no others than those that reading gives, are records as they stand.

    In all others the columns are the fields of `payload.after`, and those named as the key are the key too. Raises
    PipelineInvalid with everything that is wrong with the columns.
    """

    def __init__(self, schema: types.StructType, key: list[str]) -> None:
        names = schema.fieldNames()
        self._envelope = "after" in names and set(names) <= set(COLUMNS)
        self._key = key
        problems = [*_repeated(names), *(_envelope(schema, key) if self._envelope else _fields(schema, key))]
        if problems:
            raise invalid(*problems)

    def record(self, row: dict[str, Any]) -> Record:
        """Raises RecordRefused for a row that is no record."""
        if self._envelope:
            return record_of(row)
        return Record.of(row, key={name: row[name] for name in self._key} or None)


def check_schema(schema: types.StructType) -> None:
    """Refuse a schema that a user gives for reading: rows are records, whatever is in them."""
    given, made = schema.simpleString(), READ.simpleString()
    if given != made:
        hint = "leave the schema out, and take fields with from_json(CAST(after AS STRING), …)"
        raise invalid(Problem("schema", f"rows of this format are {made}, not {given}", hint))


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from values.rows_of(batch, maps="strict")


def _repeated(names: list[str]) -> Iterator[Problem]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"columns.{name}", "there are several columns of this name", "rename all but one")


def _envelope(schema: types.StructType, key: list[str]) -> Iterator[Problem]:
    if key:
        yield Problem("key_columns", "rows that are records have their key in the column key", "leave it out")
    for field in schema.fields:
        allowed = _ENVELOPE[field.name]
        if not isinstance(field.dataType, allowed):
            kinds = ", ".join(kind.typeName().upper() for kind in allowed[:-1])
            what = f"of a record this must be {kinds}, not {field.dataType.simpleString().upper()}"
            hint = "cast it; or, if the columns are no record but fields, rename `after`"
            yield Problem(f"columns.{field.name}", what, hint)
        elif not isinstance(field.dataType, types.StringType | types.BinaryType):
            yield from _unplain(f"columns.{field.name}", field.dataType)


def _fields(schema: types.StructType, key: list[str]) -> Iterator[Problem]:
    for name in key:
        if name not in schema.fieldNames():
            yield Problem(
                "key_columns", f"there is no column {name!r}", f"columns are {', '.join(schema.fieldNames())}"
            )
    for field in schema.fields:
        yield from _unplain(f"columns.{field.name}", field.dataType)


def _unplain(path: str, kind: types.DataType) -> Iterator[Problem]:
    """Types whose values a record cannot carry as they are, wherever they are inside of a column."""
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _unplain(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, types.ArrayType):
        yield from _unplain(f"{path}[]", kind.elementType)
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            what = f"a map of a record has text for keys, not {kind.keyType.simpleString().upper()}"
            yield Problem(path, what, "turn it into an array of structs")
        yield from _unplain(f"{path}[]", kind.valueType)
    elif not isinstance(kind, _PLAIN):
        yield Problem(path, f"a record cannot carry {kind.simpleString().upper()}", "cast it, for example to STRING")


def refused_row(number: int, partition: int, reason: RecordRefused, shown: object) -> str:
    """What is told of a row that cannot be written."""
    advice = f" ({reason.suggestion})" if reason.suggestion else ""
    text = repr(shown)
    text = text if len(text) <= 1000 else f"{text[:1000]}…"
    return f"row {number} of partition {partition} is refused: {reason.message}{advice}; it is {text}"
