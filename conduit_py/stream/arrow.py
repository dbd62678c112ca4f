"""Arrow tables: adapts a processor that takes tables to one that takes batches. Needs pyarrow."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain, compress
from typing import Any

import outcome
import pyarrow as pa

from conduit_py.batch import Batch
from conduit_py.errors import ContractBroken, RecordRefused, RunError
from conduit_py.record import Data, Record, Structured
from conduit_py.sdk.arrow import ARROW_ERRORS, FittedRows, columns, fit_to_schema, values_of
from conduit_py.sdk.processor import FunctionProcessor, Processor, Result, Rows
from conduit_py.stream.plugin_calls import is_async
from conduit_py.user_errors import as_plugin_error


def with_tables(node: str, processor: Processor[Any]) -> Callable[[Batch], Any]:
    """Wrap the processor's `process_table` into a call that takes a batch and returns one result per record."""
    call: Callable[..., Any] = processor.process_table
    alone = isinstance(processor, FunctionProcessor) and not processor.batch

    def once(batch: Batch) -> list[Result]:
        calls = _TableCalls(node, batch, processor.table_schema, alone)
        while (arguments := calls.next()) is not None:
            calls.take(outcome.capture(call, *arguments))
        return calls.results

    async def once_async(batch: Batch) -> list[Result]:
        calls = _TableCalls(node, batch, processor.table_schema, alone)
        while (arguments := calls.next()) is not None:
            calls.take(await outcome.acapture(call, *arguments))
        return calls.results

    return once_async if is_async(call) else once


class _TableCalls:
    """Calls a processor with one table for a batch, or with smaller tables where that fails.

    If the processor raises, or the records have no common schema, each half is tried on its own. An error is
    therefore reported only for the record that causes it. `results` is complete once `next` returns None.
    """

    def __init__(self, node: str, batch: Batch, schema: pa.Schema | None, alone: bool) -> None:
        self.results: list[Result] = list(batch.records)
        self._node = node
        self._batch = batch
        self._schema = schema
        self._alone = alone
        self._pending: list[Sequence[int]] = [range(len(batch))]
        self._asked: ArrowBatch | None = None

    def next(self) -> tuple[Any, ...] | None:
        """Return the arguments of the next call, or None when all are done. Call `take` before the next `next`."""
        while self._pending:
            indices = self._pending.pop()
            self._asked = self._make_table(indices)
            if self._asked is not None:
                table, indices = self._asked.table, self._asked.indices
                return (table,) if self._alone else (table, self._batch.select(indices))
        return None

    def take(self, answer: "outcome.Outcome[Any]") -> None:
        """Accept what the last call returned or raised."""
        asked = self._asked
        assert asked is not None
        try:
            returned = answer.unwrap()
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            self._fail(asked.indices, as_plugin_error(error))
            return
        try:
            results = asked.results(self._node, returned)
        except ARROW_ERRORS as error:
            self._fail(asked.indices, RecordRefused(f"a record cannot hold the returned values: {error}"))
            return
        for index, result in zip(asked.indices, results, strict=True):
            self.results[index] = result

    def _make_table(self, indices: Sequence[int]) -> "ArrowBatch | None":
        try:
            made, refused = make_arrow_batch(self._batch, indices, self._schema)
        except NoCommonSchema as error:
            hint = "declare the columns that the processor needs, and their types: @processor(arrow=pa.schema(…))"
            self._fail(indices, RecordRefused(str(error), suggestion=hint))
            return None
        for index, reason in refused.items():
            self.results[index] = reason
        return made

    def _fail(self, indices: Sequence[int], error: Exception) -> None:
        """Try each half, the earlier one first. With a single record, the error is the result of that record."""
        if len(indices) == 1:
            self.results[indices[0]] = error
            return
        middle = len(indices) // 2
        # A stack: the earlier half goes on top, so that a processor sees the records in order.
        self._pending += [indices[middle:], indices[:middle]]


class ArrowBatch:
    """The records of a batch at `indices`, and their fields as a table with one row per record.

    Records change only after the whole answer is validated, and only where it differs from the table. A value
    that the processor did not change is therefore never replaced by its Arrow conversion.
    """

    def __init__(self, indices: Sequence[int], records: Sequence[Record], rows: pa.RecordBatch) -> None:
        self.indices = indices
        self.table = pa.Table.from_batches([rows])
        self._records = records

    def results(self, node: str, answer: object) -> list[Result]:
        """Return the results in order. Raises one of ARROW_ERRORS for values that no record can hold."""
        answered = _read(node, answer)
        results: list[Result] = list(self._records)
        if answered.keep is not None:
            keep = self._read_column(node, answered.keep, "keep", pa.types.is_boolean)
            results = [result if kept else None for result, kept in zip(results, keep, strict=True)]
        if answered.refuse is not None:
            for row, reason in enumerate(self._read_column(node, answered.refuse, "refuse", _is_text)):
                results[row] = results[row] if reason is None else RecordRefused(reason)
        if answered.table is not None:
            self._change(node, answered.table, [isinstance(result, Record) for result in results])
        return results

    def _read_column(self, node: str, column: Any, name: str, fits: Any) -> list[Any]:
        if not isinstance(column, pa.Array | pa.ChunkedArray) or not fits(column.type):
            found = column.type if hasattr(column, "type") else type(column).__name__
            kind = "booleans" if name == "keep" else "texts"
            raise ContractBroken(node, f"returned Rows whose `{name}` is {found}: it must be an Arrow array of {kind}")
        self._check_length(node, len(column))
        values: list[Any] = column.to_pylist()
        return values

    def _check_length(self, node: str, length: int) -> None:
        if length != len(self._records):
            hint = "row i of both tables must be the same record; to filter, return Rows(table, keep=mask)"
            raise ContractBroken(node, f"returned {length} rows for a table of {len(self._records)} rows: {hint}")

    def _change(self, node: str, table: pa.Table | pa.RecordBatch, stays: list[bool]) -> None:
        self._check_length(node, table.num_rows)
        names = table.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ContractBroken(node, f"returned a table with two columns named {twice!r}")
        # All values are converted before the first change: one that fails must leave every record as it was.
        changed = {name: _values(table.column(name)) for name in names if not self._is_same(name, table)}
        fields: list[Any] = [record.payload.after for record in compress(self._records, stays)]
        for name in self.table.column_names:
            if name not in names:
                for after in fields:
                    after.pop(name, None)
        for name, values in changed.items():
            had_column = name in self.table.column_names
            for after, value in zip(fields, compress(values, stays), strict=True):
                # The table has a null where a record lacks the field. Writing it back would add the field.
                if value is not None or not had_column or name in after:
                    after[name] = value

    def _is_same(self, name: str, table: pa.Table | pa.RecordBatch) -> bool:
        if name not in self.table.column_names:
            return False
        before, after = self.table.column(name), table.column(name)
        return before.type == after.type and bool(_bits(before).equals(_bits(after)))


class NoCommonSchema(Exception):
    """The records have no common schema; for a single record, the message is the reason it has none."""


def make_arrow_batch(
    batch: Batch, indices: Sequence[int], schema: pa.Schema | None
) -> tuple[ArrowBatch | None, dict[int, Result]]:
    """Return the records at these indices that fit the schema, if any, and the errors of the others.

    Without a schema, one is inferred. Raises NoCommonSchema if no schema fits all records that have fields.
    """
    rows: list[Any] = [batch.records[index].payload.after for index in indices]
    refused: dict[int, Result] = {}
    if set(map(type, rows)) != {dict}:
        pairs = zip(indices, rows, strict=True)
        refused |= {index: _without_fields(row) for index, row in pairs if not isinstance(row, dict)}
        rows = [row for row in rows if isinstance(row, dict)]
        indices = [index for index in indices if index not in refused]
    if not rows:
        return None, refused
    made = fit_to_schema(rows, schema, more=True) if schema is not None else _fitted_by_their_own(rows)
    if made.refused:
        refused |= {indices[row]: RecordRefused(reason) for row, reason in made.refused.items()}
        indices = [indices[row] for row in made.kept]
    return (ArrowBatch(indices, [batch.records[index] for index in indices], made.batch) if indices else None), refused


def _fitted_by_their_own(rows: list[Structured]) -> FittedRows:
    made = fit_to_schema(rows, _schema_of(rows))
    if made.refused:
        raise NoCommonSchema(next(iter(made.refused.values())))
    return made


def _schema_of(rows: list[Structured]) -> pa.Schema:
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


def _without_fields(data: Data) -> RecordRefused:
    if data is None:
        hint = "skip such records with when=lambda record: record.payload.after is not None"
        return RecordRefused("payload.after is absent, so there are no fields for columns", suggestion=hint)
    hint = 'decode it first, for example with the processor "json.decode"'
    return RecordRefused("payload.after is raw bytes, so there are no fields for columns", suggestion=hint)


def _read(node: str, answer: object) -> Rows:
    if isinstance(answer, Rows):
        if answer.table is None or isinstance(answer.table, pa.Table | pa.RecordBatch):
            return answer
        answer = answer.table
    if isinstance(answer, pa.Table | pa.RecordBatch):
        return Rows(answer)
    if isinstance(answer, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(answer.type):
        return Rows(keep=answer)
    kind = f"an array of {answer.type}" if isinstance(answer, pa.Array | pa.ChunkedArray) else type(answer).__name__
    ways = "a pyarrow.Table or RecordBatch, a boolean array of the rows to keep, or Rows"
    raise ContractBroken(node, f"returned {kind}: return {ways}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _bits(column: Any) -> Any:
    """Return the column in a form that compares bit by bit."""
    # Compared as floats, an unchanged NaN would look changed, and a change from 0.0 to -0.0 would be lost.
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_float64(whole.type):
        return whole.view(pa.int64())
    return whole.view(pa.int32()) if pa.types.is_float32(whole.type) else whole


def _values(column: Any) -> Sequence[Any]:
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
