"""Records as rows of Arrow, in a schema that is declared or inferred, and which records do not fit it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import pyarrow as pa

from conduit_connectors.column_policy import with_texts
from conduit_connectors.policy_options import PolicyOptions
from conduit_py.sdk import Data, FatalError, Record, RecordRefused, Structured, encode_json
from conduit_py.sdk.arrow import ARROW_ERRORS, FittedRows, fit_to_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Drift: TypeAlias = Literal["refuse", "ignore", "stop"]
"""What becomes of records that do not fit: refused, or their unknown fields ignored, or the run stopped."""


def parse_schema(ddl: str) -> pa.Schema:
    """The schema that Spark reads in a text such as "id BIGINT, name STRING". Needs a session."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        struct = StructType.fromDDL(ddl)
        assert isinstance(struct, StructType)
        return to_arrow_schema(struct, timezone="UTC")
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise FatalError(
            f"schema {ddl!r} cannot be parsed: {first}",
            suggestion='write columns as in SQL, for example "id BIGINT, name STRING, at TIMESTAMP"',
        ) from error


def infer(rows: Sequence[dict[str, Any]]) -> pa.Schema | None:
    """The schema of the first rows; None if none of them has one."""
    sound = [row for row in rows if row and all(_type_of([value]) is not None for value in row.values())]
    names = dict.fromkeys(name for row in sound for name in row)
    if not names:
        return None
    return pa.schema([pa.field(name, _column_type([row.get(name) for row in sound])) for name in names])


def schema_difference(was: pa.Schema, now: pa.Schema) -> str | None:
    """How two schemas differ, in a few words; None when they do not."""
    before, after = ({field.name: field.type for field in schema} for schema in (was, now))
    changes = [f"{name} is new" for name in after if name not in before]
    changes += [f"{name} is gone" for name in before if name not in after]
    changes += [
        f"{name} was {before[name]} and is {kind}" for name, kind in after.items() if before.get(name, kind) != kind
    ]
    return "; ".join(changes) or None


def _column_type(values: Sequence[Any]) -> pa.DataType:
    found = _type_of(values)
    if found is None:
        # Values of several types: the first decides, and the others will be refused.
        found = _type_of([next(value for value in values if value is not None)])
    assert found is not None
    return _widen(found)


def _type_of(values: Sequence[Any]) -> pa.DataType | None:
    """The Arrow type of the values, if Spark has such a type; otherwise None."""
    try:
        kind = pa.infer_type(values)
        return kind if _known_to_spark(kind) else None
    except ARROW_ERRORS:
        return None


def _known_to_spark(kind: pa.DataType) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        from_arrow_type(kind)
    except PySparkException:
        return False
    return True


def _widen(kind: pa.DataType) -> pa.DataType:
    """A type with room for later values: the most digits for decimals, text where only null was seen."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(_widen(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _widen(field.type)) for field in kind])
    return kind


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

    def rows(self, records: Sequence[Record], source: str) -> FittedRows: ...


class Envelopes:
    """Every record as a row of the schema ENVELOPE, whatever is in it."""

    schema: pa.Schema | None = ENVELOPE

    def rows(self, records: Sequence[Record], source: str) -> FittedRows:
        made: list[dict[str, object]] = []
        kept: list[int] = []
        refused: dict[int, str] = {}
        for index, record in enumerate(records):
            try:
                made.append(_envelope(record, source))
                kept.append(index)
            except RecordRefused as error:
                refused[index] = error.message
        return FittedRows(pa.RecordBatch.from_pylist(made, schema=ENVELOPE), kept, refused)


class Fields:
    """The fields of `payload.after` as columns. Without a schema, the first records that come decide what it is."""

    def __init__(self, schema: pa.Schema | None, policy: PolicyOptions) -> None:
        self.schema = schema
        self._more, self._texts = policy.ignores_new_fields, policy.on_type == "text"
        self._stops = policy.old_spelling == "stop"

    def rows(self, records: Sequence[Record], source: str) -> FittedRows:
        data = [record.payload.after for record in records]
        if {*map(type, data)} == {dict}:
            return self.fit(cast(list[Structured], data))
        refused = {index: without_fields(each) for index, each in enumerate(data) if not isinstance(each, dict)}
        fields = [index for index in range(len(data)) if index not in refused]
        made = self.fit([cast(Structured, data[index]) for index in fields])
        refused |= {fields[row]: reason for row, reason in made.refused.items()}
        return FittedRows(made.batch, [fields[row] for row in made.kept], dict(sorted(refused.items())))

    def fit(self, rows: list[Structured]) -> FittedRows:
        """Rows as columns of the schema; those that do not fit are refused, or end the run."""
        made = self._fit_rows(rows)
        if made.refused and self._stops:
            raise FatalError(
                f"a record does not fit the schema: {next(iter(made.refused.values()))}",
                suggestion='declare it in `columns`, or leave out drift="stop", and such records are dead letters',
            )
        return made

    def _fit_rows(self, rows: list[Structured]) -> FittedRows:
        if self.schema is None:
            self.schema = infer(rows)
        if self.schema is None:
            unknown = dict.fromkeys(range(len(rows)), "no type fits its fields")
            return FittedRows(pa.RecordBatch.from_pylist([], pa.schema([])), [], unknown)
        return fit_to_schema(with_texts(rows, self.schema) if self._texts else rows, self.schema, more=self._more)


def frame_of(session: "SparkSession", rows: pa.RecordBatch) -> "DataFrame":
    """The rows as a DataFrame."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # By default Spark would give times without a zone the session's zone.
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return session.createDataFrame(pa.Table.from_batches([rows]), schema=schema)


def without_fields(data: Data) -> str:
    """The reason why a record without structured data makes no row."""
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
