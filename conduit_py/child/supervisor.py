"""ChildSupervisor: the server's side of a pipeline that runs in another process.

C1. Only the server keeps state. A change is durable on the server before the child's call returns.
C2. A pipeline runs in one process at most: its next run starts after the last one, or its process with all that it
    started, has ended. All calls of the store are done then. From then on nothing of it can change the state.
C3. No child outlives its server.
C4. A lost child is a transient error: recovery starts the pipeline again.
"""

import logging
import random
import sys
from collections.abc import Collection, Iterable
from functools import partial

import msgspec
import trio

from conduit_py.backoff import Recovery
from conduit_py.child.link import (
    LettersQueued,
    RunEnded,
    RunReport,
    StartRun,
    StopRun,
    SwapProcessors,
    TakeSnapshot,
    parts_of,
    pickle_pipeline,
)
from conduit_py.child.process import ChildProcess, ChildRun, OwnProcess, RunPlace
from conduit_py.errors import FatalError, PipelineIdle, PipelineInvalid, RunError, StopTimedOut
from conduit_py.exhaustion import unless_exhausted
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.pipeline_log import PipelineLog
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.owned_process import ProcessLost
from conduit_py.pipeline import Pipeline, without_schedule
from conduit_py.redaction import SECRETS
from conduit_py.sdk.source import SnapshotRefused, SnapshotRequest
from conduit_py.status import LastError, PipelineState, Status, Stopper
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress
from conduit_py.stream.run import Ending, How
from conduit_py.stream.signal import Signal

log = logging.getLogger("conduit_py")

FORCE_SECONDS = 5.0
"""How long a child may take for a forceful stop before it is killed."""
SHARED_FORCE_SECONDS = 30.0
"""The same for a child that others share: they are killed with it."""
STOP_SECONDS = 15.0
"""How much longer than the pipeline's own deadline a graceful stop may take before the child is killed."""
SILENT_SECONDS = 5.0
"""After how long without a message the progress names the silent child as the reason to wait."""


class ChildSupervisor(Supervisor):
    """Runs a pipeline in a child process. The child handles its own recovery; this class handles the child dying.

    Without a `place` the pipeline has a process of its own. A schedule is kept here: the child runs it once.
    """

    def __init__(
        self,
        definition: Pipeline | Graph,
        store: Store,
        *,
        recovery: Recovery | None = None,
        rng: random.Random | None = None,
        taps: Taps | None = None,
        log: PipelineLog | None = None,
        place: RunPlace | None = None,
        pickled: bytes | None = None,
    ) -> None:
        super().__init__(definition, store, recovery=recovery, rng=rng, taps=taps, log=log)
        self.place = place or OwnProcess(self.pipeline.id)
        self._pickled = pickled
        self._forced = trio.Event()
        self._stop_changed = trio.Event()
        self._before: Progress | None = None
        """The counts of children that were lost, and of earlier runs."""
        self._reported: Progress | None = None
        self._concluded: PipelineState | None = None
        self._runs = 0
        self._current: ChildRun | None = None

    @property
    def child(self) -> ChildProcess | None:
        """The process in which it runs now."""
        return self._current.child if self._current is not None else None

    def stop(self, by: Stopper = Stopper.USER) -> None:
        super().stop(by)
        self._wake_command()

    def force(self, by: Stopper = Stopper.USER) -> None:
        super().force(by)
        self._forced.set()
        self._wake_command()

    async def swap(self, graph: Graph, nodes: Collection[str]) -> None:
        """See Supervisor. Processors on Spark cannot be swapped while they run: a change restarts the pipeline."""
        assert not nodes or self.pipeline.spark is None, f"{', '.join(nodes)} cannot be exchanged on Spark"
        # A new description alone needs nothing in the child.
        pickled = await trio.to_thread.run_sync(pickle_or_refuse, graph.pipeline) if nodes else self._pickled
        while True:
            run, swapped = self._current, False
            if run is not None and nodes and pickled is not None:
                request = partial(SwapProcessors, run.number, pipeline=pickled, nodes=sorted(nodes))
                swapped = await run.ask(request) is not None
            # Another run may have begun meanwhile, with the old definition.
            if self._current is run:
                self._graph, self._pickled = graph, pickled
                if not swapped:
                    self._mended.set()
                return

    async def request_snapshot(self, source: str, request: SnapshotRequest) -> trio.Event:
        if self.pipeline.spark is not None:
            raise SnapshotRefused(
                f"pipeline {self.pipeline.id!r} runs on Spark, where sources take no requests",
                suggestion='run it on the engine "trio", or reset the position of the source',
            )
        run, taken = self._current, None
        if run is not None:
            taken = await run.ask(partial(TakeSnapshot, run.number, source=source, request=request))
        if taken is None:
            raise PipelineIdle(f"pipeline {self.pipeline.id!r} is not running", suggestion="start it first")
        return taken

    def progress(self) -> Progress:
        """The child's last report, plus the counts of children that were lost."""
        reported = self._reported or Progress(self.pipeline.id, "", 0.0, 0, 0, 0, 0, 0, None, [])
        seen = _sum_progress(self._before, reported)
        return msgspec.structs.replace(
            seen,
            recoveries=seen.recoveries + self._recoveries,
            status=self.state.status.value,
            elapsed_seconds=self._elapsed_seconds(),
            blocked_on=self._next_run() or self._blocked_on(reported),
        )

    def _blocked_on(self, reported: Progress) -> str | None:
        if self.child is None:
            return None
        silent = trio.current_time() - self.child.heard_at
        if self._reported is not None and silent > SILENT_SECONDS:
            return f"its process, which has sent nothing for {silent:.0f} s"
        if self._reported is None:
            return "its process, which is starting" if self.place.shared else "Spark, which is starting"
        return reported.blocked_on

    def _begin_run(self) -> None:
        self._run_began_at = trio.current_time()
        self._mended = trio.Event()
        self._concluded = None
        if self._runs:
            self._recoveries += self.state.status is not Status.WAITING
        self._runs += 1

    def _retries_at_once(self, ending: Ending) -> bool:
        # The child isolates failing transactions by itself. Here a run fails only because the child is gone.
        return False

    def _after(self, ending: Ending) -> PipelineState:
        if self._concluded is not None:
            # A user's stop may have crossed the message that it ended: it must stay stopped.
            stopped = self._concluded.status is Status.STOPPED and self._stopped_by is not None
            by = self._stopped_by if stopped else self._concluded.stopped_by
            return msgspec.structs.replace(self._concluded, stopped_by=by)
        if isinstance(ending.error, ProcessLost) and self.place.shared and self._stopped_by is None:
            # As after a crash of the server: it says nothing about this pipeline, and uses up none of its retries.
            self.error, self._failures.in_a_row = ending.error, 1
            return PipelineState(Status.RECOVERING, error=LastError.of(ending.error))
        return super()._after(ending)

    async def _execute(self) -> Ending:
        """Run the pipeline in a child, once. Invariant C2: the lock of the run is held until nothing of it is left."""
        try:
            return await self._run_child()
        except (ProcessLost, FatalError) as error:
            return Ending(How.FAILED, unless_exhausted(error))
        finally:
            self._add_counts()

    async def _run_child(self) -> Ending:
        if self._pickled is None:
            self._pickled = await trio.to_thread.run_sync(pickle_or_refuse, self.pipeline)
        # Pickling takes a while, and a stop that came meanwhile needs no process.
        if self._stop_requested.is_set():
            return Ending(How.STOPPED)
        timed_out: list[RunError] = []
        self._reported = None
        async with self.place.enter(self._store, self._take_report) as run, trio.open_nursery() as nursery:
            self._current = run
            nursery.start_soon(self._notify_of_letters, run)
            nursery.start_soon(run.relay_taps, self._taps)
            nursery.start_soon(self._command, run, self._pickled)
            nursery.start_soon(self._end_in_time, run, timed_out)
            await run.over.wait()
            nursery.cancel_scope.cancel()
        self._current = None
        if run.ended is not None:
            return self._conclude(run.ended)
        if self._forced.is_set():
            return Ending(How.FORCED)
        # Invariant C4: a lost child is a transient error.
        return Ending(How.FAILED, timed_out[0] if timed_out else self.place.loss_error(self.pipeline.id, run.child))

    def _take_report(self, report: RunReport) -> None:
        self._reported = report.progress
        self._adopt_state(report.state)

    async def _command(self, run: ChildRun, pickled: bytes) -> None:
        """Send the pipeline, then each request to stop that is stronger than the last."""
        child = run.child
        secrets = SECRETS.values - child.secrets_sent
        child.secrets_sent |= secrets
        try:
            recovery = self._recovery.model_dump_json()
            await child.link.send(StartRun(run.number, pickled, recovery, sys.path, sorted(secrets)))
            sent: tuple[Stopper | None, bool] = (None, False)
            while True:
                # Taken before the look: a request that comes in between sets this event, so none is missed.
                changed = self._stop_changed
                now = (self._stopped_by, self._forced.is_set())
                if now != sent and now[0] is not None:
                    await child.link.send(StopRun(run.number, now[0], now[1]))
                    sent = now
                await changed.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the child ended before a request was sent", self.pipeline.id)

    async def _notify_of_letters(self, run: ChildRun) -> None:
        """Notify the child when letters are queued: it looks for them at its start, then at each message."""
        queued = Signal()
        with self._store.letters.watch(self.pipeline.id, queued.set):
            try:
                while True:
                    await queued.wait()
                    await run.child.link.send(LettersQueued(self.pipeline.id))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("%s: the child ended before it was notified of letters", self.pipeline.id)

    async def _end_in_time(self, run: ChildRun, timed_out: list[RunError]) -> None:
        """Kill a child that does not stop in time, or whose run was cancelled."""
        try:
            await self._wait_for_deadline(timed_out)
        finally:
            # Not one that is about to end by itself: its exit code shows why.
            if not run.over.is_set() and not run.child.link.ended:
                if self.place.shared:
                    what = "%s did not stop in time: its process is ended, and what else runs there starts again"
                    log.error(what, self.pipeline.id)
                run.child.kill()

    async def _wait_for_deadline(self, timed_out: list[RunError]) -> None:
        await self._stop_requested.wait()
        seconds = self.pipeline.settings.stop_seconds + STOP_SECONDS
        with trio.move_on_after(seconds):
            await self._forced.wait()
        if self._forced.is_set():
            await trio.sleep(SHARED_FORCE_SECONDS if self.place.shared else FORCE_SECONDS)
        else:
            text = f"the graceful stop did not end within {seconds:g} s, and its process was ended"
            timed_out.append(StopTimedOut(text, suggestion="what was in flight will be read again"))

    def _adopt_state(self, state: PipelineState) -> None:
        """Adopt the child's state, unless it was sent before the child received the stop."""
        stopping = self._stopped_by is not None and state.status in (Status.RUNNING, Status.RECOVERING)
        lasting = state.status in (Status.RUNNING, Status.RECOVERING, Status.STOPPING)
        # The child cannot report why the process before it was lost: that error stays.
        error = state.error or self.state.error
        if not stopping and lasting and (state.status, error) != (self.state.status, self.state.error):
            self.state = msgspec.structs.replace(state, error=error)

    def _conclude(self, ended: RunEnded) -> Ending:
        if ended.error is not None:
            error = FatalError(ended.error.message, suggestion=ended.error.suggestion)
            return Ending(How.FAILED, error)
        assert ended.state is not None
        self._reported, self._concluded = ended.progress, ended.state
        return Ending(How.COMPLETED if ended.state.status is Status.COMPLETED else How.STOPPED)

    def _add_counts(self) -> None:
        """Add the counts of a child that has ended to those of the children before it."""
        if self._reported is not None:
            self._before, self._reported = _sum_progress(self._before, self._reported), None
            for meter in self._before.nodes:
                meter.rest()
            self._before = msgspec.structs.replace(self._before, in_flight=0, blocked_on=None)
        self._current = None

    def _wake_command(self) -> None:
        changed, self._stop_changed = self._stop_changed, trio.Event()
        changed.set()


def process_of(supervisor: Supervisor | None) -> int | None:
    """The number of the process that a pipeline shares; None if it runs in the server's own, or on Spark."""
    return supervisor.place.number if isinstance(supervisor, ChildSupervisor) else None


def shared_processes(supervisors: Iterable[Supervisor | None]) -> dict[int, ChildProcess]:
    """The processes in which these pipelines run now, by their numbers. Those on Spark are not among them."""
    running = [each for each in supervisors if isinstance(each, ChildSupervisor)]
    found = {each.place.number: each.child for each in running if each.child is not None}
    return {number: found[number] for number in sorted(filter(None, found))}


def _sum_progress(before: Progress | None, now: Progress) -> Progress:
    """The current progress with the counts of both."""
    if before is None:
        return now
    counts = ("read", "acked", "filtered", "dead_letters", "recoveries")
    earlier = {meter.node: meter for meter in before.nodes}
    return msgspec.structs.replace(
        now,
        nodes=[meter.plus(earlier.get(meter.node)) for meter in now.nodes] or before.nodes,
        **{name: getattr(before, name) + getattr(now, name) for name in counts},
    )


def pickle_or_refuse(pipeline: Pipeline) -> bytes:
    """The pipeline as the server has it, even if its file has changed since, for a run in a child.

    Raises FatalError when it cannot be pickled, or what pickles is not installed.
    """
    try:
        where = "a process of its own"
        return pickle_pipeline(pipeline, without_schedule(pipeline), parts_of(pipeline), where)
    except PipelineInvalid as error:
        raise FatalError(error.message, suggestion=error.suggestion) from error
    except ImportError as error:
        if pipeline.spark is None:
            what, hint = "a run in another process needs cloudpickle, which is not installed", "processes"
        else:
            what, hint = f"the engine spark needs pyspark, not installed here: {error}", "spark"
        raise FatalError(what, suggestion=f"pip install 'conduit-dataflow[{hint}]'") from error
