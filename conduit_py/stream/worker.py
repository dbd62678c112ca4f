"""Worker: one worker of a processor node, with a processor of its own."""

import time
from collections.abc import Callable
from typing import Any

from conduit_py.batch import Batch
from conduit_py.errors import ContractBroken, RunError, TransientError
from conduit_py.record import Record
from conduit_py.sdk.defer import Defer
from conduit_py.sdk.processor import FunctionProcessor, Processor, Result
from conduit_py.sdk.state import State
from conduit_py.stream.atomic_state import with_atomic_state
from conduit_py.stream.plugin_calls import SLOW_SECONDS, PluginCaller, is_async, plugin_errors, shallow_copy


class Worker:
    """Gives the results of a processor for the records of a batch, in order, errors included as values.

    Only a fatal error is raised. A transient one stands for every record of the batch.

    A sync processor runs right here while it is quick, which saves a change of threads per batch; one
    that opens something, says it blocks, or proves slow runs in a thread of its own.
    """

    def __init__(
        self, node: str, processor: Processor[Any], *, always_in_thread: bool = False, state: State | None = None
    ) -> None:
        self._node = node
        self._calls = PluginCaller(node, processor)
        self._processor = processor
        self._by_batch = processor.by_batch or processor.by_table
        self._call = _call(node, processor)
        self._async = is_async(self._call)
        self._in_thread = always_in_thread or self._blocks(processor)
        self._state = state if processor.stateful else None
        if self._state is not None:
            self._remember(self._state)

    def _remember(self, state: State) -> None:
        """A function is given its state with every call, because it is shared between runs; others have one."""
        is_function = isinstance(self._processor, FunctionProcessor)
        if not is_function:
            self._processor.state = state
        defers = self._processor.defers
        self._call = with_atomic_state(self._call, state, is_async=self._async, given=is_function, defers=defers)

    def _blocks(self, processor: Processor[Any]) -> bool:
        if processor.blocking is not None:
            return processor.blocking
        return not isinstance(processor, FunctionProcessor) and not self._calls.inherited("open")

    async def open(self) -> None:
        with plugin_errors(self._node, "open"):
            await self._frame("open")

    async def close(self) -> None:
        try:
            with plugin_errors(self._node, "close"):
                await self._frame("close")
        finally:
            self._calls.close()

    async def _frame(self, name: str) -> None:
        """Call `open` or `close` where the records are processed: what was opened there may live only there."""
        method = getattr(self._processor, name)
        if self._in_thread and not is_async(method) and not self._calls.inherited(name):
            await self._calls.in_thread(method, final=name == "close")
        else:
            await self._calls(name)

    async def run(self, batch: Batch) -> list[Result]:
        try:
            # What is raised is an error that ends the run, and it happened here, whoever's task this is.
            with plugin_errors(self._node, "process"):
                return await self._run(batch)
        except TransientError as error:
            # The retry policy comes first, and nothing is known about any of these records.
            return [error] * len(batch)

    async def _run(self, batch: Batch) -> list[Result]:
        if self._state is not None:
            self._state.enter(batch)
        if self._async:
            return await (self._batch_async(batch) if self._by_batch else self._each_async(batch.records))
        if self._in_thread:
            results: list[Result] = await self._calls.in_thread(self._sync, batch)
            return results
        return self._sync(batch) if self._processor.blocking is False else await self._here_while_quick(batch)

    async def _here_while_quick(self, batch: Batch) -> list[Result]:
        """Right here; a processor that proves slow goes to a thread for good, with what is left of the batch."""
        started = time.perf_counter()
        results = self._sync(batch) if self._by_batch else each_while_quick(self._call, batch.records)
        self._in_thread = time.perf_counter() - started > SLOW_SECONDS
        if len(results) < len(batch):
            results += await self._calls.in_thread(each, self._call, batch.records[len(results) :])
        return results

    def _sync(self, batch: Batch) -> list[Result]:
        if not self._by_batch:
            return each(self._call, batch.records)
        try:
            return self._checked(self._call(shallow_copy(batch)), batch)
        except RunError:
            raise
        except Exception as error:  # a border: the processor is the user's
            return [error] * len(batch)

    async def _batch_async(self, batch: Batch) -> list[Result]:
        try:
            return self._checked(await self._call(shallow_copy(batch)), batch)
        except RunError:
            raise
        except Exception as error:  # a border: the processor is the user's
            return [error] * len(batch)

    async def _each_async(self, records: list[Record]) -> list[Result]:
        results: list[Result] = []
        for record in records:
            try:
                results.append(await self._call(record))
            except RunError:
                raise
            except Defer as deferral:
                return _without_those_behind(deferral, results, len(records))
            except Exception as error:  # a border: the processor is the user's
                results.append(error)
        return results

    def _checked(self, results: Any, batch: Batch) -> list[Result]:
        try:
            checked: list[Result] = list(results)
        except TypeError:
            kind = type(results).__name__
            raise ContractBroken(self._node, f"must return one result per record of the batch, not {kind}") from None
        if len(checked) != len(batch):
            raise ContractBroken(self._node, f"returned {len(checked)} results for a batch of {len(batch)} records")
        return checked


def _call(node: str, processor: Processor[Any]) -> Callable[..., Any]:
    """What takes a batch or a record and gives what becomes of it."""
    if not processor.by_table:
        return processor.process_batch if processor.by_batch else processor.process
    # Only where it is used: pyarrow need not be installed, and takes time to import.
    from conduit_py.stream.arrow import with_tables

    return with_tables(node, processor)


def each_while_quick(call: Callable[[Record], Result], records: list[Record]) -> list[Result]:
    """The results for the records that are done before it shows that the call is slow."""
    results: list[Result] = []
    started = time.perf_counter()
    while len(results) < len(records) and time.perf_counter() - started <= SLOW_SECONDS:
        # Four times as many each time: looking at the clock costs next to nothing, and a call that
        # waits for something is found out at once, not after a batch of waiting.
        done = len(results)
        results += each(call, records[done : 4 * done + 1])
        if isinstance(results[-1], Defer):
            results += [Defer()] * (len(records) - len(results))
    return results


def each(call: Callable[[Record], Result], records: list[Record]) -> list[Result]:
    """The result or error of `call` for each record."""
    results: list[Result] = []
    rest = iter(records)
    while True:
        try:
            # What was computed before an error stays in the list, so the loop goes on after it.
            results.extend(map(call, rest))
            if len(results) == len(records):
                return results
            # It ends the map as if there were no more records, and those behind it would be lost.
            results.append(RuntimeError("the processor raised StopIteration"))
        except RunError:
            raise
        except Defer as deferral:
            return _without_those_behind(deferral, results, len(records))
        except Exception as error:  # a border: the processor is the user's
            results.append(error)


def _without_those_behind(deferral: Defer, results: list[Result], count: int) -> list[Result]:
    """Whoever comes behind a record that is deferred is deferred with it, and not processed."""
    behind: list[Result] = [Defer()] * (count - len(results) - 1)
    return [*results, deferral, *behind]
