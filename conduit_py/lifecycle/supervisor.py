"""Supervisor: runs one pipeline, keeps its status, and restarts it after a transient error."""

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping

import trio

from conduit_py.backoff import Failures, Recovery
from conduit_py.errors import FatalError, PipelineIdle, RunElsewhere, RunError, StateFailed
from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.exactly_once.isolation import Isolation
from conduit_py.exhaustion import exhaustion_of
from conduit_py.graph.compile import as_graph
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.pipeline_log import RUN_OBSERVER, PipelineLog
from conduit_py.pipeline import Pipeline
from conduit_py.pipeline_settings import Delivery
from conduit_py.schedule import sleep_until
from conduit_py.sdk.endpoint import EndpointSource
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.source import SnapshotRefused, SnapshotRequest
from conduit_py.status import LastError, PipelineState, Status, Stopper
from conduit_py.store.store import Store
from conduit_py.stream.commit import CommitEach, CommitFirst, CommitSeries, CommitStrategy, IndependentRuns
from conduit_py.stream.meter import Meter, Progress, blocked_on
from conduit_py.stream.run import Ending, How, Run

log = logging.getLogger("conduit_py")

NO_RECOVERY = Recovery(retries=0)

STRATEGIES: Mapping[Delivery, tuple[type[CommitStrategy], Callable[[], CommitSeries]]] = {
    "at_least_once": (CommitEach, lambda: IndependentRuns(CommitEach)),
    "at_most_once": (CommitFirst, lambda: IndependentRuns(CommitFirst)),
    "exactly_once": (CommitTogether, Isolation),
}
"""The commit strategy of each guarantee. A new one is a strategy, a row here and one in `graph/guarantees.py`."""


class Supervisor:
    """Runs a pipeline until it is completed, stopped or degraded.

    An error that is not fatal starts the pipeline again after a back-off, as often as `recovery`
    allows. Invariant 10: once asked to stop, it never starts again by itself. The status and the first
    error are in the store before and after every run.

    A pipeline with a schedule waits after each run, with all connectors torn down. Times within a run are skipped.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._graph = as_graph(definition)
        self._store = store
        self._rng = rng or random.Random()
        self._taps = taps or Taps()
        self._log = log or PipelineLog(self.pipeline.id)
        self._clock, self._run_called_for = clock, trio.Event()
        self._awaited: float | None = None  # The time of the schedule whose run is not done yet.
        self._run: Run | None = None
        self._commits = STRATEGIES[self.pipeline.delivery][1]()
        self._stop_requested, self._mended = trio.Event(), trio.Event()
        self._stopped_by: Stopper | None = None
        self._recovery = recovery or self.pipeline.settings.recovery or NO_RECOVERY
        self._failures = Failures(self._recovery)
        self._started_at: float | None = None
        self._ended_at: float | None = None
        self._run_began_at, self._running = 0.0, False
        self._recoveries, self._earlier = 0, list[Meter]()
        self.state = PipelineState()
        self.error: RunError | StateFailed | None = None
        """The error of the last run; None if it completed or was stopped gracefully."""

    @property
    def graph(self) -> Graph:
        """What it runs now: the graph it was given, or the one that it was last swapped for."""
        return self._graph

    @property
    def pipeline(self) -> Pipeline:
        return self.graph.pipeline

    def stop(self, by: Stopper = Stopper.USER) -> None:
        """Ask for a graceful stop, which also ends a back-off. Does nothing once the pipeline has ended."""
        # A stop that comes too late must not overwrite the status that the pipeline ended with.
        if self._ended_at is not None:
            return
        # The user may stop for good what the system is stopping only to restart it.
        if self._stopped_by is None or (self._stopped_by is Stopper.SYSTEM and by is Stopper.USER):
            self._stopped_by = by
            self.state = PipelineState(Status.STOPPING, by, self.state.error)
        self._stop_requested.set()
        self._run_called_for.set()
        if self._run is not None:
            self._run.stop()

    def force(self, by: Stopper = Stopper.USER) -> None:
        """Stop at once; records in flight are read again by the next run."""
        self.stop(by)
        if self._run is not None:
            self._run.force()

    def run_now(self) -> bool:
        """End the wait of a pipeline for its next run. Returns False if it does not wait for one."""
        self._run_called_for.set()
        return self.state.status is Status.WAITING

    async def swap(self, graph: Graph, nodes: Collection[str]) -> None:
        """Continue with the processors that another graph, of the same shape, has at these nodes, in later runs too.

        In effect when it returns. Raises the error of a processor that cannot be opened; then nothing has
        changed. Ends a back-off: the new processors may have fixed the error.
        """
        while True:
            run = self._run
            swapped = run is not None and await run.swap(graph, nodes)
            # Another run may have begun meanwhile, with the old definition.
            if self._run is run:
                self._graph = graph
                if not swapped:
                    self._mended.set()
                return

    async def request_snapshot(self, source: str, request: SnapshotRequest) -> trio.Event:
        """Have a source read a collection as a whole, beside what it reads.

        Returns when the source has taken the request. The event is set when the request survives a crash. It is
        never set if the run ends before that. Raises SnapshotRefused, or PipelineIdle if the pipeline does not run.
        """
        if self._run is None or not self._running:
            raise PipelineIdle(f"pipeline {self.pipeline.id!r} is not running", suggestion="start it first")
        requests = self._run.snapshot_requests.get(source)
        if requests is None:
            raise SnapshotRefused(
                f"{source} does not read snapshots on request",
                suggestion="stop the pipeline and reset the position of the source to read everything again",
            )
        return await requests.request(request)

    def endpoint(self, source: str) -> EndpointSource[Options] | None:
        """The source that takes requests now; None if it takes none, or the pipeline is not at work."""
        return self._run.endpoints.get(source) if self._run is not None and self._running else None

    async def run(self) -> PipelineState:
        """Run to the end and return the final state. Failures are in the state, not raised."""
        self._started_at = trio.current_time()
        schedule, at = self.pipeline.schedule, await self._first_run()
        while True:
            if at is not None and not await self._wait_for_run(at):
                return await self._end(PipelineState(Status.STOPPED, self._stopped_by, self.state.error, next_run=at))
            at = None
            ending = await self._run_once()
            if self._retries_at_once(ending):
                # It does not count as a recovery, but still waits for writes that the last run left behind.
                await self._back_off(0)
                continue
            state = self._after(ending)
            if state.status is Status.COMPLETED and schedule is not None:
                self._failures.in_a_row = 0  # A failure of the next night is the first one again.
                at = self._awaited
                continue
            if state.status is not Status.RECOVERING:
                return await self._end(state)
            assert state.error is not None, "a pipeline recovers from an error"
            seconds = self._failures.delay(ending.error, self._rng)
            # Before the state is saved, which may take long: a store that hangs must not hide why.
            self._log.log_recovery(state.error, seconds, self._failures.in_a_row)
            if schedule is not None and isinstance(ending.error, RunElsewhere):
                self.state = state  # Not saved: the other server has stored how its run goes.
            else:
                await self._enter(state)
            await self._back_off(seconds)
            # Invariant 10: a stop during a back-off abandons the recovery.
            if self._stop_requested.is_set():
                return await self._end(PipelineState(Status.STOPPED, self._stopped_by, self.state.error))

    async def _first_run(self) -> float | None:
        """Return the first time to wait for; None if it runs at once."""
        schedule = self.pipeline.schedule
        if schedule is None:
            return None
        try:
            return schedule.first_run(await self._store.state(self.pipeline.id), self._clock())
        except StateFailed:
            return None  # The run fails for the same reason, and recovers from it.

    async def _wait_for_run(self, at: float) -> bool:
        """Wait for a time of the schedule. Returns False if a stop came first."""
        self._awaited = at
        if at > self._clock() and not self._stop_requested.is_set():
            self._run_called_for = trio.Event()
            await self._enter(PipelineState(Status.WAITING, next_run=at))
            self._log.log_wait(self._next_run() or "", self.progress())
            await sleep_until(at, self._clock, self._run_called_for)
        return not self._stop_requested.is_set()

    async def _run_once(self) -> Ending:
        # Invariant 10: nothing runs once a stop was asked for.
        if self._stop_requested.is_set():
            return Ending(How.STOPPED)
        self._begin_run()
        try:
            # Held for the whole run, or two processes with one store would both move the positions.
            async with self._store.run_lock(self.pipeline.id):
                ending = await self._run_alone()
                if ending.how is How.COMPLETED and self.pipeline.schedule is not None:
                    # Before the lock is released: a server that gets it then must see that this run is done.
                    self._awaited = self.pipeline.schedule.next_after(self._clock())
                    status = Status.WAITING if self._stopped_by is None else Status.STOPPED
                    await self._save(PipelineState(status, self._stopped_by, next_run=self._awaited))
                return ending
        except (RunElsewhere, StateFailed) as error:
            return Ending(How.FAILED, error)
        except Exception as error:
            exhausted = exhaustion_of(error)
            if exhausted is None:
                raise
            return Ending(How.FAILED, exhausted)

    def _begin_run(self) -> None:
        if self._run is not None:
            self._recoveries += self.state.status is not Status.WAITING
            self._earlier = self._totals()
        self._run_began_at = trio.current_time()
        self._mended = trio.Event()  # A new one: a swap in an earlier back-off must not cut the next one short.
        commit = self._commits.next(self._graph, self._store)
        self._run = Run(self._graph, self._store, commit, rng=self._rng, taps=self._taps)

    async def _run_alone(self) -> Ending:
        # Another server may have done this run while this one waited for the lock.
        owed = None if self._run_called_for.is_set() else self._awaited
        if owed is not None and ((await self._store.state(self.pipeline.id)).next_run or 0.0) > owed:
            return Ending(How.COMPLETED)
        # Before anything runs: after a crash, a server starts what was running again.
        unsaved = await self._enter(PipelineState(Status.RUNNING, error=self.state.error))
        if unsaved is not None:
            return Ending(How.FAILED, unsaved)
        return await RUN_OBSERVER.get()(self.graph, self._execute)

    async def _execute(self) -> Ending:
        assert self._run is not None
        self._running = True
        try:
            return await self._run.execute()
        finally:
            self._running = False

    def _retries_at_once(self, ending: Ending) -> bool:
        """True if a transaction failed because of a single record: the next run isolates it."""
        # A run that never began, because a stop came first, has no strategy to ask.
        return not self._stop_requested.is_set() and self._commits.retries_at_once(ending.error)

    def _after(self, ending: Ending) -> PipelineState:
        self.error = ending.error
        error = LastError.of(ending.error) if ending.error is not None else None
        if self._stopped_by is not None:
            status = Status.COMPLETED if ending.how is How.COMPLETED else Status.STOPPED
            return PipelineState(status, self._stopped_by if status is Status.STOPPED else None, error)
        if ending.how is How.COMPLETED:
            return PipelineState(Status.COMPLETED)
        # Repeating a fatal error changes nothing, and the pauses would hide it from the user.
        may_help = ending.error is not None and not isinstance(ending.error, FatalError)
        recovers = may_help and self._failures.add(ending.error, trio.current_time(), self._run_began_at)
        return PipelineState(Status.RECOVERING if recovers else Status.DEGRADED, error=error)

    async def _back_off(self, seconds: float) -> None:
        """Wait before the next run, and until writes that the last one left behind have ended; a stop ends it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_stop, nursery.cancel_scope)
            with trio.move_on_after(seconds):
                await self._mended.wait()
            # A write that still runs in a thread could land after newer ones of the next run.
            if self._run is not None:
                await self._run.join_writes()
            nursery.cancel_scope.cancel()

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        await self._stop_requested.wait()
        scope.cancel()

    async def _end(self, state: PipelineState) -> PipelineState:
        """Save the final state, then show it."""
        # In this order: a caller that sees the end may start it at once, and that state must not be overwritten.
        self._ended_at = trio.current_time()
        unsaved = await self._save(state)
        if unsaved is not None and state.error is None:
            state = PipelineState(state.status, state.stopped_by, LastError.of(unsaved))
            self.error = unsaved
        self.state = state
        return state

    async def _enter(self, state: PipelineState) -> StateFailed | None:
        """Change the state and save it. The state holds even if it could not be saved; then returns the error."""
        # A stop that was requested meanwhile must stay visible.
        stopping = self._stopped_by is not None and state.status in (Status.RUNNING, Status.RECOVERING, Status.WAITING)
        self.state = PipelineState(Status.STOPPING, self._stopped_by, state.error) if stopping else state
        return await self._save(self.state)

    async def _save(self, state: PipelineState) -> StateFailed | None:
        try:
            await self._store.save_state(self.pipeline.id, state)
        except StateFailed as error:
            log.warning("%s is %s, which could not be saved: %s", self.pipeline.id, state.status, error.message)
            return error
        return None

    def progress(self) -> Progress:
        """A snapshot of the pipeline, with totals over all runs so far."""
        meters = self._totals()
        status, waits_for = self.state.status.value, self._next_run() or blocked_on(meters)
        return Progress.over(meters, self.pipeline.id, status, self._elapsed_seconds(), waits_for, self._recoveries)

    def _next_run(self) -> str | None:
        at, schedule = self.state.next_run, self.pipeline.schedule
        if self.state.status is not Status.WAITING or at is None or schedule is None:
            return None
        return f"the next run, at {schedule.describe(at)}"

    def _elapsed_seconds(self) -> float:
        if self._started_at is None:
            return 0.0
        return (trio.current_time() if self._ended_at is None else self._ended_at) - self._started_at

    def _totals(self) -> list[Meter]:
        if self._run is None:
            return []
        if self._running:
            self._run.refresh_gauges()
        earlier = {meter.node: meter for meter in self._earlier}
        totals = [meter.plus(earlier.get(meter.node)) for meter in self._run.meters]
        if not self._running:
            for total in totals:
                total.rest()
        return totals


def channel_size(delivery: Delivery) -> int:
    """How many batches may wait on an edge of a pipeline with this guarantee."""
    return STRATEGIES[delivery][0].channel_size
