"""Records → Arrow: rows of one schema, and which records do not fit it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from conduit_connectors.spark.schema import Drift, fits_plainly, infer, misfit
from conduit_py.sdk import Data, FatalError, Record, RecordRefused, encode_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENVELOPE = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.binary(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
    ]
)
"""Whole records as rows: raw data as it is, structured data as JSON text."""


class Rows(NamedTuple):
    """The rows of the records that fit, whose indices are `kept`, and why the others do not."""

    batch: pa.RecordBatch
    kept: list[int]
    refused: dict[int, str]


class RowMaker(Protocol):
    """Turns records into rows of one schema, which is None until it is known."""

    schema: pa.Schema | None

    def rows(self, records: Sequence[Record], source: str) -> Rows: ...


class Envelopes:
    """Every record as a row of the schema ENVELOPE, whatever is in it."""

    schema: pa.Schema | None = ENVELOPE

    def rows(self, records: Sequence[Record], source: str) -> Rows:
        made: list[dict[str, object]] = []
        kept: list[int] = []
        refused: dict[int, str] = {}
        for index, record in enumerate(records):
            try:
                made.append(_envelope(record, source))
                kept.append(index)
            except RecordRefused as error:
                refused[index] = error.message
        return Rows(pa.RecordBatch.from_pylist(made, schema=ENVELOPE), kept, refused)


class Fields:
    """The fields of `payload.after` as columns. Without a schema, the first records that come decide what it is."""

    def __init__(self, schema: pa.Schema | None, drift: Drift) -> None:
        self.schema = schema
        self._drift = drift

    def rows(self, records: Sequence[Record], source: str) -> Rows:
        refused: dict[int, str] = {}
        fields: dict[int, dict[str, object]] = {}
        for index, record in enumerate(records):
            if isinstance(record.payload.after, dict):
                fields[index] = record.payload.after
            else:
                refused[index] = _without_fields(record.payload.after)
        if self.schema is None:
            self.schema = infer(list(fields.values()))
        plain = self.schema is not None and fits_plainly(list(fields.values()), self.schema, self._drift)
        for index, values in [] if plain else list(fields.items()):
            reason = misfit(values, self.schema, self._drift) if self.schema is not None else "no type fits its fields"
            if reason is not None:
                self._refuse(reason)
                refused[index] = reason
                del fields[index]
        return self._converted(fields, refused)

    def _converted(self, fields: dict[int, dict[str, object]], refused: dict[int, str]) -> Rows:
        schema = self.schema if self.schema is not None else pa.schema([])
        try:
            batch = pa.RecordBatch.from_pylist(list(fields.values()), schema=schema)
        except _ARROW_ERRORS:
            for index, values in list(fields.items()):
                reason = _unfit(values, schema)
                if reason is not None:
                    self._refuse(reason)
                    refused[index] = reason
                    del fields[index]
            batch = pa.RecordBatch.from_pylist(list(fields.values()), schema=schema)
        return Rows(batch, list(fields), dict(sorted(refused.items())))

    def _refuse(self, reason: str) -> None:
        if self._drift == "stop":
            raise FatalError(
                f"a record does not fit the schema: {reason}",
                suggestion='declare it in `schema`, or let drift="refuse" dead-letter such records',
            )


def frame_of(session: "SparkSession", rows: pa.RecordBatch) -> "DataFrame":
    """The rows as Spark sees them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Left to itself Spark would take times without a zone for times in the session's.
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return session.createDataFrame(pa.Table.from_batches([rows]), schema=schema)


_ARROW_ERRORS = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)


def _unfit(values: dict[str, object], schema: pa.Schema) -> str | None:
    """Why Arrow does not take one record; None if it does."""
    for field in schema:
        try:
            pa.array([values.get(field.name)], field.type)
        except _ARROW_ERRORS as error:
            return f"{field.name} does not fit the column's type {field.type}: {error}"
    return None


def _without_fields(data: Data) -> str:
    if data is None:
        hint = 'write whole records with payload="envelope", or filter records without payload.after'
        return f"payload.after is absent, so it has no fields to write ({hint})"
    hint = 'decode it first, for example with the processor "json.decode", or write payload="envelope"'
    return f"payload.after is raw bytes, so it has no fields to write ({hint})"


def _envelope(record: Record, source: str) -> dict[str, object]:
    return {
        "source": source,
        "position": record.position,
        "operation": record.operation.value,
        "metadata": [*record.metadata.items()],
        "key": _bytes(record.key),
        "before": _bytes(record.payload.before),
        "after": _bytes(record.payload.after),
    }


def _bytes(data: Data) -> bytes | None:
    return encode_json(data) if isinstance(data, dict) else data
