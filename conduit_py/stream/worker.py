"""WorkerPool and ProcessorWorker: apply a processor to batches, with condition, retries and workers."""

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import length_hint
from typing import Any

import trio

from conduit_py.batch import Batch
from conduit_py.errors import ContractBroken, RunError, StateFailed, TransientError
from conduit_py.pipeline import Processor
from conduit_py.sdk.processor import FunctionProcessor
from conduit_py.sdk.processor import Processor as ProcessorPlugin
from conduit_py.sdk.state import Defer, State
from conduit_py.sdk.state_values import await_reading, call_reading
from conduit_py.stream import processor_calls
from conduit_py.stream.meter import DriftCount, Meter
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, ThreadStay, is_async
from conduit_py.stream.processor_calls import Results, SameResults, TableChange, finish, on_payloads
from conduit_py.stream.worker_process import PARTS, WorkerProcess, worker_processes
from conduit_py.user_errors import as_plugin_error


class WorkerPool:
    """Applies one definition of a processor to batches, in order, from `open` to `close`.

    `results` returns one result per record, or an awaitable of them, and raises only fatal errors. A record that `when`
    excludes is its own result. A batch that holds payloads has payloads as results, unless something asked for its
    records. Invariant 1: with several workers a batch is cut into parts, whose results are joined in order.
    """

    results: Callable[[Batch], Results | Awaitable[Results]]

    def __init__(
        self, node: str, declared: Processor, meter: Meter, rng: random.Random, state: State | None = None
    ) -> None:
        assert declared.processor is not None
        self._meter = meter
        self._errors = PluginErrors(node, "process")
        in_thread, plugin = declared.workers > 1, declared.processor
        self._processes = worker_processes(node, declared) if declared.where == "process" else []
        self._workers: Sequence[ProcessorWorker | WorkerProcess] = self._processes or [
            ProcessorWorker(node, plugin.fresh(), always_in_thread=in_thread, state=state)
            for _ in range(declared.workers)
        ]
        self.results = self._share_out if declared.workers > 1 else self._run
        if declared.retry.attempts > 1:
            self.results = processor_calls.with_retries(self.results, declared.retry, meter, rng)
        if declared.when is not None:
            self.results = processor_calls.where(declared.when, self.results)
        # A condition and a retry look at the records, so decoding into the type would only cost a way back.
        plain = declared.when is None and declared.retry.attempts == 1
        self.decodes_into = self._workers[0].decodes_into if plain else None
        # What `close_all` has to close, also after a failed `open`.
        self.opened: list[ProcessorWorker | WorkerProcess] = []

    async def open(self) -> None:
        for process in self._processes:
            # All of them first: a process takes longer to start than most processors to open.
            self.opened.append(process)
            process.start()
        for worker in self._workers:
            # Before `open`: a processor whose `open` failed may hold resources that `close` releases.
            self.opened += [] if self._processes else [worker]
            self._meter.drift_counts += filter(None, [await worker.open()])

    def _run(self, batch: Batch, number: int = 0) -> Results | Awaitable[Results]:
        worker = self._workers[number]
        try:
            if worker.state is not None:
                worker.state.enter(batch)
            results = worker.run(batch)
        except BaseException as error:  # plugin boundary: the processor is the user's
            # An error raised here ends the run. It must name this node, whatever task runs the chain.
            self._errors.translate(error)
            # A state that cannot be read is not the fault of a record: none may be refused for it.
            if not isinstance(error, TransientError) or isinstance(error, StateFailed):
                raise
            # As a result, not raised, so that the retry policy applies. The error blames no single record.
            results = [error] * len(batch)
            if isinstance(worker, ProcessorWorker):
                worker.seconds = worker.stay.now() - worker.started_at
        if not isinstance(results, (SameResults, list)):
            return self._run_slowly(results, len(batch))
        self._meter.calls.observe(worker.seconds)
        return results

    async def _run_slowly(self, pending: Awaitable[Results], count: int) -> Results:
        started = trio.current_time()
        try:
            with self._errors:
                return await pending
        except TransientError as error:
            if isinstance(error, StateFailed):
                raise
            return [error] * count
        finally:
            self._meter.calls.observe(trio.current_time() - started)

    async def _share_out(self, batch: Batch) -> list[Any]:
        if not self._workers[0].takes_payloads:
            # Asked of the whole batch before it is cut: that it holds records says what the results mean.
            _ = batch.records
        # Processes take one part after another: a quick one takes more of them, and the last is soon done.
        count = len(self._workers)
        size = -(-len(batch) // (count * (PARTS if self._processes else 1)))
        parts = [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
        results: list[list[Any]] = [[] for _ in parts]  # Invariant 1: joined in the order of the parts.
        rest = iter(range(count, len(parts)))

        async def work(number: int) -> None:
            for part in chain((number,), rest):
                results[part] = await finish(self._run(batch.select(parts[part]), number))

        async with trio.open_nursery() as nursery:
            for number in range(min(count, len(parts))):
                nursery.start_soon(work, number)
        return list(chain.from_iterable(results))


class ProcessorWorker:
    """One worker of a processor node, with its own processor.

    `run` returns one result per record, in order, errors included as values; or an awaitable of them. It raises only
    errors that end the run. A sync processor runs in the event loop while it is fast, which saves a change of threads
    per batch. It runs in its own thread if it has an `open` or declares `blocking`, and for a while if it proves slow.
    """

    run: Callable[[Batch], Results | Awaitable[Results]]

    def __init__(
        self, node: str, processor: ProcessorPlugin[Any], *, always_in_thread: bool = False, state: State | None = None
    ) -> None:
        self._node, self._processor = node, processor
        self._caller = PluginCaller(node, processor)
        self._by_batch = processor.by_batch or processor.by_table
        self._form = _CallForm(node, processor, state)
        opens = not isinstance(processor, FunctionProcessor) and not self._caller.inherits("open")
        self._in_thread = always_in_thread or (opens if processor.blocking is None else processor.blocking)
        self.stay = ThreadStay()
        # Of the last `run` in the event loop, by a clock that is cheaper than trio's.
        self.started_at = self.seconds = 0.0
        self.decodes_into, self.takes_payloads = self._form.decodes_into, self._form.takes_payloads
        self.state = self._form.state  # its `enter` is called with a batch before `run`
        self.run = self._way()

    @property
    def _waits(self) -> bool:
        return self.state is not None and self.state.waits

    def _way(self) -> Callable[[Batch], Results | Awaitable[Results]]:
        if self._form.is_async:
            run = self._run_batch_async if self._by_batch else self._run_each_async
            return await_reading(run, self.state, self._processor)
        if self._in_thread:
            return self._run_in_thread
        return self._run_batch_here if self._by_batch else self._run_each_here

    async def open(self) -> DriftCount | None:
        with PluginErrors(self._node, "open"):
            if not self._caller.inherits("open"):
                await self._call_at_edge("open")
        return self._processor.drift_count

    async def close(self, errors: list[RunError]) -> None:
        """Close the processor. An error is added to `errors`: the other workers must be closed all the same."""
        try:
            with PluginErrors(self._node, "close"):
                if not self._caller.inherits("close"):
                    await self._call_at_edge("close")
        except RunError as error:
            errors.append(error)
        finally:
            self._caller.close()

    async def _call_at_edge(self, name: str) -> None:
        """Call `open` or `close` in the thread of `process`: a resource may be usable only where it was opened."""
        method = getattr(self._processor, name)
        in_thread = (self._in_thread or self._waits) and not is_async(method)
        await (self._caller.in_thread(method, final=name == "close") if in_thread else self._caller(name))

    def _run_each_here(self, batch: Batch) -> Results | Awaitable[Results]:
        """Run in the event loop; a processor that proves slow moves to a thread with the rest of the batch."""
        if self._waits:
            return self._run_in_thread(batch)
        call, values = self._form.of(batch)
        results, rest, count, done = SameResults(values), iter(values), len(values), 0
        stay, now = self.stay, self.stay.now
        if (started := now()) >= stay.asks_at:
            started = stay.start()
        self.started_at, seconds = started, 0.0
        slow_seconds = math.inf if self._processor.blocking is False else stay.slow_seconds
        while done < count and seconds <= slow_seconds:
            # Sixteen times as many each time: the clock is read seldom, and a call that blocks is noticed at the first.
            each(call, rest, min(16 * done + 1, count) - done, results)
            # All of them, if one was deferred.
            done = min(16 * done + 1, count) if results.gone is not None else len(results.others)
            if (seconds := now() - started) > slow_seconds:
                seconds = stay.clock.seconds_since(started)
        self.seconds = seconds
        if seconds > slow_seconds:
            self._move_to_thread(seconds)
        return results if done == count else self._caller.in_thread(each, call, rest, count - done, results)

    def _run_batch_here(self, batch: Batch) -> Results | Awaitable[Results]:
        if self._waits:
            return self._run_in_thread(batch)
        self.started_at = self.stay.now()
        results, self.seconds = self.stay.time(self._call_sync, batch)
        if self._processor.blocking is None and self.seconds > self.stay.slow_seconds:
            self._move_to_thread(self.seconds)
        return results

    def _move_to_thread(self, seconds: float) -> None:
        self.stay.begin(seconds)
        self._in_thread, self.run = True, self._run_in_thread

    async def _run_in_thread(self, batch: Batch) -> Results:
        call = call_reading(self._call_sync, self.state, self._processor.state_keys)
        results, seconds = await self._caller.in_thread(self.stay.time, call, batch)
        if self.stay.is_over(seconds):
            self._in_thread = False
            self.run = self._way()
        return results  # type: ignore[no-any-return]

    def _call_sync(self, batch: Batch) -> Results:
        call, values = self._form.of(batch)
        if not self._by_batch:
            return each(call, iter(values), len(values), SameResults(values))
        try:
            return self._check(call(values), len(batch))
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            return [as_plugin_error(error)] * len(batch)

    async def _run_batch_async(self, batch: Batch) -> list[Any]:
        call, values = self._form.of(batch)
        try:
            return self._check(await call(values), len(batch))
        except RunError:
            raise
        except BaseException as error:  # plugin boundary: the processor is the user's
            return [as_plugin_error(error)] * len(batch)

    async def _run_each_async(self, batch: Batch) -> list[Any]:
        call, values = self._form.of(batch)
        results: list[Any] = []
        for value in values:
            try:
                results.append(await call(value))
            except RunError:
                raise
            except Defer as deferral:
                # I17: records behind a deferred one are deferred with it, without being processed.
                return [*results, deferral, *[Defer()] * (len(batch) - len(results) - 1)]
            except BaseException as error:  # plugin boundary: the processor is the user's
                results.append(as_plugin_error(error))
        return results

    def _check(self, results: Any, count: int) -> list[Any]:
        if not isinstance(results, Iterable):
            rule = f"must return one result per record of the batch, not {type(results).__name__}"
            raise ContractBroken(self._node, rule)
        checked: list[Any] = list(results)
        if len(checked) != count and not (checked and type(checked[0]) is TableChange):
            raise ContractBroken(self._node, f"returned {len(checked)} results for a batch of {count} records")
        return checked


class _CallForm:
    """What a processor is called with: records, a batch, or payloads, if it takes those and no state or metadata."""

    def __init__(self, node: str, processor: ProcessorPlugin[Any], state: State | None) -> None:
        self._on_payload = self._on_record = call = processor_calls.processing_method(node, processor)
        self.is_async = is_async(call)
        self.state = state if processor.stateful else None
        self._by_table, self._by_batch = processor.by_table, processor.by_batch or processor.by_table
        kind, metadata = processor.payload_type, processor.takes_metadata
        self._payload_type = None if metadata or self.state is not None else kind
        self._accepted: type | None = type(self)
        self.takes_payloads = self._payload_type is not None
        self.decodes_into = self._payload_type.decodes_into if self._payload_type is not None else None
        if kind is not None or metadata:
            adapt = processor_calls.on_batch if self._by_batch else processor_calls.on_record
            self._on_record = adapt(call, kind, is_async=self.is_async, metadata=metadata)
        if self.state is not None:
            # A function is shared between runs, so it gets the state with every call.
            is_function = isinstance(processor, FunctionProcessor)
            if not is_function:
                processor.state = self.state
            self._on_record = processor_calls.with_atomic_state(
                self._on_record, self.state, is_async=self.is_async, passes_state=is_function, defers=processor.defers
            )

    def of(self, batch: Batch) -> tuple[Callable[[Any], Any], Any]:
        """Return the call, and what to call it with: the values one by one, or all of them by batch."""
        # Mostly all batches have payloads of one type: whether it is accepted need not be asked each time.
        if batch.kind is self._accepted:
            return self._on_payload, batch.payloads
        kind = self._payload_type
        if self._by_table and batch.table is not None:
            return self._on_record, batch
        if kind is None or batch.holds_records:
            # Asked of this batch, not of a copy: that it holds records says what the results mean.
            records = batch.records
            return self._on_record, batch.copy(deep=False) if self._by_batch else records
        if self._by_batch:
            return on_payloads(self._on_payload, kind, batch, is_async=self.is_async), list(batch.payloads)
        if kind.accepts(batch.kind):
            self._accepted = batch.kind
            return self._on_payload, batch.payloads
        return processor_calls.on_any(self._on_payload, kind.convert, is_async=self.is_async), batch.payloads


def each(call: Callable[[Any], Any], rest: Iterator[Any], count: int, results: SameResults) -> SameResults:
    """Note the result or error of `call` for each of the next `count` of the values in `results`; return it."""
    size = len(results.values)
    # An error ends a loop, and the next one continues behind it.
    stop = size - length_hint(rest) + count
    while (index := size - length_hint(rest)) < stop:
        try:
            if results.gone is None:
                others = results.others
                for value in islice(rest, stop - index):
                    others.append(call(value))
                continue
            for value in islice(rest, stop - index):
                if (result := call(value)) is not value:
                    if result is not None:
                        results.note(result, size - length_hint(rest) - 1)
                        break
                    results.gone.append(size - length_hint(rest) - 1)
        except RunError:
            raise
        except Defer as deferral:
            results.note(deferral, size - length_hint(rest) - 1)
            # I17: records behind a deferred one are deferred with it, without being processed.
            results.others += [Defer()] * (size - len(results.others))
            break
        except StopIteration:
            results.note(RuntimeError("the processor raised StopIteration"), size - length_hint(rest) - 1)
        except BaseException as error:  # plugin boundary: the processor is the user's
            results.note(as_plugin_error(error), size - length_hint(rest) - 1)
    return results
