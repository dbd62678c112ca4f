"""Records as rows of Spark, and the rows of a DataFrame as records."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types

from conduit_py.errors import Problem, RecordRefused
from conduit_py.record import Data, Operation, Payload, Record, decode_json, encode_json
from conduit_py.sdk import arrow
from conduit_py.spark.datasource.settings import invalid

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
"""The schema of rows that are read."""


class RowDecoder:
    """Makes records of rows. Rows with a column `after`, and no columns but those of reading, are whole records.

    In all others the columns are the fields of `payload.after`, and the key columns are the key too. Raises
    PipelineInvalid with every problem of the columns.
    """

    def __init__(self, schema: types.StructType, key: list[str]) -> None:
        names = schema.fieldNames()
        self._envelope = "after" in names and set(names) <= set(COLUMNS)
        self._key = key
        problems = [
            *_repeated_columns(names),
            *(_envelope_problems(schema, key) if self._envelope else _field_problems(schema, key)),
        ]
        if problems:
            raise invalid(*problems)

    def record(self, row: dict[str, Any]) -> Record:
        """The record of a row. Raises RecordRefused for a row that is none."""
        if self._envelope:
            return record_of(row)
        return Record.of(row, key={name: row[name] for name in self._key} or None)


def check_schema(schema: types.StructType) -> None:
    """Refuse a schema given for reading: rows are records, whatever is in them."""
    given, made = schema.simpleString(), READ.simpleString()
    if given != made:
        hint = "leave the schema out, and take fields with from_json(CAST(after AS STRING), …)"
        raise invalid(Problem("schema", f"rows of this format are {made}, not {given}", hint))


def iterate_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from arrow.rows_of(batch, maps="strict")


def _repeated_columns(names: list[str]) -> Iterator[Problem]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"columns.{name}", "there are several columns of this name", "rename all but one")


def _envelope_problems(schema: types.StructType, key: list[str]) -> Iterator[Problem]:
    if key:
        yield Problem("key_columns", "whole records have their key in the column `key`", "leave it out")
    for field in schema.fields:
        allowed = _ENVELOPE[field.name]
        if not isinstance(field.dataType, allowed):
            kinds = ", ".join(kind.typeName().upper() for kind in allowed[:-1])
            what = f"in a record this must be {kinds}, not {field.dataType.simpleString().upper()}"
            hint = "cast it; or, if the columns are fields and not a record, rename `after`"
            yield Problem(f"columns.{field.name}", what, hint)
        elif not isinstance(field.dataType, types.StringType | types.BinaryType):
            yield from _unplain(f"columns.{field.name}", field.dataType)


def _field_problems(schema: types.StructType, key: list[str]) -> Iterator[Problem]:
    for name in key:
        if name not in schema.fieldNames():
            yield Problem(
                "key_columns", f"there is no column {name!r}", f"columns are {', '.join(schema.fieldNames())}"
            )
    for field in schema.fields:
        yield from _unplain(f"columns.{field.name}", field.dataType)


def _unplain(path: str, kind: types.DataType) -> Iterator[Problem]:
    """A problem for each type, at any depth of a column, whose values a record cannot hold."""
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
    """The error text for a row that cannot be written."""
    advice = f" ({reason.suggestion})" if reason.suggestion else ""
    # Bounded: a row can be very large, and Spark repeats the error of a task in several logs.
    text = repr(shown)
    text = text if len(text) <= 1000 else f"{text[:1000]}…"
    return f"row {number} of partition {partition} is refused: {reason.message}{advice}; it is {text}"


COLUMNS = ("position", "operation", "metadata", "key", "before", "after", "refused")
STRUCTURED = "spark.structured"
"""In the metadata of a row: which of its bytes are structured data, as JSON."""

Row: TypeAlias = tuple[bytes, str, dict[str, str], bytes | None, bytes | None, bytes | None, str | None]


def row_of(record: Record, refused: str | None) -> Row:
    """The row of a record. A record that JSON cannot represent is a refused row, without data."""
    payload, metadata = record.payload, record.metadata
    data = {"key": record.key, "before": payload.before, "after": payload.after}
    structured = [name for name, value in data.items() if isinstance(value, dict)]
    try:
        key, before, after = (_bytes(value) for value in data.values())
    except RecordRefused as error:
        return record.position, str(record.operation), metadata, None, None, None, refused or error.message
    if structured:
        metadata = {**metadata, STRUCTURED: ",".join(structured)}
    return record.position, str(record.operation), metadata, key, before, after, refused


def record_of(row: Mapping[str, Any]) -> Record:
    """The record of a row, which may lack columns. Raises RecordRefused for one that is none.

    Bytes are raw data, unless the metadata of a row that was read marks them as structured. Text is JSON, and a
    struct or map has the fields themselves.
    """
    if row.get("refused") is not None:
        raise RecordRefused(
            f"its source could not parse it: {row['refused']}",
            suggestion="leave such rows out with where('refused IS NULL')",
        )
    metadata = dict(row.get("metadata") or {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise RecordRefused("metadata must map text to text", suggestion="leave out what is null")
    structured = metadata.pop(STRUCTURED, "").split(",")
    key, before, after = (_data(row.get(name), name, name in structured) for name in ("key", "before", "after"))
    operation = row.get("operation")
    return Record(row.get("position") or b"", _operation(operation), metadata, key, Payload(before=before, after=after))


def _bytes(data: Data) -> bytes | None:
    return data if data is None or isinstance(data, bytes) else encode_json(data)


def _data(value: Any, name: str, structured: bool) -> Data:
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, bytes) and not structured:
        return value
    fields = decode_json(value)
    if not isinstance(fields, dict):
        raise RecordRefused(
            f"{name} is JSON but not an object",
            suggestion="give raw data as BINARY, fields as a JSON object or a STRUCT",
        )
    return fields


def _operation(text: str | None) -> Operation:
    try:
        return Operation(text or "create")
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise RecordRefused(f"operation must be one of {known}, not {text!r}") from None
