"""WorkerPool and ProcessorWorker: apply a processor to batches, with condition, retries, workers and threads."""

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import trio

from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer, ContractBroken, RecordRefused, RunError, TransientError
from conduit_py.pipeline import Processor
from conduit_py.record import Record
from conduit_py.sdk.processor import FunctionProcessor, Result
from conduit_py.sdk.processor import Processor as ProcessorPlugin
from conduit_py.sdk.state import Defer, State
from conduit_py.stream.atomic_state import with_atomic_state
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, ThreadStay, is_async, plugin_errors, shallow_copy
from conduit_py.user_errors import as_plugin_error


class GivenUp(NamedTuple):
    """A record for which every attempt failed: the number of attempts, and the record as it came to this node."""

    attempts: int
    record: Record


Results: TypeAlias = tuple[list[Result], dict[int, GivenUp]]
"""One result per record, errors included as values, and details of the records that failed."""


class WorkerPool:
    """Applies one definition of a processor to batches, in order, from `open` to `close`.

    `results` returns one result per record and raises only fatal errors. A record that `when` excludes is its own
    result. Invariant 1: with several workers a batch is cut into as many parts, and their results are joined in order.
    """

    results: Callable[[Batch], Awaitable[Results]]

    def __init__(
        self, node: str, declared: Processor, meter: Meter, rng: random.Random, state: State | None = None
    ) -> None:
        assert declared.processor is not None
        self._node = node
        self._retry = declared.retry
        self._all_results = self._attempt_once if declared.retry.attempts == 1 else self._attempt_with_retries
        self.results = self._all_results if declared.when is None else partial(self._results_where, declared.when)
        self._meter = meter
        self._rng = rng
        in_thread, plugin = declared.workers > 1, declared.processor
        self._workers = [
            ProcessorWorker(node, plugin.fresh(), always_in_thread=in_thread, state=state)
            for _ in range(declared.workers)
        ]
        self._attempt = self._share_out if declared.workers > 1 else partial(self._run, self._workers[0])
        self.opened: list[ProcessorWorker] = []
        """The workers that `close_all` has to close, also after a failed `open`."""

    async def open(self) -> None:
        for worker in self._workers:
            # Before `open`: a processor whose `open` failed may hold resources that `close` releases.
            self.opened.append(worker)
            await worker.open()

    async def _results_where(self, when: Callable[[Record], bool], batch: Batch) -> Results:
        chosen, results = _choose(when, batch.records)
        if not chosen:
            return results, {}
        answers, given_up = await self._all_results(batch.select(chosen))
        for index, answer in zip(chosen, answers, strict=True):
            results[index] = answer
        return results, {chosen[index]: each for index, each in given_up.items()}

    async def _attempt_once(self, batch: Batch) -> Results:
        with self._meter.timing(self._meter.calls):
            return await self._attempt(batch), {}

    async def _attempt_with_retries(self, batch: Batch) -> Results:
        # A failed attempt may have changed its record; every attempt starts from the record as it came.
        pristine = [record.copy() for record in batch.records]
        with self._meter.timing(self._meter.calls):
            results = await self._attempt(batch)
        attempts = dict.fromkeys(range(len(batch)), 1)
        for attempt in range(1, self._retry.attempts):
            failed = [index for index, result in enumerate(results) if _worth_retrying(result)]
            if not failed:
                break
            self._meter.retries += 1
            with self._meter.waiting(WaitReason.BACK_OFF):
                await trio.sleep(self._retry.delay(attempt, self._rng))
            with self._meter.timing(self._meter.calls):
                part = batch.select(failed)
                part.records = [pristine[index].copy() for index in failed]
                again = await self._attempt(part)
            for index, result in zip(failed, again, strict=True):
                results[index] = result
                attempts[index] = attempt + 1
        errors = [index for index, result in enumerate(results) if isinstance(result, Exception)]
        return results, {index: GivenUp(attempts[index], pristine[index]) for index in errors}

    async def _run(self, worker: "ProcessorWorker", batch: Batch) -> list[Result]:
        try:
            # An error raised here ends the run. It must name this node, whatever task runs the chain.
            with plugin_errors(self._node, "process"):
                if worker.state is not None:
                    worker.state.enter(batch)
                return await worker.run(batch)
        except TransientError as error:
            # As a result, not raised, so that the retry policy applies. The error blames no single record.
            return [error] * len(batch)

    async def _share_out(self, batch: Batch) -> list[Result]:
        size = -(-len(batch) // len(self._workers))
        parts = [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
        results: list[list[Result]] = [[] for _ in parts]  # Invariant 1: joined in the order of the parts.

        async def work(number: int) -> None:
            results[number] = await self._run(self._workers[number], batch.select(parts[number]))

        async with trio.open_nursery() as nursery:
            for number in range(len(parts)):
                nursery.start_soon(work, number)
        return [result for part in results for result in part]


async def close_all(pools: Sequence[WorkerPool]) -> None:
    """Close every opened worker of these pools concurrently, so that none delays the others; raise the first error."""
    errors: list[RunError] = []

    async def close(worker: ProcessorWorker) -> None:
        try:
            await worker.close()
        except RunError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for pool in pools:
            # Taken out first: a hot swap and the end of the run may both close a pool, but a worker only once.
            opened, pool.opened = pool.opened, []
            for worker in opened:
                nursery.start_soon(close, worker)
    if errors:
        raise errors[0]


def _choose(when: Callable[[Record], bool], records: list[Record]) -> tuple[list[int], list[Result]]:
    """Return the indices for which the condition is true, and the results of the others."""
    results: list[Result] = list(records)
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


def _worth_retrying(result: Result) -> bool:
    return isinstance(result, Exception) and not isinstance(result, RecordRefused | Defer)


class ProcessorWorker:
    """One worker of a processor node, with its own processor.

    `run` returns one result per record, in order, errors included as values. It raises only errors that end the
    run. A sync processor runs in the event loop while it is fast, which saves a change of threads per batch.
    It runs in its own thread if it has an `open` or declares `blocking`, and for a while if it proves slow.
    """

    run: Callable[[Batch], Awaitable[list[Result]]]

    def __init__(
        self, node: str, processor: ProcessorPlugin[Any], *, always_in_thread: bool = False, state: State | None = None
    ) -> None:
        self._node = node
        self._caller = PluginCaller(node, processor)
        self._processor = processor
        self._by_batch = processor.by_batch or processor.by_table
        self._call = _form(node, processor)
        self._async = is_async(self._call)
        self._in_thread = always_in_thread or self._blocks(processor)
        self.stay = ThreadStay()
        self.state = state if processor.stateful else None
        """Call its `enter` with a batch before `run`."""
        if self.state is not None:
            self._keep_state(self.state)
        self.run = self._way()

    def _keep_state(self, state: State) -> None:
        """Attach the state: a function is shared between runs, so it gets the state with every call."""
        is_function = isinstance(self._processor, FunctionProcessor)
        if not is_function:
            self._processor.state = state
        defers = self._processor.defers
        self._call = with_atomic_state(self._call, state, is_async=self._async, passes_state=is_function, defers=defers)

    def _blocks(self, processor: ProcessorPlugin[Any]) -> bool:
        if processor.blocking is not None:
            return processor.blocking
        return not isinstance(processor, FunctionProcessor) and not self._caller.inherits("open")

    def _way(self) -> Callable[[Batch], Awaitable[list[Result]]]:
        if self._async:
            return self._run_batch_async if self._by_batch else self._run_each_async
        if self._in_thread:
            return self._run_in_thread
        return self._run_batch_here if self._by_batch else self._run_each_here

    async def open(self) -> None:
        with plugin_errors(self._node, "open"):
            await self._call_at_edge("open")

    async def close(self) -> None:
        try:
            with plugin_errors(self._node, "close"):
                await self._call_at_edge("close")
        finally:
            self._caller.close()

    async def _call_at_edge(self, name: str) -> None:
        """Call `open` or `close` in the thread of `process`: a resource may be usable only where it was opened."""
        if self._caller.inherits(name):
            return
        method = getattr(self._processor, name)
        if self._in_thread and not is_async(method):
            await self._caller.in_thread(method, final=name == "close")
        else:
            await self._caller(name)

    async def _run_each_here(self, batch: Batch) -> list[Result]:
        """Run in the event loop; a processor that proves slow moves to a thread with the rest of the batch."""
        records = batch.records
        if self._processor.blocking is False:
            return each(self._call, records)
        results: list[Result] = []
        started = self.stay.clock()
        while len(results) < len(records) and self.stay.clock() - started <= self.stay.slow_seconds:
            # Four times as many each time: the clock is read seldom, and a call that blocks is noticed
            # after the first record, not after a whole batch.
            done = len(results)
            results += each(self._call, records[done : 4 * done + 1])
            # I17: records behind a deferred one are deferred with it.
            if isinstance(results[-1], Defer):
                results += [Defer()] * (len(records) - len(results))
        self._stay_or_move(self.stay.clock() - started)
        if len(results) < len(records):
            results += await self._caller.in_thread(each, self._call, records[len(results) :])
        return results

    async def _run_batch_here(self, batch: Batch) -> list[Result]:
        results, seconds = self.stay.time(self._call_sync, batch)
        if self._processor.blocking is None:
            self._stay_or_move(seconds)
        return results

    def _stay_or_move(self, seconds: float) -> None:
        if seconds > self.stay.slow_seconds:
            self.stay.begin(seconds)
            self._in_thread = True
            self.run = self._way()

    async def _run_in_thread(self, batch: Batch) -> list[Result]:
        results, seconds = await self._caller.in_thread(self.stay.time, self._call_sync, batch)
        if self.stay.is_over(seconds):
            self._in_thread = False
            self.run = self._way()
        return results  # type: ignore[no-any-return]

    def _call_sync(self, batch: Batch) -> list[Result]:
        if not self._by_batch:
            return each(self._call, batch.records)
        try:
            return self._check(self._call(shallow_copy(batch)), batch)
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            return [as_plugin_error(error)] * len(batch)

    async def _run_batch_async(self, batch: Batch) -> list[Result]:
        try:
            return self._check(await self._call(shallow_copy(batch)), batch)
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            return [as_plugin_error(error)] * len(batch)

    async def _run_each_async(self, batch: Batch) -> list[Result]:
        results: list[Result] = []
        for record in batch.records:
            try:
                results.append(await self._call(record))
            except RunError:
                raise
            except Defer as deferral:
                return _defer_rest(deferral, results, len(batch))
            except BaseException as error:  # plugin boundary: the processor is the user's
                results.append(as_plugin_error(error))
        return results

    def _check(self, results: Any, batch: Batch) -> list[Result]:
        try:
            checked: list[Result] = list(results)
        except TypeError:
            kind = type(results).__name__
            raise ContractBroken(self._node, f"must return one result per record of the batch, not {kind}") from None
        if len(checked) != len(batch):
            raise ContractBroken(self._node, f"returned {len(checked)} results for a batch of {len(batch)} records")
        return checked


def _form(node: str, processor: ProcessorPlugin[Any]) -> Callable[..., Any]:
    """Return the method that processes a batch or a record."""
    if not processor.by_table:
        return processor.process_batch if processor.by_batch else processor.process
    # Imported only here: pyarrow may not be installed, and it is slow to import.
    from conduit_py.stream.arrow import with_tables

    return with_tables(node, processor)


def each(call: Callable[[Record], Result], records: list[Record]) -> list[Result]:
    """Return the result or error of `call` for each record."""
    results: list[Result] = []
    rest = iter(records)
    while True:
        try:
            # Results before an error stay in the list, so the loop continues behind it.
            results.extend(map(call, rest))
            if len(results) == len(records):
                return results
            # StopIteration ends the map as if there were no more records, and the rest would be lost.
            results.append(RuntimeError("the processor raised StopIteration"))
        except RunError:
            raise
        except Defer as deferral:
            return _defer_rest(deferral, results, len(records))
        except BaseException as error:  # plugin boundary: the processor is the user's
            results.append(as_plugin_error(error))


def _defer_rest(deferral: Defer, results: list[Result], count: int) -> list[Result]:
    """Return results in which every record behind the deferred one is deferred too, without being processed."""
    behind: list[Result] = [Defer()] * (count - len(results) - 1)
    return [*results, deferral, *behind]
