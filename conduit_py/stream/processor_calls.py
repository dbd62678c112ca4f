"""Processor calls: what stands around the call of a processor, for those that declare it.

Conditions and retries come first; then calls of a processor that takes payloads with records, with payloads of another
type, or with a batch. Last, changes of its state, which are all kept or all undone.
"""

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import trio

from conduit_py.backoff import Retry, delay_after
from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer, RecordRefused
from conduit_py.payload_type import PayloadType
from conduit_py.payloads import TableRows, is_payload, to_plain
from conduit_py.record import Payload, Record
from conduit_py.sdk.processor import Processor
from conduit_py.sdk.state import Defer, State
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.user_errors import as_plugin_error

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_py.stream.processor_node import ProcessorNode


class GivenUp(NamedTuple):
    """The result for a record that failed in every attempt: the last error, and the record as it came to this node."""

    error: Exception
    attempts: int
    record: Record


class TableChange(NamedTuple):
    """What an Arrow processor made of a batch that holds a table: one result for all of its messages.

    `table` has the rows that stay. `gone` are the indices of the others, in order, and `refused` says which of
    those are refused, and why. The rest of them is filtered.
    """

    table: "pa.Table"
    gone: list[int]
    refused: dict[int, Exception]

    def apply(self, batch: Batch, node: "ProcessorNode") -> Batch:
        """Cast the votes of the messages that end here; return the batch of the others."""
        for index, error in self.refused.items():
            node.refuse(batch, index, GivenUp(error, 1, batch.record(index)))
        if filtered := [batch.sequences[index] for index in self.gone if index not in self.refused]:
            node.filter(batch, filtered)
        rows = TableRows(self.table)
        return batch.without(self.gone, rows, dict) if self.gone else batch.with_values(rows, dict)


class SameResults(msgspec.Struct, eq=False):
    """What a function returned for each of some records or payloads: mostly the value itself, or None.

    Most processors change what they get, and return it or None. As long as they do, no list of results is made.
    """

    values: list[Any]
    gone: list[int] | None = []
    """The indices of the values whose result is None; None if some result is something else."""
    others: list[Any] = []
    """All results, if some of them is something else."""

    def note(self, result: Any, index: int) -> None:
        """Note the result of the value at this index, which is something else."""
        if self.gone is not None:
            self.others, self.gone = self.listed()[:index], None
        self.others.append(result)

    def listed(self) -> list[Any]:
        """Return one result per value, in order."""
        if self.gone is None:
            return self.others
        results = list(self.values)
        for index in self.gone:
            results[index] = None
        return results


Results: TypeAlias = list[Any] | SameResults
"""One result per record, in order: a record or payload, None, a list, an error, or GivenUp. Or one TableChange."""
ResultsOf: TypeAlias = Callable[[Batch], Results | Awaitable[Results]]


async def finish(pending: Results | Awaitable[Results]) -> list[Any]:
    """Return results that may have to be awaited, as a list."""
    results = pending if isinstance(pending, (SameResults, list)) else await pending
    return results.listed() if isinstance(results, SameResults) else results


def where(when: Callable[[Record], bool], results_of: ResultsOf) -> Callable[[Batch], Awaitable[Results]]:
    """Call only with the records for which the condition is true; each of the others is its own result."""

    async def results_where(batch: Batch) -> Results:
        chosen, results = _choose(when, batch.records)
        if chosen:
            answers = await finish(results_of(batch.select(chosen)))
            for index, answer in zip(chosen, answers, strict=True):
                results[index] = answer
        return results

    return results_where


def _choose(when: Callable[[Record], bool], records: list[Record]) -> tuple[list[int], list[Any]]:
    """Return the indices for which the condition is true, and the results of the others."""
    results: list[Any] = list(records)
    chosen = []
    for index, record in enumerate(records):
        try:
            if when(record):
                chosen.append(index)
        except Defer as error:
            raise CannotDefer("a condition raised Defer", suggestion="raise it in the processor itself") from error
        except BaseException as error:  # plugin boundary: the condition is the user's
            results[index] = as_plugin_error(error)
    return chosen, results


def with_retries(
    attempt: ResultsOf, retry: Retry, meter: Meter, rng: random.Random
) -> Callable[[Batch], Awaitable[Results]]:
    """Repeat the attempt for the records that fail, by the policy."""

    async def results_with_retries(batch: Batch) -> Results:
        # A failed attempt may have changed its record; every attempt starts from the record as it came.
        pristine = [record.copy() for record in batch.records]
        results = await finish(attempt(batch))
        attempts = dict.fromkeys(range(len(batch)), 1)
        for number in range(1, retry.attempts):
            failed = [index for index, result in enumerate(results) if _worth_retrying(result)]
            if not failed:
                break
            meter.retries += 1
            with meter.waiting(WaitReason.BACK_OFF):
                delay = retry.delay(number, rng)
                await trio.sleep(max(delay_after(results[index], delay) for index in failed))
            part = batch.select(failed).with_values([pristine[index].copy() for index in failed])
            again = await finish(attempt(part))
            for index, result in zip(failed, again, strict=True):
                results[index] = result
                attempts[index] = number + 1
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, Defer):
                results[index] = GivenUp(result, attempts[index], pristine[index])
        return results

    return results_with_retries


def _worth_retrying(result: object) -> bool:
    return isinstance(result, Exception) and not isinstance(result, RecordRefused | Defer)


def processing_method(node: str, processor: Processor[Any]) -> Callable[..., Any]:
    """Return the method that processes a batch or a record."""
    if not processor.by_table:
        return processor.process_batch if processor.by_batch else processor.process
    # Imported only here: pyarrow may not be installed, and it is slow to import.
    from conduit_py.stream.arrow import with_tables

    return with_tables(node, processor)


def on_any(call: Callable[[Any], Any], convert: Callable[[Any], Any], *, is_async: bool) -> Callable[[Any], Any]:
    """Call with a payload of another type."""

    async def once_async(value: Any) -> Any:
        return await call(convert(value))

    return once_async if is_async else lambda value: call(convert(value))


def on_record(
    call: Callable[..., Any], kind: PayloadType | None, *, is_async: bool, metadata: bool
) -> Callable[..., Any]:
    """Call with the payload of a record, or with its metadata too; the result becomes one about the record."""

    def arguments(record: Record) -> tuple[Any, dict[str, Any]]:
        value = record if kind is None else kind.convert(record.payload.after)
        return value, {"metadata": record.metadata} if metadata else {}

    def once(record: Record, *more: Any) -> Any:
        value, named = arguments(record)
        return _about(record, call(value, *more, **named))

    async def once_async(record: Record, *more: Any) -> Any:
        value, named = arguments(record)
        return _about(record, await call(value, *more, **named))

    return once_async if is_async else once


def _about(record: Record, result: Any) -> Any:
    """Return the result about a payload as one about the record that has it."""
    if isinstance(result, list):
        return [_piece(record, value) if is_payload(type(value)) else value for value in result]
    if not is_payload(type(result)):
        return result
    record.payload.after = to_plain(result)
    return record


def _piece(record: Record, value: Any) -> Record:
    payload = Payload(record.payload.before, to_plain(value))
    return Record(record.position, record.operation, dict(record.metadata), record.key, payload)


def on_batch(
    call: Callable[..., Any], kind: PayloadType | None, *, is_async: bool, metadata: bool
) -> Callable[..., Any]:
    """Call with the payloads of a batch of records; the results become results about the records."""
    assert kind is not None
    assert not metadata

    def once(batch: Batch, *more: Any) -> Any:
        results = on_payloads(call, kind, batch, more, is_async=False)(batch.payloads)
        return list(map(_about, batch.records, results)) if len(results) == len(batch) else results

    async def once_async(batch: Batch, *more: Any) -> Any:
        results = await on_payloads(call, kind, batch, more, is_async=True)(batch.payloads)
        return list(map(_about, batch.records, results)) if len(results) == len(batch) else results

    return once_async if is_async else once


def on_payloads(
    call: Callable[..., Any], kind: PayloadType, batch: Batch, more: tuple[Any, ...] = (), *, is_async: bool
) -> Callable[..., Any]:
    """Call once with those payloads that fit the type. The others are refused, and the call does not see them."""
    misfits: dict[int, Exception] = {}

    def fitting(values: list[Any]) -> list[Any]:
        if kind.accepts(batch.kind):
            return values
        fits = []
        for index, value in enumerate(values):
            try:
                fits.append(kind.convert(value))
            except RecordRefused as error:
                misfits[index] = error
        return fits

    def complete(results: Any) -> Any:
        if not misfits:
            return results
        rest = list(results)
        if len(rest) == len(batch) - len(misfits):
            for index in sorted(misfits):
                rest.insert(index, misfits[index])
        return rest

    async def once_async(values: list[Any]) -> Any:
        fits = fitting(values)
        return complete(await call(fits, *more) if fits else [])

    def once(values: list[Any]) -> Any:
        fits = fitting(values)
        return complete(call(fits, *more) if fits else [])

    return once_async if is_async else once


def with_atomic_state(
    call: Callable[..., Any], state: State, *, is_async: bool, passes_state: bool, defers: bool = False
) -> Callable[[Record | Batch], Any]:
    """Wrap a call so that it changes its state only if it succeeds; an error as its result undoes the changes.

    With `passes_state`, the call takes the state as its second argument. With `defers`, the call may change a record
    and then defer it; the resulting Defer carries the record as it was before the call.
    """
    more = (state,) if passes_state else ()

    def once(subject: Record | Batch) -> Any:
        state.advance()
        # A deferred record is processed again in the next transaction, so it must be as it was before.
        originals = _copy(subject) if defers else []
        try:
            return _keep(state, subject, call(subject, *more), originals)
        except Defer:
            return _defer(state, subject, originals)
        except BaseException:
            state.undo()
            raise

    async def once_async(subject: Record | Batch) -> Any:
        state.advance()
        originals = _copy(subject) if defers else []
        try:
            return _keep(state, subject, await call(subject, *more), originals)
        except Defer:
            return _defer(state, subject, originals)
        # Cancellation too: the next run must not see half of the changes that one record makes.
        except BaseException:
            state.undo()
            raise

    return once_async if is_async else once


def _copy(subject: Record | Batch) -> list[Record]:
    return [subject.copy()] if isinstance(subject, Record) else [record.copy() for record in subject]


def _keep(state: State, subject: Record | Batch, result: Any, originals: list[Record]) -> Any:
    if isinstance(result, Defer):
        raise result
    if isinstance(result, Exception):
        state.undo()
        return result
    if originals and not isinstance(subject, Record) and isinstance(result, Iterable):
        return _keep_in_part(state, list(result), originals)
    state.keep()
    return result


def _keep_in_part(state: State, results: list[Any], originals: list[Record]) -> list[Any]:
    """Return the results of a batch whose end may be deferred; the state changes belong to the records before it."""
    first = next((index for index, result in enumerate(results) if isinstance(result, Defer)), len(results))
    if first == len(results) or len(results) != len(originals):
        state.keep()
        return results
    if not all(isinstance(result, Defer) for result in results[first:]):
        # I17: a record behind a deferred one must not be in this commit.
        raise CannotDefer(
            "a record was deferred, but not all records behind it: the next transaction would reorder them",
            suggestion="return Defer() for the first deferred record and for all records behind it",
        )
    if first == 0:
        state.defer()
    else:
        state.keep()
    return results[:first] + [Defer(record) for record in originals[first:]]


def _defer(state: State, subject: Record | Batch, originals: list[Record]) -> Any:
    state.defer()
    if not originals:
        raise Defer
    if isinstance(subject, Record):
        raise Defer(originals[0])
    return list(map(Defer, originals))
