"""Tables: a processor that takes Arrow tables, as one that takes batches. Needs pyarrow."""

from collections.abc import Callable, Sequence
from typing import Any

import outcome
import pyarrow as pa

from conduit_py.batch import Batch
from conduit_py.errors import RecordRefused, RunError
from conduit_py.sdk.columns import ARROW_ERRORS
from conduit_py.sdk.processor import FunctionProcessor, Processor, Result
from conduit_py.stream.calls import is_async
from conduit_py.stream.sheet import Sheet, Unlike, sheet


def in_tables(node: str, processor: Processor[Any]) -> Callable[[Batch], Any]:
    """The processor's `process_table` as a call that takes a batch and gives a result for each record."""
    call = processor.process_table
    alone = isinstance(processor, FunctionProcessor) and not processor.batch

    def once(batch: Batch) -> list[Result]:
        asking = Asking(node, batch, processor.table_schema, alone)
        while (given := asking.next()) is not None:
            asking.take(outcome.capture(call, *given))
        return asking.results

    async def once_async(batch: Batch) -> list[Result]:
        asking = Asking(node, batch, processor.table_schema, alone)
        while (given := asking.next()) is not None:
            asking.take(await outcome.acapture(call, *given))
        return asking.results

    return once_async if is_async(call) else once


class Asking:
    """Asks a processor about a batch: with one table if that goes well, else with smaller ones.

    Where it raises, or the records have no schema in common, the halves are asked about on their own, so that what is
    wrong with one record is told of that one alone. `results` has a result for every record once `next` gives None.
    """

    def __init__(self, node: str, batch: Batch, schema: pa.Schema | None, alone: bool) -> None:
        self.results: list[Result] = list(batch.records)
        self._node = node
        self._batch = batch
        self._schema = schema
        self._alone = alone
        self._pending: list[Sequence[int]] = [range(len(batch))]
        self._sheet: Sheet | None = None

    def next(self) -> tuple[Any, ...] | None:
        """What to call the processor with; None when all is said. The answer must be taken before the next."""
        while self._pending:
            indices = self._pending.pop()
            self._sheet = self._laid_out(indices)
            if self._sheet is not None:
                table, indices = self._sheet.table, self._sheet.indices
                return (table,) if self._alone else (table, self._batch.select(indices))
        return None

    def take(self, answer: "outcome.Outcome[Any]") -> None:
        asked = self._sheet
        assert asked is not None
        try:
            returned = answer.unwrap()
        except RunError:
            raise
        except Exception as error:  # a border: the processor is the user's
            self._failed(asked.indices, error)
            return
        try:
            results = asked.results(self._node, returned)
        except ARROW_ERRORS as error:
            self._failed(asked.indices, RecordRefused(f"what came of it cannot be held by a record: {error}"))
            return
        for index, result in zip(asked.indices, results, strict=True):
            self.results[index] = result

    def _laid_out(self, indices: Sequence[int]) -> Sheet | None:
        try:
            made, refused = sheet(self._batch, indices, self._schema)
        except Unlike as error:
            hint = "name the columns that the processor needs, and their types: @processor(arrow=pa.schema(…))"
            self._failed(indices, RecordRefused(str(error), suggestion=hint))
            return None
        for index, reason in refused.items():
            self.results[index] = reason
        return made

    def _failed(self, indices: Sequence[int], error: Exception) -> None:
        """Ask about the halves, the earlier one first; with one record left it is that record's fault."""
        if len(indices) == 1:
            self.results[indices[0]] = error
            return
        middle = len(indices) // 2
        self._pending += [indices[middle:], indices[:middle]]
