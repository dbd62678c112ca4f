"""ChildProcess: a process in which pipelines run, with everything that it starts, and the runs in it."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Protocol

import msgspec
import trio

from conduit_py.child.link import (
    TO_SERVER,
    CloseTap,
    OpenTap,
    ProgressReport,
    RequestDone,
    RunEnded,
    RunReport,
    StoreCall,
    SwapProcessors,
    TakeSnapshot,
    TapSamples,
    ToServer,
)
from conduit_py.child.store import answer_call
from conduit_py.inspect.tap import Sample, Tap
from conduit_py.inspect.tap_point import TapPoint, Taps
from conduit_py.owned_process import EXIT_SECONDS, SEE_LOG, OwnedProcess, ProcessLost
from conduit_py.store.store import Store

log = logging.getLogger("conduit_py")

PROGRAM = "conduit_py.child.program"
LOG_SECONDS = 1.0


class ChildRun:
    """One run of a pipeline in a child, as the server sees it. It is `over` when nothing of it runs any more."""

    def __init__(self, child: "ChildProcess", number: int, on_report: Callable[[RunReport], None]) -> None:
        self.child = child
        self.number = number
        self.on_report = on_report
        self.ended: RunEnded | None = None
        """How it ended; None if its process was lost."""
        self.over = trio.Event()
        self._asked: dict[int, tuple[trio.Event, trio.Event, list[RequestDone]]] = {}
        self._taps: dict[int, tuple[str, Tap, TapPoint]] = {}

    async def ask(self, request: Callable[[int], SwapProcessors | TakeSnapshot]) -> trio.Event | None:
        """Have the child do something, and wait until it has. Raises what the child raised; None if the run is over.

        The event is set when what it did is durable, for requests that become so.
        """
        number = len(self._asked) + 1
        done, durable, answers = self._asked[number] = trio.Event(), trio.Event(), list[RequestDone]()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.child.link.send(request(number))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, self.over, nursery.cancel_scope)
            await done.wait()
            nursery.cancel_scope.cancel()
        if not answers:
            return None
        if answers[0].error is not None:
            raise answers[0].error.to_error()
        return durable

    def answer(self, message: RequestDone) -> None:
        done, durable, answers = self._asked[message.number]
        answers.append(message)
        (durable if message.durable else done).set()

    async def relay_taps(self, taps: Taps) -> None:
        """Have the child sample records for the taps of the pipeline, those that are there and those that come."""
        numbers = count(1)
        try:
            while True:
                # Taken before the look: a tap that comes in between sets this event, so none is missed.
                changed, wanted = taps.changed, taps.attached
                for number, (node, tap, _) in list(self._taps.items()):
                    if (node, tap) not in wanted:
                        del self._taps[number]
                        await self.child.link.send(CloseTap(self.number, number))
                known = [tap for _, tap, _ in self._taps.values()]
                for node, tap in wanted:
                    if tap not in known:
                        number = next(numbers)
                        self._taps[number] = (node, tap, taps.point(node))
                        await self.child.link.send(OpenTap(self.number, number, node, tap.rate, tap.left))
                await changed.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the process ended before a tap was opened", self.child.name)

    def take_samples(self, message: TapSamples) -> None:
        """Give the samples of a tap to it."""
        if (known := self._taps.get(message.number)) is None:
            return
        _, tap, point = known
        # As TapPoint does it in this process: a tap counts what it lost, and so does the metric of the node.
        given = [tap.give(msgspec.json.decode(each, type=Sample)) for each in message.samples]
        tap.dropped += message.dropped
        point.dropped += message.dropped + given.count(False)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class ChildProcess(OwnedProcess[ToServer]):
    """A child process. Neither it nor anything that it started outlives the `start_child` block."""

    def __init__(self, name: str, *, alone: bool) -> None:
        # Called in the log by the pipeline that has it alone, or by its number.
        super().__init__(name, ("-m", PROGRAM), TO_SERVER, *(["alone"] if alone else []))
        self.heard_at = trio.current_time()
        self.secrets_sent: set[str] = set()
        self._runs: dict[int, ChildRun] = {}
        self._count = 0
        self._gone = False
        self._open_calls: dict[int, trio.Event] = {}

    @property
    def runs(self) -> int:
        """How many pipelines run in it."""
        return len(self._runs)

    def add_run(self, on_report: Callable[[RunReport], None]) -> ChildRun:
        self._count += 1
        run = ChildRun(self, self._count, on_report)
        if self._gone:
            run.over.set()
        else:
            self._runs[self._count] = run
        return run

    def end_runs(self) -> None:
        """End every run, because the process is gone, and each that is added from now on."""
        self._gone = True
        while self._runs:
            self._runs.popitem()[1].over.set()

    async def serve(self, store: Store) -> None:
        """Answer its calls of the store and handle its messages, until it has ended and every call is done."""
        # Invariant C2: a nursery of its own, so that every call of the store is done when this returns.
        async with trio.open_nursery() as answering:
            while (message := await self.link.receive()) is not None:
                self.heard_at = trio.current_time()
                if isinstance(message, StoreCall):
                    self._open_calls[message.number] = trio.Event()
                    answering.start_soon(self._answer, store, message)
                elif isinstance(message, ProgressReport):
                    for report in message.runs:
                        if (run := self._runs.get(report.run)) is not None:
                            run.on_report(report)
                elif isinstance(message, RequestDone):
                    if (run := self._runs.get(message.run)) is not None:
                        run.answer(message)
                elif isinstance(message, TapSamples):
                    if (run := self._runs.get(message.run)) is not None:
                        run.take_samples(message)
                else:
                    answering.start_soon(self._end_run, message, list(self._open_calls.values()))

    async def _answer(self, store: Store, call: StoreCall) -> None:
        # Invariant C1: the store has made it durable before the child is answered.
        answer = await answer_call(store, call)
        self._open_calls.pop(call.number).set()
        try:
            await self.link.send(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the process ended before an answer was sent", self.name)

    async def _end_run(self, ended: RunEnded, calls: list[trio.Event]) -> None:
        # Invariant C2: a run that was forced to stop leaves calls behind. They came before this message.
        for call in calls:
            await call.wait()
        if (run := self._runs.pop(ended.run, None)) is not None:
            run.ended = ended
            run.over.set()


@asynccontextmanager
async def start_child(name: str, *, alone: bool) -> AsyncIterator[ChildProcess]:
    """A process, for as long as the block runs; `alone` it ends with its first run."""
    try:
        child = ChildProcess(name, alone=alone)
    except OSError as error:
        raise ProcessLost(f"no process can be started for {name}: {error.strerror or error}") from error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.relay_log)
        try:
            yield child
        finally:
            # Invariant C2: the block does not end before the process group has.
            await child.reap()
            # Python workers of Spark may keep stderr open a moment longer.
            nursery.cancel_scope.deadline = trio.current_time() + LOG_SECONDS


class RunPlace(Protocol):
    """Where a pipeline runs outside of the server."""

    shared: bool
    """Whether other pipelines run in the same process, which are lost with it."""
    number: int | None
    """Of a process that several pipelines share."""

    def enter(self, store: Store, on_report: Callable[[RunReport], None]) -> AbstractAsyncContextManager[ChildRun]:
        """A run in a process there. When the block ends, nothing of the run is left (invariant C2)."""
        ...

    def loss_error(self, pipeline: str, child: ChildProcess) -> ProcessLost:
        """The error for a process that was lost, with how it ended."""
        ...


class OwnProcess:
    """A process for each run of one pipeline, as Spark needs it."""

    shared, number = False, None

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    @asynccontextmanager
    async def enter(self, store: Store, on_report: Callable[[RunReport], None]) -> AsyncIterator[ChildRun]:
        async with start_child(self._pipeline, alone=True) as child, trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, child, store)
            yield child.add_run(on_report)
            # It ends by itself after its run, for the exit code; if it does not, `reap` kills it.
            nursery.cancel_scope.deadline = trio.current_time() + EXIT_SECONDS

    async def _serve(self, child: ChildProcess, store: Store) -> None:
        await child.serve(store)
        child.end_runs()

    def loss_error(self, pipeline: str, child: ChildProcess) -> ProcessLost:
        return ProcessLost(f"the process in which {pipeline} runs on Spark {child.describe_end()}", suggestion=SEE_LOG)
