"""Arrow tables: adapts a processor that takes tables to one that takes batches. Needs pyarrow."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import outcome
import pyarrow as pa
import pyarrow.compute as pc

from conduit_py.arrow_values import ARROW_ERRORS, check_values, is_same, python_values
from conduit_py.batch import Batch
from conduit_py.errors import ContractBroken, RecordRefused, RunError
from conduit_py.record import Data, Record, Structured
from conduit_py.sdk.arrow import FittedRows, NoCommonSchema, fit_to_schema, infer_schema, select_columns
from conduit_py.sdk.processor import FunctionProcessor, Processor, Result, Rows
from conduit_py.stream.plugin_calls import is_async
from conduit_py.stream.processor_calls import TableChange
from conduit_py.user_errors import as_plugin_error


def with_tables(node: str, processor: Processor[Any]) -> Callable[[Batch], Any]:
    """Wrap the processor's `process_table` into a call that takes a batch and returns one result per record.

    For a batch that holds a table it returns a single TableChange, unless a row must be looked at by itself.
    """
    call: Callable[..., Any] = processor.process_table
    alone = isinstance(processor, FunctionProcessor) and not processor.batch

    def once(batch: Batch) -> list[Any]:
        calls = _TableCalls(node, batch, processor.table_schema, alone)
        while (arguments := calls.next()) is not None:
            calls.take(outcome.capture(call, *arguments))
        return calls.results

    async def once_async(batch: Batch) -> list[Any]:
        calls = _TableCalls(node, batch, processor.table_schema, alone)
        while (arguments := calls.next()) is not None:
            calls.take(await outcome.acapture(call, *arguments))
        return calls.results

    return once_async if is_async(call) else once


class _TableCalls:
    """Calls a processor with one table for a batch, or with smaller tables where that fails.

    If the processor raises, or the records have no common schema, each half is tried on its own. An error is
    therefore reported only for the record that causes it. `results` is complete once `next` returns None.

    The table of a batch that holds one is the first argument as it is. No record is made while all goes well.
    """

    def __init__(self, node: str, batch: Batch, schema: pa.Schema | None, alone: bool) -> None:
        self.results: list[Any] = []
        self._node = node
        self._batch = batch
        self._schema = schema
        self._alone = alone
        self._asked: ArrowBatch | None = None
        table = batch.table
        self._given = table if table is None or schema is None else select_columns(table, schema)
        """What the processor gets of a batch that holds a table, also when it gets parts of it."""
        self._pending: list[Sequence[int]] = [range(len(batch))]
        self._whole = self._given is not None
        self._looked_at = batch
        if not self._whole:
            self.results = list(batch.records)

    def next(self) -> tuple[Any, ...] | None:
        """Return the arguments of the next call, or None when all are done. Call `take` before the next `next`."""
        while self._pending:
            indices = self._pending.pop()
            if self._whole:
                # A copy: if the processor asks it for records, this batch still holds its table.
                self._looked_at = self._batch.copy(deep=False)
                return (self._given,) if self._alone else (self._given, self._looked_at)
            self._asked = self._make_table(indices)
            if self._asked is not None:
                table, indices = self._asked.table, self._asked.indices
                return (table,) if self._alone else (table, self._batch.select(indices))
        return None

    def take(self, answer: "outcome.Outcome[Any]") -> None:
        """Accept what the last call returned or raised."""
        asked = self._asked
        indices = range(len(self._batch)) if asked is None else asked.indices
        try:
            returned = answer.unwrap()
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            self._fail(indices, as_plugin_error(error))
            return
        try:
            results = self._change(returned) if asked is None else asked.results(self._node, returned)
        except ARROW_ERRORS as error:
            self._fail(indices, RecordRefused(f"a record cannot hold the returned values: {error}"))
            return
        if isinstance(results, TableChange):
            self.results = [results]
            return
        for index, result in zip(indices, results, strict=True):
            self.results[index] = result

    def _change(self, returned: object) -> "TableChange | list[Result]":
        """Return what the answer about the whole table means."""
        table = self._batch.table
        assert table is not None
        assert self._given is not None
        looked_at = self._looked_at
        # A processor that looked at the rows may have changed them too.
        if looked_at.table is not None:
            change = change_table(self._node, table, self._given, returned)
            if change is not None:
                return change
        self._make_rows()
        # The payloads of both are the same dicts.
        records = looked_at.records if looked_at.holds_records else self._batch.records
        return ArrowBatch(range(len(self._batch)), records, self._given).results(self._node, returned)

    def _make_rows(self) -> None:
        """Go on with records, because a row must be looked at by itself."""
        if self._whole:
            self._whole = False
            self.results = list(self._batch.records)

    def _make_table(self, indices: Sequence[int]) -> "ArrowBatch | None":
        if self._given is not None:
            records = [self._batch.records[index] for index in indices]
            return ArrowBatch(indices, records, self._given.take(list(indices)))
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
        self._make_rows()
        if len(indices) == 1:
            self.results[indices[0]] = error
            return
        middle = len(indices) // 2
        # A stack: the earlier half goes on top, so that a processor sees the records in order.
        self._pending += [indices[middle:], indices[:middle]]


def change_table(node: str, table: pa.Table, given: pa.Table, answer: object) -> TableChange | None:
    """Return what an answer changes in a table, of which the processor got the columns of `given`.

    None if the result must be in records, for example because no record can hold one of its values.
    """
    answered = _read(node, answer)
    rows = table.num_rows
    stays: Any = None
    if answered.keep is not None:
        _check_column(node, answered.keep, "keep", pa.types.is_boolean, rows)
        stays = pc.fill_null(answered.keep, False)
    refused: dict[int, Exception] = {}
    if answered.refuse is not None:
        _check_column(node, answered.refuse, "refuse", _is_text, rows)
        accepted = pc.is_null(answered.refuse)
        refused = {row: RecordRefused(answered.refuse[row].as_py()) for row in _false_rows(accepted)}
        if refused:
            stays = accepted if stays is None else pc.and_(stays, accepted)
    if answered.table is not None:
        _check_table(node, answered.table, rows)
        try:
            table = _put_columns(table, given, answered.table)
        except ARROW_ERRORS:
            return None
        if not table.num_columns:
            # Arrow forgets the number of rows of a table without columns when it is sliced.
            return None
    gone = [] if stays is None else _false_rows(stays)
    return TableChange(table.filter(stays) if gone else table, gone, refused)


def _false_rows(column: Any) -> list[int]:
    rows: list[int] = pc.indices_nonzero(pc.invert(column)).to_pylist()
    return rows


def _put_columns(table: pa.Table, given: pa.Table, answered: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the table with the answered columns in place of those given."""
    names = answered.schema.names
    same = {name for name in given.schema.names if name in names and is_same(given.column(name), answered.column(name))}
    changed = [name for name in names if name not in same]
    check_values(answered.select(changed))
    lost = {*given.schema.names}.difference(names)
    # In the order of the table, as a record keeps the order of its fields.
    columns = {name: table.column(name) for name in table.column_names if name not in lost}
    columns |= {name: answered.column(name) for name in changed}
    return pa.table(columns)


class ArrowBatch:
    """The records of a batch at `indices`, and their fields as a table with one row per record.

    Records change only after the whole answer is validated, and only where it differs from the table. A value
    that the processor did not change is therefore never replaced by its Arrow conversion.
    """

    def __init__(self, indices: Sequence[int], records: Sequence[Record], table: pa.Table) -> None:
        self.indices = indices
        self.table = table
        self._records = records

    def results(self, node: str, answer: object) -> list[Result]:
        """Return the results in order. Raises one of ARROW_ERRORS for values that no record can hold."""
        answered = _read(node, answer)
        results: list[Result] = list(self._records)
        if answered.keep is not None:
            _check_column(node, answered.keep, "keep", pa.types.is_boolean, len(results))
            kept = answered.keep.to_pylist()
            results = [result if keep else None for result, keep in zip(results, kept, strict=True)]
        if answered.refuse is not None:
            _check_column(node, answered.refuse, "refuse", _is_text, len(results))
            for row, reason in enumerate(answered.refuse.to_pylist()):
                results[row] = results[row] if reason is None else RecordRefused(reason)
        if answered.table is not None:
            self._change(node, answered.table, [isinstance(result, Record) for result in results])
        return results

    def _change(self, node: str, table: pa.Table | pa.RecordBatch, stays: list[bool]) -> None:
        _check_table(node, table, len(self._records))
        names = table.schema.names
        # All values are converted before the first change: one that fails must leave every record as it was.
        changed = {name: python_values(table.column(name)) for name in names if not self._is_same(name, table)}
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


def _check_column(node: str, column: Any, name: str, fits: Callable[[Any], bool], rows: int) -> None:
    if not isinstance(column, pa.Array | pa.ChunkedArray) or not fits(column.type):
        found = column.type if hasattr(column, "type") else type(column).__name__
        kind = "booleans" if name == "keep" else "texts"
        raise ContractBroken(node, f"returned Rows whose `{name}` is {found}: it must be an Arrow array of {kind}")
    _check_length(node, len(column), rows)


def _check_table(node: str, table: pa.Table | pa.RecordBatch, rows: int) -> None:
    _check_length(node, table.num_rows, rows)
    names = table.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ContractBroken(node, f"returned a table with two columns named {twice!r}")


def _check_length(node: str, length: int, rows: int) -> None:
    if length != rows:
        hint = "row i of both tables must be the same record; to filter, return Rows(table, keep=mask)"
        raise ContractBroken(node, f"returned {length} rows for a table of {rows} rows: {hint}")


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
    if not indices:
        return None, refused
    return ArrowBatch(indices, [batch.records[index] for index in indices], pa.table(made.batch)), refused


def _fitted_by_their_own(rows: list[Structured]) -> FittedRows:
    made = fit_to_schema(rows, infer_schema(rows))
    if made.refused:
        raise NoCommonSchema(next(iter(made.refused.values())))
    return made


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
