"""Records → Arrow: rows of one schema, and which records do not fit it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa

from conduit_connectors.spark.schema import Drift, infer
from conduit_py.sdk import Data, FatalError, Record, RecordRefused, Structured, encode_json
from conduit_py.sdk.columns import Fitted, fitted

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


class RowMaker(Protocol):
    """Turns records into rows of one schema, which is None until it is known."""

    schema: pa.Schema | None

    def rows(self, records: Sequence[Record], source: str) -> Fitted: ...


class Envelopes:
    """Every record as a row of the schema ENVELOPE, whatever is in it."""

    schema: pa.Schema | None = ENVELOPE

    def rows(self, records: Sequence[Record], source: str) -> Fitted:
        made: list[dict[str, object]] = []
        kept: list[int] = []
        refused: dict[int, str] = {}
        for index, record in enumerate(records):
            try:
                made.append(_envelope(record, source))
                kept.append(index)
            except RecordRefused as error:
                refused[index] = error.message
        return Fitted(pa.RecordBatch.from_pylist(made, schema=ENVELOPE), kept, refused)


class Fields:
    """The fields of `payload.after` as columns. Without a schema, the first records that come decide what it is."""

    def __init__(self, schema: pa.Schema | None, drift: Drift) -> None:
        self.schema = schema
        self._drift = drift

    def rows(self, records: Sequence[Record], source: str) -> Fitted:
        data = [record.payload.after for record in records]
        if {*map(type, data)} == {dict}:
            return self.fit(cast(list[Structured], data))
        refused = {index: without_fields(each) for index, each in enumerate(data) if not isinstance(each, dict)}
        fields = [index for index in range(len(data)) if index not in refused]
        made = self.fit([cast(Structured, data[index]) for index in fields])
        refused |= {fields[row]: reason for row, reason in made.refused.items()}
        return Fitted(made.batch, [fields[row] for row in made.kept], dict(sorted(refused.items())))

    def fit(self, rows: list[Structured]) -> Fitted:
        """Rows as columns of the schema; those that do not fit are refused, or end the run."""
        made = self._fitted(rows)
        if made.refused and self._drift == "stop":
            raise FatalError(
                f"a record does not fit the schema: {next(iter(made.refused.values()))}",
                suggestion='declare it in `schema`, or let drift="refuse" dead-letter such records',
            )
        return made

    def _fitted(self, rows: list[Structured]) -> Fitted:
        if self.schema is None:
            self.schema = infer(rows)
        if self.schema is None:
            unknown = dict.fromkeys(range(len(rows)), "no type fits its fields")
            return Fitted(pa.RecordBatch.from_pylist([], pa.schema([])), [], unknown)
        return fitted(rows, self.schema, more=self._drift == "ignore")


def frame_of(session: "SparkSession", rows: pa.RecordBatch) -> "DataFrame":
    """The rows as Spark sees them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Left to itself Spark would take times without a zone for times in the session's.
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return session.createDataFrame(pa.Table.from_batches([rows]), schema=schema)


def without_fields(data: Data) -> str:
    """Why a record without structured data makes no row."""
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
