"""The program that runs pipelines for a server: `python -m conduit_py.child.program SOCKET SERVER [alone] [debug]`.

The server sends the pipelines and keeps all durable state. Without the server nothing can be made durable, so the
program ends at once when the server is gone.
"""

import os
import pickle
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import msgspec
import trio

from conduit_py.backoff import Recovery
from conduit_py.child.link import (
    TO_CHILD,
    LettersQueued,
    OpenTap,
    ProgressReport,
    RequestDone,
    RunEnded,
    RunReport,
    StartRun,
    StopRun,
    StoreReply,
    SwapProcessors,
    TakeSnapshot,
    TapSamples,
    ToChild,
)
from conduit_py.child.store import ChildStore
from conduit_py.errors import PipelineIdle
from conduit_py.graph.compile import as_graph
from conduit_py.inspect.tap import Sample, Tap
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.owned_process import ChildLink, join_owner
from conduit_py.pipeline import Pipeline, derive
from conduit_py.redaction import SECRETS, redact
from conduit_py.status import PipelineState
from conduit_py.wire_error import WireError

REPORT_SECONDS = 0.25
"""How often a change of the state is reported, and the progress of a pipeline that is alone."""
SHARED_REPORTS = 4
"""Of pipelines that share a process, the progress is in one report of so many: it costs more than most records."""


FLUSH_SECONDS = 2.0
"""How long the end of a run may wait until its observer has sent what it saw."""
CHILD_OBSERVER = "CONDUIT_CHILD_OBSERVER"
"""The variable by which a server names the module whose `begin_in_child` observes the runs of its children."""


def main() -> NoReturn:
    """The entry point."""
    observer = os.environ.get(CHILD_OBSERVER)
    # By its name: whatever observes runs is a layer above this one.
    flush = import_module(observer).begin_in_child() if observer else None
    trio.run(_run, join_owner(), "alone" in sys.argv, flush)
    # Not sys.exit, which would wait for abandoned threads.
    sys.stdout.flush()
    os._exit(0)


async def _run(connected: socket.socket, alone: bool, flush: Callable[[], object] | None) -> None:
    connected.setblocking(False)
    link = ChildLink(trio.SocketStream(trio.socket.from_stdlib_socket(connected)), TO_CHILD)
    try:
        await Host(link, alone=alone, flush=flush).work()
    except* trio.BrokenResourceError:
        os._exit(1)


class HostedRun:
    """A run in this process. Its supervisor is there once the pipeline is loaded."""

    def __init__(self) -> None:
        self.supervisor: Supervisor | None = None
        self.stop: StopRun | None = None
        self.taps = Taps()
        self.open_taps: dict[int, trio.CancelScope] = {}
        self.shown: PipelineState | None = None

    def begin(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        # It may have come while the pipeline was loaded.
        if self.stop is not None:
            self.take(self.stop)

    def take(self, stop: StopRun) -> None:
        self.stop = stop
        if self.supervisor is not None:
            (self.supervisor.force if stop.force else self.supervisor.stop)(stop.by)


class Host:
    """Runs what the server sends, and reports how it goes."""

    def __init__(self, link: ChildLink[ToChild], *, alone: bool, flush: Callable[[], object] | None = None) -> None:
        self._link = link
        self._flush = flush
        self._alone = alone
        self._store = ChildStore(link)
        self._runs: dict[int, HostedRun] = {}

    async def work(self) -> None:
        """Run until the server is gone or, alone, until the one pipeline has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.forward_saves)
            nursery.start_soon(self._report)
            nursery.start_soon(self._listen, nursery)

    async def _listen(self, nursery: trio.Nursery) -> None:
        while (message := await self._link.receive()) is not None:
            if isinstance(message, StoreReply):
                self._store.answer(message)
            elif isinstance(message, StartRun):
                self._runs[message.run] = HostedRun()
                nursery.start_soon(self._run_pipeline, message, nursery.cancel_scope)
            elif isinstance(message, LettersQueued):
                self._store.letters.notice(message.pipeline)
            elif isinstance(message, StopRun):
                if message.run in self._runs:
                    self._runs[message.run].take(message)
            elif isinstance(message, SwapProcessors | TakeSnapshot):
                nursery.start_soon(self._answer_request, message)
            elif isinstance(message, OpenTap):
                await nursery.start(self._feed_tap, message)
            elif message.run in self._runs and message.number in self._runs[message.run].open_taps:
                self._runs[message.run].open_taps[message.number].cancel()
        # Invariant C3: the server is gone. Java ends when this process does.
        os._exit(1)

    async def _run_pipeline(self, begin: StartRun, scope: trio.CancelScope) -> None:
        ended = await self._run_to_end(begin)
        if self._flush is not None:
            # Before the server gets the message: it may end this process at once.
            with trio.move_on_after(FLUSH_SECONDS):
                await trio.to_thread.run_sync(self._flush, abandon_on_cancel=True)
        # First, so that no report follows the end.
        for scope in self._runs.pop(begin.run).open_taps.values():
            scope.cancel()
        await self._link.send(ended)
        if self._alone:
            scope.cancel()

    async def _run_to_end(self, begin: StartRun) -> RunEnded:
        run = self._runs[begin.run]
        SECRETS.add(*begin.secrets)
        # Before anything is unpickled: the modules of the user are found as the server finds them.
        sys.path[:] = begin.path
        try:
            # In a thread: what the pipeline imports may take a while, and others run here.
            pipeline = await trio.to_thread.run_sync(_unpickle, begin.pipeline)
            settings = pipeline.settings.model_copy(update={"recovery": Recovery.model_validate_json(begin.recovery)})
            run.begin(_supervisor(derive(pipeline, settings=settings), self._store, run.taps))
        except Exception as error:  # a plugin boundary: the user's code is loaded, and may need what is not installed
            return RunEnded(begin.run, error=WireError.of(error))
        assert run.supervisor is not None
        state = await run.supervisor.run()
        return RunEnded(begin.run, state, run.supervisor.progress())

    async def _feed_tap(self, asked: OpenTap, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the samples of a tap until nobody reads them, or the run ends."""
        if (run := self._runs.get(asked.run)) is None:
            task_status.started()
            return
        tap, reported, unfit = Tap(rate=asked.rate, limit=asked.limit, redact=redact), 0, 0
        with trio.CancelScope() as scope, run.taps.attach(asked.node, tap):
            run.open_taps[asked.number] = scope
            task_status.started()
            while True:
                samples = [_encode_sample(await tap.receive())]
                while (sample := tap.receive_nowait()) is not None:
                    samples.append(_encode_sample(sample))
                encoded = [each for each in samples if each is not None]
                unfit += len(samples) - len(encoded)
                dropped, reported = tap.dropped + unfit - reported, tap.dropped + unfit
                # The pipeline does not wait for this: what does not fit the tap meanwhile is dropped.
                await self._link.send(TapSamples(asked.run, asked.number, encoded, dropped))

    async def _answer_request(self, request: SwapProcessors | TakeSnapshot) -> None:
        run, number = request.run, request.number
        try:
            supervisor = self._runs[run].supervisor if run in self._runs else None
            if supervisor is None:
                raise PipelineIdle("the pipeline is starting or ending", suggestion="try again in a moment")
            if isinstance(request, SwapProcessors):
                pipeline = await trio.to_thread.run_sync(_unpickle, request.pipeline)
                settings = supervisor.pipeline.settings.model_copy(
                    update={"description": pipeline.settings.description}
                )
                await supervisor.swap(as_graph(derive(pipeline, settings=settings)), request.nodes)
                await self._link.send(RequestDone(run, number))
            else:
                durable = await supervisor.request_snapshot(request.source, request.request)
                await self._link.send(RequestDone(run, number))
                await durable.wait()
                await self._link.send(RequestDone(run, number, durable=True))
        except Exception as error:  # a plugin boundary: processors are opened, sources asked
            await self._link.send(RequestDone(run, number, WireError.of(error)))

    async def _report(self) -> None:
        every = 1 if self._alone else SHARED_REPORTS
        turn = 0
        while True:
            turn += 1
            reports = []
            for number, run in self._runs.items():
                supervisor = run.supervisor
                if supervisor is not None and (turn % every == 0 or supervisor.state is not run.shown):
                    run.shown = supervisor.state
                    reports.append(RunReport(number, supervisor.state, supervisor.progress()))
            # Also an empty one: silence is a sign of a process that hangs.
            await self._link.send(ProgressReport(reports))
            await trio.sleep(REPORT_SECONDS)


def _encode_sample(sample: Sample) -> bytes | None:
    try:
        return msgspec.json.encode(sample)
    except (ValueError, RecursionError):
        # A sample is a view of a hostile record: one that cannot be sent is dropped, and nothing ends for it.
        return None


def _unpickle(pickled: bytes) -> Pipeline:
    # What cloudpickle wrote names cloudpickle's own functions, of Spark's copy or of the package.
    pipeline: Pipeline = pickle.loads(pickled)  # noqa: S301 - our own server sent it
    return pipeline


def _supervisor(pipeline: Pipeline, store: ChildStore, taps: Taps) -> Supervisor:
    if pipeline.spark is None:
        return Supervisor(pipeline, store, taps=taps)
    from conduit_py.spark.engine.supervisor import spark_supervisor

    return spark_supervisor(pipeline, store)


if __name__ == "__main__":
    main()
