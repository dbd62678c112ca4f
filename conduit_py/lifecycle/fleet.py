"""Fleet: many pipelines in one process, isolated from each other."""

import logging
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime

import trio

from conduit_py.backoff import Recovery
from conduit_py.errors import (
    PipelineBusy,
    PipelineIdle,
    PipelineUnknown,
    PositionBound,
    PositionUnknown,
    Problem,
    ShuttingDown,
)
from conduit_py.graph.compile import as_graph
from conduit_py.graph.node import Graph, stateful_processors
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.dead_letter_service import DeadLetterService
from conduit_py.lifecycle.pipeline_log import PROGRAM, SERVER_START, PipelineLog
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Pipeline
from conduit_py.positions import HistoryPoint, PositionHistory
from conduit_py.sdk.plugin import at
from conduit_py.status import LastError, PipelineState, Status, Stopper
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress
from conduit_py.stream.plugin_calls import check_position
from conduit_py.user_errors import as_error

log = logging.getLogger("conduit_py")


class Member:
    """A pipeline of the fleet, running or not."""

    def __init__(self, graph: Graph, state: PipelineState) -> None:
        self.graph = graph
        self.ended = trio.Event()
        # Set from the start: a task that waits for the end of a pipeline that never ran must not wait for ever.
        self.ended.set()
        self.supervisor: Supervisor | None = None
        self.definition: Problem | None = None
        """The problem with its newest definition, if that could not take effect."""
        self.taps = Taps()
        self.log = PipelineLog(graph.pipeline.id)
        self.asked_by = PROGRAM
        """Who asked for its last start or, once there is one, for the stop that followed."""
        self._known = state

    @property
    def pipeline(self) -> Pipeline:
        return self.graph.pipeline

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    @property
    def state(self) -> PipelineState:
        """The state of its current or last run here, else the one from the store."""
        return self.supervisor.state if self.supervisor is not None else self._known

    def progress(self) -> Progress | None:
        """Counters since it was last started here; None if it was not."""
        return self.supervisor.progress() if self.supervisor is not None else None


class Fleet:
    """Starts, stops and replaces pipelines, which share a store and nothing else.

    A pipeline that fails, blocks or ignores a stop affects no other. `boot` starts what the system stopped (by a
    shutdown or a crash) again, but not what the user stopped, what is completed or degraded. Nothing is
    started during a shutdown.

    `engine` makes the supervisor of a pipeline. Without one, all run in this process, and none on Spark.
    """

    def __init__(
        self,
        store: Store,
        nursery: trio.Nursery,
        *,
        recovery: Recovery | None = None,
        engine: Callable[..., Supervisor] | None = None,
    ) -> None:
        self._store = store
        self._nursery = nursery
        self._recovery = recovery or Recovery()
        self._engine = engine
        self._members: dict[str, Member] = {}
        self.file_problems: tuple[Problem, ...] = ()
        """What is wrong with the pipeline files, as last read: of these definitions none is in effect."""
        self._shutting_down = False

    def __iter__(self) -> Iterator[Member]:
        # A copy: loops over the fleet wait, and a reload may add or remove members meanwhile.
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, id: str) -> Member:
        try:
            return self._members[id]
        except KeyError:
            raise PipelineUnknown(f"there is no pipeline {id!r}", suggestion=self._known_ids()) from None

    @property
    def problems(self) -> list[Problem]:
        """Each problem that keeps a definition from taking effect: in a file, or when its processors were opened."""
        problems = dict.fromkeys(self.file_problems)
        for member in self:
            if member.definition is not None and member.definition not in problems:
                # A problem of a file names the pipeline; the pipeline has the same one without its name.
                problems.setdefault(at(member.definition, member.pipeline.id))
        return list(problems)

    async def add(self, definition: Pipeline | Graph) -> Member:
        """Add a pipeline, not started. Raises PipelineInvalid with all its problems."""
        graph = as_graph(definition)
        id = graph.pipeline.id
        # One member an id: two runs would move one set of positions.
        if id in self._members:
            raise PipelineBusy(f"there is a pipeline {id!r} already")
        member = self._members[id] = Member(graph, await self._store.state(id))
        return member

    async def boot(self, *, asked_by: str = SERVER_START) -> None:
        """Start the pipelines that were running, or had never run, when the process last ended."""
        await self.resume(*(member.pipeline.id for member in self), asked_by=asked_by)

    async def resume(self, *ids: str, asked_by: str = PROGRAM) -> None:
        """Start pipelines, each unless the user stopped it, or it is completed or degraded."""
        # All are read before any runs: each read would wait for those that have much to do.
        for id, state in [(id, await self._store.state(id)) for id in ids]:
            by_user = state.status is Status.STOPPED and state.stopped_by is Stopper.USER
            completed = state.status is Status.COMPLETED and self[id].pipeline.schedule is None
            if by_user or completed or state.status is Status.DEGRADED:
                self[id].log.log_left_alone(state)
            elif not self[id].running:
                self.start(id, asked_by=asked_by)

    def start(self, id: str, *, asked_by: str = PROGRAM) -> None:
        """Start a pipeline, or the next run of one that waits for it; returns at once. The log says who asked."""
        member = self[id]
        if self._shutting_down:
            raise ShuttingDown("the server is shutting down and starts no pipelines")
        if member.running:
            if member.supervisor is None or not member.supervisor.run_now():
                raise PipelineBusy(f"pipeline {id!r} is running already")
            return
        # This function must not await: a second start in between would run the pipeline twice.
        recovery = member.pipeline.settings.recovery or self._recovery
        assert self._engine or member.pipeline.spark is None, "this fleet has no Spark"
        engine = self._engine or Supervisor
        member.supervisor = engine(member.graph, self._store, recovery=recovery, taps=member.taps, log=member.log)
        # A new event: a task that waits for the old one waits for the end of the old run.
        member.ended = trio.Event()
        member.asked_by = asked_by
        member.log.log_start(asked_by)
        self._nursery.start_soon(self._supervise, member, member.supervisor, name=f"pipeline {id}")

    def stop(self, id: str, *, force: bool = False, by: Stopper = Stopper.USER, asked_by: str = PROGRAM) -> None:
        """Ask a pipeline to stop, gracefully or at once. Returns before it has stopped."""
        member = self[id]
        if not member.running or member.supervisor is None:
            raise PipelineIdle(f"pipeline {id!r} is not running")
        # A shutdown does not take over a stop that a user asked for, or that began before it.
        if by is Stopper.USER or member.state.stopped_by is None:
            member.asked_by = asked_by
        (member.supervisor.force if force else member.supervisor.stop)(by)

    async def restart(self, id: str, *, asked_by: str = PROGRAM) -> None:
        """Stop a pipeline if it is running, wait for that, and start it, unless the user stops it meanwhile."""
        member = self[id]
        if member.running:
            stopped_before = member.state.stopped_by
            self.stop(id, by=Stopper.SYSTEM, asked_by=asked_by)
            await member.ended.wait()
            # The user stopped it while it was stopping for the restart: that is the later wish.
            if stopped_before is not Stopper.USER and member.state.stopped_by is Stopper.USER:
                return
        self.start(id, asked_by=asked_by)

    async def replace(self, definition: Pipeline | Graph, *, asked_by: str = PROGRAM) -> None:
        """Continue with another definition under the same id: what runs is drained first, then started again.

        What the user stops, before or meanwhile, stays stopped.
        """
        graph = as_graph(definition)
        member = self[graph.pipeline.id]
        # Before the drain, which stops it.
        was_running = member.running
        await self._drain(member, asked_by)
        member.graph = graph
        if was_running and member.state.stopped_by is not Stopper.USER:
            self.start(graph.pipeline.id, asked_by=asked_by)

    async def _drain(self, member: Member, asked_by: str) -> None:
        while member.running:
            self.stop(member.pipeline.id, by=Stopper.SYSTEM, asked_by=asked_by)
            # Another task that waits for the end may start it again at once, with the old definition.
            await member.ended.wait()

    async def swap(self, definition: Pipeline | Graph, nodes: Collection[str]) -> None:
        """Continue with another definition that differs in the processors of these nodes only, without stopping.

        Raises the error of a processor that cannot be opened; then nothing has changed.
        """
        graph = as_graph(definition)
        member = self[graph.pipeline.id]
        while True:
            supervisor = member.supervisor
            if supervisor is not None and member.running:
                await supervisor.swap(graph, nodes)
            # It may have been restarted meanwhile, with the old definition.
            if member.supervisor is supervisor:
                member.graph = graph
                return

    async def remove(self, id: str, *, asked_by: str = PROGRAM) -> None:
        """Drain a pipeline and remove it; its positions stay in the store."""
        await self._drain(self[id], asked_by)
        # No KeyError: another task may have removed it while this one waited for the drain.
        self._members.pop(id, None)

    @property
    def letters(self) -> DeadLetterService:
        """The dead letters in the store, including those of pipelines that are no longer here."""
        return DeadLetterService(self._store.letters, lambda: dict(self._members))

    async def positions(self, id: str) -> dict[str, bytes]:
        """The position after which each source would resume."""
        return await self._store.positions(self[id].pipeline.id)

    async def set_position(self, id: str, source: str, position: bytes | None, *, keep_state: bool = False) -> None:
        """Make a source resume after `position`, or from the beginning; only while the pipeline is stopped.

        State of processors has counted what was read, so it would not fit the new position. With `keep_state` it is
        kept all the same: records that are read again count twice, skipped ones not at all.
        """
        member = self.with_source(id, source)
        _require_idle(member)
        # Rewinding alone would count records twice in the state, and nothing would show it.
        if not keep_state:
            await self._require_no_state(member, source)
        if position is None:
            await self._store.forget_positions(id, source)
        else:
            connector = next(each.connector for each in member.pipeline.sources if each.id == source)
            check_position(source, connector, position)
            await self._store.save_positions(id, {source: position})

    async def start_over(self, id: str) -> None:
        """Reset all sources to the beginning and delete the state of processors, atomically.

        Only while the pipeline is stopped.
        """
        member = self[id]
        _require_idle(member)
        # One write for positions and state: a crash between two would leave state that has counted unread records.
        await self._store.reset_claim(id)

    async def _require_no_state(self, member: Member, source: str) -> None:
        pipeline, claimed = member.pipeline, await self._store.claim_state(member.pipeline.id)
        keeping = stateful_processors(member.graph)
        if keeping and claimed is not None and claimed.checkpoint is not None:
            raise PositionBound(
                f"{', '.join(keeping)} of pipeline {pipeline.id!r} keeps state that has counted what was read; "
                f"it would not belong to another position of {source!r}",
                suggestion=f"start over, with the state forgotten (`conduit-py positions reset {pipeline.id} --all`), "
                "or change the position and leave the state as it is (`--keep-state`)",
            )

    async def position_history(self, id: str, source: str) -> PositionHistory:
        """The points of the past to which a source can be set back."""
        self.with_source(id, source)
        return await self._store.position_history(id, source)

    async def replay(self, id: str, source: str, since: float, *, keep_state: bool = False) -> HistoryPoint:
        """Make a source read again what was settled since a time, or a little before; see `set_position`."""
        past = await self.position_history(id, source)
        point = past.at(since)
        if point is None:
            known = f"the oldest point is at {_utc(past.points[0].at)}" if past.points else "no point is known yet"
            raise PositionUnknown(
                f"it is not known where {source!r} was at {_utc(since)}: {known}",
                suggestion="replay from a later time, or from the start",
            )
        await self.set_position(id, source, point.position, keep_state=keep_state)
        return point

    def with_source(self, id: str, source: str) -> Member:
        member = self[id]
        if source not in {each.id for each in member.graph.sources}:
            known = ", ".join(each.id for each in member.graph.sources)
            raise PipelineUnknown(f"pipeline {id!r} has no source {source!r}", suggestion=f"sources are {known}")
        return member

    async def shutdown(self, seconds: float, *, asked_by: str = PROGRAM) -> None:
        """Drain all pipelines for at most `seconds`, then force the rest to stop."""
        # First of all, so that a task that waits for a pipeline to end does not start it again.
        self._shutting_down = True
        running = [member for member in self if member.running]
        for member in running:
            self.stop(member.pipeline.id, by=Stopper.SYSTEM, asked_by=asked_by)
        with trio.move_on_after(seconds):
            for member in running:
                await member.ended.wait()
        # By the system, so that the next boot starts them again.
        for member in running:
            if member.running:
                self.stop(member.pipeline.id, force=True, by=Stopper.SYSTEM, asked_by=asked_by)
        for member in running:
            await member.ended.wait()

    async def _supervise(self, member: Member, supervisor: Supervisor) -> None:
        try:
            state = await supervisor.run()
            member.log.log_end(state, supervisor.progress(), member.asked_by)
        except BaseException as raised:  # a boundary: no pipeline may take the others down with it
            error = as_error(raised)
            log.exception("pipeline %s ended by an error of conduit-py itself", member.pipeline.id)
            supervisor.state = PipelineState(Status.DEGRADED, error=LastError.of(error))
        finally:
            # In any case: a drain waits for this event without a deadline.
            member.ended.set()

    def _known_ids(self) -> str:
        ids = sorted(self._members)
        known = f"pipelines are {', '.join(ids)}" if ids else "no pipeline is loaded"
        count = len(self.file_problems)
        # It may be there, in a file that could not be loaded.
        hidden = f"; {count} problem{'s' * (count > 1)} in the pipeline files: see `conduit-py pipelines list`"
        return known + hidden if count else known


def _require_idle(member: Member) -> None:
    if member.running:
        raise PipelineBusy(
            f"pipeline {member.pipeline.id!r} is running", suggestion="stop it first: it would overwrite the position"
        )


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
