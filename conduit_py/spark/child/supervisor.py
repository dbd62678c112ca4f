"""ChildSupervisor: the server's side of a pipeline that runs on Spark in a process of its own.

C1. Only the server keeps state. A change is durable on the server before the child's call returns.
C2. A pipeline has at most one process: the next one starts after the last one, its Java included, has ended and
    all of its calls of the store are done. From then on nothing of it can change the state.
C3. No child outlives its server.
C4. A lost child is a transient error: recovery starts the pipeline again.
"""

import logging
import random
import sys
from collections.abc import Collection

import msgspec
import trio

from conduit_py.backoff import Recovery
from conduit_py.errors import (
    FatalError,
    PipelineInvalid,
    RunElsewhere,
    RunError,
    StateFailed,
    StopTimedOut,
)
from conduit_py.exhaustion import exhaustion_of, unless_exhausted
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap import Taps
from conduit_py.lifecycle.pipeline_log import PipelineLog
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Pipeline
from conduit_py.spark.child.process import (
    ChildProcess,
    LettersQueued,
    PipelineEnded,
    ProcessLost,
    ProgressReport,
    StartPipeline,
    StopPipeline,
    StoreCall,
    start_child,
)
from conduit_py.spark.child.store import answer_call
from conduit_py.spark.engine.pickling import parts_of, pickle_pipeline
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress
from conduit_py.stream.run import Ending, How
from conduit_py.stream.signal import Signal

log = logging.getLogger("conduit_py")

FORCE_SECONDS = 5.0
"""How long a child may take for a forceful stop before it is killed."""
STOP_SECONDS = 15.0
"""How much longer than the pipeline's own deadline a graceful stop may take before the child is killed."""
SILENT_SECONDS = 5.0
"""After how long without a message the progress names the silent child as the reason to wait."""


class ChildSupervisor(Supervisor):
    """Runs a pipeline in a child process. The child handles its own recovery; this class handles the child dying."""

    def __init__(
        self,
        definition: Pipeline | Graph,
        store: Store,
        *,
        recovery: Recovery | None = None,
        rng: random.Random | None = None,
        taps: Taps | None = None,
        log: PipelineLog | None = None,
    ) -> None:
        super().__init__(definition, store, recovery=recovery, rng=rng, taps=taps, log=log)
        self._forced = trio.Event()
        self._stop_changed = trio.Event()
        self._before: Progress | None = None
        """The counts of children that were lost."""
        self._reported: Progress | None = None
        self._reported_at = 0.0
        self._concluded: PipelineState | None = None
        self._children = 0
        self.child: ChildProcess | None = None

    def stop(self, by: Stopper = Stopper.USER) -> None:
        super().stop(by)
        self._wake_command()

    def force(self, by: Stopper = Stopper.USER) -> None:
        super().force(by)
        self._forced.set()
        self._wake_command()

    async def swap(self, graph: Graph, nodes: Collection[str]) -> None:
        """Use another graph. Processors on Spark cannot be swapped while they run: a change restarts the pipeline."""
        assert not nodes, f"{', '.join(nodes)} cannot be exchanged on Spark"
        self._graph = graph
        await trio.lowlevel.checkpoint()

    def progress(self) -> Progress:
        """The child's last report, plus the counts of children that were lost."""
        reported = self._reported or Progress(self.pipeline.id, "", 0.0, 0, 0, 0, 0, 0, None, [])
        seen = _sum_progress(self._before, reported)
        return msgspec.structs.replace(
            seen,
            recoveries=seen.recoveries + self._recoveries,
            status=self.state.status.value,
            elapsed_seconds=self._elapsed_seconds(),
            blocked_on=self._blocked_on(reported) if self.child is not None else None,
        )

    def _blocked_on(self, reported: Progress) -> str | None:
        if self._reported is None:
            return "Spark, which is starting"
        silent = trio.current_time() - self._reported_at
        if silent > SILENT_SECONDS:
            return f"its process, which has sent nothing for {silent:.0f} s"
        return reported.blocked_on

    async def _run_once(self) -> Ending:
        if self._stop_requested.is_set():
            return Ending(How.STOPPED)
        self._run_began_at = trio.current_time()
        self._mended = trio.Event()
        if self._children:
            self._recoveries += 1
        self._children += 1
        try:
            # Invariant C2: held until the child and its calls are gone, so no other process runs the pipeline.
            async with self._store.run_lock(self.pipeline.id):
                return await self._run_child()
        except (RunElsewhere, StateFailed, ProcessLost, FatalError) as error:
            return Ending(How.FAILED, unless_exhausted(error))
        except Exception as error:
            exhausted = exhaustion_of(error)
            if exhausted is None:
                raise
            return Ending(How.FAILED, exhausted)
        finally:
            self._add_counts()

    def _retries_at_once(self, ending: Ending) -> bool:
        # The child isolates failing transactions by itself. Here a run fails only because the child is gone.
        return False

    def _after(self, ending: Ending) -> PipelineState:
        if self._concluded is None:
            return super()._after(ending)
        # A user's stop may have crossed the message that it ended: it must stay stopped.
        stopped = self._concluded.status is Status.STOPPED and self._stopped_by is not None
        by = self._stopped_by if stopped else self._concluded.stopped_by
        return msgspec.structs.replace(self._concluded, stopped_by=by)

    async def _run_child(self) -> Ending:
        unsaved = await self._enter(PipelineState(Status.RUNNING, error=self.state.error))
        if unsaved is not None:
            return Ending(How.FAILED, unsaved)
        begin = await trio.to_thread.run_sync(start_message, self.pipeline, self._recovery)
        # Pickling takes a while, and a stop that came meanwhile needs no process.
        if self._stop_requested.is_set():
            return Ending(How.STOPPED)
        timed_out: list[RunError] = []
        async with start_child(self.pipeline.id) as child, trio.open_nursery() as nursery:
            self.child, self._reported = child, None
            nursery.start_soon(self._notify_of_letters, child)
            nursery.start_soon(self._command, child, begin)
            nursery.start_soon(self._end_in_time, child, timed_out)
            # Invariant C2: a nursery of its own, so that every call of the store is done before the child is gone.
            async with trio.open_nursery() as answering:
                ended = await self._handle_messages(child, answering)
            nursery.cancel_scope.cancel()
        self.child = None
        if ended is not None:
            return self._conclude(ended)
        if self._forced.is_set():
            return Ending(How.FORCED)
        # Invariant C4: a lost child is a transient error.
        return Ending(How.FAILED, timed_out[0] if timed_out else child.loss_error())

    async def _handle_messages(self, child: ChildProcess, answering: trio.Nursery) -> PipelineEnded | None:
        """Handle the child's messages until it has ended; None if it ended without saying how."""
        ended = None
        while (message := await child.link.receive()) is not None:
            self._reported_at = trio.current_time()
            if isinstance(message, StoreCall):
                answering.start_soon(self._answer, child, message)
            elif isinstance(message, ProgressReport):
                self._reported = message.progress
                self._adopt_state(message.state)
            else:
                ended = message
        return ended

    async def _answer(self, child: ChildProcess, call: StoreCall) -> None:
        # Invariant C1: the store has made it durable before the child is answered.
        answer = await answer_call(self._store, call)
        try:
            await child.link.send(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the child ended before an answer was sent", self.pipeline.id)

    async def _command(self, child: ChildProcess, begin: StartPipeline) -> None:
        """Send the pipeline, then each request to stop that is stronger than the last."""
        try:
            await child.link.send(begin)
            sent: tuple[Stopper | None, bool] = (None, False)
            while True:
                # Taken before the look: a request that comes in between sets this event, so none is missed.
                changed = self._stop_changed
                now = (self._stopped_by, self._forced.is_set())
                if now != sent and now[0] is not None:
                    await child.link.send(StopPipeline(now[0], now[1]))
                    sent = now
                await changed.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the child ended before a request was sent", self.pipeline.id)

    async def _notify_of_letters(self, child: ChildProcess) -> None:
        """Notify the child when letters are queued: it looks for them at its start, then at each message."""
        queued = Signal()
        with self._store.letters.watch(self.pipeline.id, queued.set):
            try:
                while True:
                    await queued.wait()
                    await child.link.send(LettersQueued())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("%s: the child ended before it was notified of letters", self.pipeline.id)

    async def _end_in_time(self, child: ChildProcess, timed_out: list[RunError]) -> None:
        """Kill a child that does not stop in time, or whose run was cancelled."""
        try:
            await self._wait_for_deadline(timed_out)
        finally:
            # Not one that is about to end by itself: its exit code shows why.
            if not child.link.ended:
                child.kill()

    async def _wait_for_deadline(self, timed_out: list[RunError]) -> None:
        await self._stop_requested.wait()
        seconds = self.pipeline.settings.stop_seconds + STOP_SECONDS
        with trio.move_on_after(seconds):
            await self._forced.wait()
        if self._forced.is_set():
            await trio.sleep(FORCE_SECONDS)
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

    def _conclude(self, ended: PipelineEnded) -> Ending:
        if ended.error is not None:
            error = FatalError(ended.error.message, suggestion=ended.error.suggestion)
            return Ending(How.FAILED, error)
        assert ended.state is not None
        self._reported, self._concluded = ended.progress, ended.state
        return Ending(How.STOPPED)

    def _add_counts(self) -> None:
        """Add the counts of a child that has ended to those of the children before it."""
        if self._reported is not None:
            self._before, self._reported = _sum_progress(self._before, self._reported), None
            for meter in self._before.nodes:
                meter.rest()
            self._before = msgspec.structs.replace(self._before, in_flight=0, blocked_on=None)
        self.child = None

    def _wake_command(self) -> None:
        changed, self._stop_changed = self._stop_changed, trio.Event()
        changed.set()


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


def start_message(pipeline: Pipeline, recovery: Recovery) -> StartPipeline:
    """The first message to a child: the pipeline as the server has it, even if its file has changed since.

    Raises FatalError when the pipeline cannot be pickled, or PySpark is not installed.
    """
    try:
        pickled = pickle_pipeline(pipeline, pipeline, parts_of(pipeline), "a process of its own")
    except PipelineInvalid as error:
        raise FatalError(error.message, suggestion=error.suggestion) from error
    except ImportError as error:
        what = f"the engine spark needs pyspark, not installed here: {error}"
        raise FatalError(what, suggestion="pip install 'conduit-dataflow[spark]'") from error
    debug = logging.getLogger("conduit_py").isEnabledFor(logging.DEBUG)
    return StartPipeline(pickled, recovery.model_dump_json(), sys.path, debug)
