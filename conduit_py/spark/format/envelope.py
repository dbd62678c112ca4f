"""Envelope: a record as a row of Spark's, and a row as a record again."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from conduit_py.errors import RecordRefused
from conduit_py.record import Data, Operation, Payload, Record, decode_json, encode_json

COLUMNS = ("position", "operation", "metadata", "key", "before", "after", "refused")
STRUCTURED = "spark.structured"
"""In the metadata of a row: which of its bytes are structured data, as JSON."""

Row: TypeAlias = tuple[bytes, str, dict[str, str], bytes | None, bytes | None, bytes | None, str | None]


def row_of(record: Record, refused: str | None) -> Row:
    """The row of a record. One that JSON cannot carry is refused: its row says why and has no data."""
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

    Bytes are raw data, unless the metadata says that they are structured, as those of rows that were read do.
    Text is JSON, and a struct or map has the fields themselves.
    """
    if row.get("refused") is not None:
        raise RecordRefused(
            f"its source could not understand it: {row['refused']}",
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
            f"{name} is JSON, but no object", suggestion="give raw data as BINARY, fields as a JSON object or a STRUCT"
        )
    return fields


def _operation(text: str | None) -> Operation:
    try:
        return Operation(text or "create")
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise RecordRefused(f"operation must be one of {known}, not {text!r}") from None
