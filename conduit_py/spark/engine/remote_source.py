"""RemoteSource: a source on the driver. Executors read and process its records, and `read` returns their outcomes."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from conduit_py import sdk
from conduit_py.errors import FatalError, Problem, RecordRefused
from conduit_py.record import CollectionSchema, Record
from conduit_py.sdk.destination import PartId
from conduit_py.sdk.plugin import Options, Place
from conduit_py.sdk.source import EndOfSource, Lag, NothingYet, Reading
from conduit_py.spark.engine.executors import ExecutorCounts, Executors, JobPace, SparkJob, even_size
from conduit_py.spark.engine.outcome import TaskResult, group
from conduit_py.spark.engine.read_ahead import ReadAhead, ReadRecord, measure_rest
from conduit_py.spark.engine.split import way_to_read
from conduit_py.spark.engine.task import CarriedRecords, TaskInput, carry_records
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.stream.plugin_calls import PluginCaller, is_async

PART_SIZE = 16 * 1024 * 1024
"""Bytes of input in a task: enough to be worth the milliseconds that a task costs."""
JOB_SIZE = 64 * 1024 * 1024
"""Bytes of input in a job whose output the driver holds, however many cores there are."""
CARRIED_MAX = 8192
"""Records in a task whose source only the driver can read."""
JOB_CARRIED_MAX = 65_536
"""Records in a job of such tasks."""


class Equipment(NamedTuple):
    """What instances of destinations on executors are given first, by their place in the pipeline.

    With `staged` nothing of the output comes to the driver but manifests.
    """

    given: dict[int, bytes]
    staged: bool = False


class JobSettings(NamedTuple):
    """What the jobs of all sources of a pipeline have in common."""

    plan: bytes
    spark: SparkOptions
    counts: ExecutorCounts
    part_size: int
    find_equipment: Callable[[], Awaitable[Equipment | None]]


PROGRESS_MAX = 1000
"""Positions without a record that may wait for their acks."""
JOBS_AHEAD = 2
"""Jobs that run while the driver writes. With one alone, executors would be idle between two jobs."""


class _Work(NamedTuple):
    """What was begun for one part of the input: a job, if it has records, and what the source said around them."""

    job: SparkJob | None
    schemas: Sequence[CollectionSchema] = ()
    position: bytes | None = None


class _Announced(NamedTuple):
    """What a source said between two records, at its place among the results of jobs."""

    schemas: Sequence[CollectionSchema] = ()
    position: bytes | None = None


class RemoteSource(sdk.SourceConnector[Options]):
    """Executors process the records of a source; `read` returns an outcome for each, in order, at its position.

    Executors themselves read a source that can be split, some jobs ahead of what the driver writes. Any other source
    is read here, and its records are sent along with the tasks. Its schemas go with them. Progress without a record
    takes its place behind the outcomes before it. Positions, acks and hooks are the source's own, so
    the rest of the run is as on one machine: either engine reads again what was not acked.

    If there is equipment when it is opened, all records of a task have one outcome, with what destinations take.
    The number of those given out and not acked is bounded, because each is as large as the input of its task.
    """

    def __init__(self, node: str, place: int, source: sdk.SourceConnector[Any], settings: JobSettings) -> None:
        self._node = node
        self._source_place = place
        self._parts = 0
        """How many parts of the input there are by now."""
        self._source = source
        self._settings = settings
        self._part_size = settings.part_size
        self._equipment: Equipment | None = None
        self._pace = JobPace()
        self._splits = way_to_read(source, settings.spark).by == "executors"
        self._executors = Executors(settings.spark)
        self._calls = PluginCaller(node, source)
        # Callers of their own: an ack must not wait behind a `read` that waits for input.
        self._ack_calls = PluginCaller(f"{node}-ack", source)
        self._lag_calls = PluginCaller(f"{node}-lag", source)
        # One position for a part, wherever the source allows it: what a task returns must not grow with its records.
        last = isinstance(source, sdk.SplittableSource) and source.acks_last
        self._acks_each = not last and not self._ack_calls.inherits("ack")
        self._start: bytes | None = None
        self._done: deque[bytes | _Announced] = deque()
        self._ready: deque[Record] = deque()
        self._jobs: deque[_Work] = deque()
        self._given_out = 0
        self._given_progress: dict[bytes, None] = {}
        """Positions without a record that were given out and not acked."""
        self._schemas: dict[str, CollectionSchema] = {}
        """What the source has announced up to the records of the last job."""
        self._task_positions: dict[bytes, list[bytes]] = {}
        """By the position of an outcome for a whole task: the positions of all its records, until it is acked."""
        self._acked = trio.Event()
        self._waiting = trio.CancelScope()
        self._read_ahead: ReadAhead | None = None

    # The rest of the runtime sees the options, hooks and problems of the real source.

    @property
    def declared(self) -> sdk.SourceConnector[Any]:
        return self._source

    @property
    def options(self) -> Any:
        return self._source.options

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        return self._source.resumable

    @property
    def problems(self) -> list[Problem]:  # type: ignore[override]
        return self._source.problems

    @property
    def place(self) -> Place | None:  # type: ignore[override]
        return self._source.place

    def fresh(self) -> "RemoteSource":
        return RemoteSource(self._node, self._source_place, self._source.fresh(), self._settings)

    async def on_created(self) -> None:
        await self._calls("on_created")

    async def on_updated(self, before: dict[str, Any]) -> None:
        await self._calls("on_updated", before)

    async def open(self, position: bytes | None) -> None:
        await self._calls("open", position)
        # Before anything is read ahead, which moves the source.
        self._start = None if position is not None else await self._calls("start_position")
        # Abandoned on cancellation: Spark may take minutes to start, and the job group releases what comes late.
        await trio.to_thread.run_sync(self._executors.start, abandon_on_cancel=True)
        self._equipment = await self._settings.find_equipment()
        cores = self._executors.cores
        # What the driver does for a part is the same for any size. With small parts its cost for a record would grow
        # with the number of cores.
        if self._equipment is None or not self._equipment.staged:
            self._part_size = max(1, min(self._part_size, JOB_SIZE // cores))
        if self._splits:
            self._part_size = even_size(self._part_size, await measure_rest(self._lag_calls), cores)
        else:
            self._read_ahead = ReadAhead(self._calls, min(CARRIED_MAX * cores, JOB_CARRIED_MAX))
            self._read_ahead.start()

    async def start_position(self) -> bytes | None:
        return self._start

    async def read(self, n: int) -> Reading:
        schemas: list[CollectionSchema] = []
        with trio.CancelScope() as self._waiting:
            # So that the dispatcher sends what is read before more is read.
            await trio.lowlevel.checkpoint()
            if self._equipment is not None:
                await self._wait_for_room()
            # What was announced is between the outcomes before and after it: no record is ready when it is met.
            while not self._ready:
                if not self._done:
                    await self._fetch()
                elif not isinstance(done := self._done.popleft(), _Announced):
                    self._take(msgspec.msgpack.decode(done, type=TaskResult))
                else:
                    schemas += done.schemas
                    if done.position is not None:
                        return self._give_progress(done.position, schemas)
            given = [self._ready.popleft() for _ in range(min(n, len(self._ready)))]
            self._given_out += len(given)
            return Reading(given, schemas=schemas)
        raise EndOfSource

    def _give_progress(self, position: bytes, schemas: Sequence[CollectionSchema]) -> Reading:
        self._given_progress[position] = None
        # One that a later position has replaced is never acked.
        while len(self._given_progress) > PROGRESS_MAX:
            del self._given_progress[next(iter(self._given_progress))]
        return Reading([], position=position, schemas=schemas)

    async def _wait_for_room(self) -> None:
        """Wait until few enough outcomes are given out and not acked."""
        while self._given_out >= JOBS_AHEAD * self._executors.cores:
            self._acked = trio.Event()
            self._settings.counts.held.add(self._node)
            try:
                await self._acked.wait()
            finally:
                self._settings.counts.held.discard(self._node)

    async def ack(self, positions: Sequence[bytes]) -> None:
        # Only acks make room for more outcomes: each is as large as the input of its task.
        self._given_out -= sum(position not in self._given_progress for position in positions)
        for position in positions:
            self._given_progress.pop(position, None)
        self._acked.set()
        if not self._ack_calls.inherits("ack"):
            each = [one for position in positions for one in self._task_positions.pop(position, (position,))]
            await self._ack_calls("ack", each)

    async def lag(self) -> Lag | None:
        lag: Lag | None = await self._lag_calls("lag")
        return lag

    async def stop(self) -> None:
        """End a `read` that waits. The next run reads the records of a running job again."""
        self._waiting.cancel()
        await self._end_read()

    async def teardown(self) -> None:
        try:
            # First: a job that runs would hold the session, and its results are read again anyway.
            await trio.to_thread.run_sync(self._executors.close, abandon_on_cancel=True)
            if self._read_ahead is not None:
                await self._read_ahead.close()
            if self._calls.busy:
                await self._end_read()
            await self._calls("teardown")
        finally:
            for calls in (self._calls, self._ack_calls, self._lag_calls):
                calls.close()

    async def _end_read(self) -> None:
        """Have the source end a `read` that waits, if it implements `stop`."""
        if is_async(self._source.stop):
            await self._calls("stop")
        elif not self._calls.inherits("stop"):
            # Not in the thread of the source: that one may be inside `read`.
            await trio.to_thread.run_sync(self._source.stop, abandon_on_cancel=True)

    async def _fetch(self) -> None:
        if not self._jobs:
            self._jobs.append(await self._begin_job())
        await self._look_ahead()
        work = self._jobs.popleft()
        results = await work.job.result() if work.job is not None else []
        if work.job is not None and self._equipment is not None and self._equipment.staged:
            self._pace.note(work.job.seconds, sum(map(len, results)))
        if work.schemas:
            self._done.append(_Announced(work.schemas))
        self._done.extend(results)
        if work.position is not None:
            self._done.append(_Announced(position=work.position))
        await self._look_ahead()

    async def _look_ahead(self) -> None:
        """Start the next jobs, as many as there is input for by now."""
        while len(self._jobs) < JOBS_AHEAD and (self._read_ahead is None or not self._read_ahead.empty):
            job = await self._begin_job_if_any()
            if job is None:
                return
            self._jobs.append(job)

    def _take(self, done: TaskResult) -> None:
        if done.error is not None:
            raise done.error.to_error()
        self._settings.counts.add(done.counts)
        if done.size:
            [encoded], position = done.outcomes, done.positions[-1]
            self._ready.append(group(encoded, position, done.size))
            # Only for sources that implement `ack`: all others are given the last position.
            if len(done.positions) > 1:
                self._task_positions[position] = done.positions
            return
        for position, encoded in zip(done.positions, done.outcomes, strict=True):
            self._ready.append(Record.of(encoded, position=position))

    async def _begin_job_if_any(self) -> "_Work | None":
        try:
            return await self._begin_job()
        except (EndOfSource, NothingYet):
            return None  # It is raised again when nothing is left of what came before.

    async def _begin_job(self) -> "_Work":
        if self._splits:
            return _Work(self._run(await self._split_inputs()))
        assert self._read_ahead is not None
        taken = await self._read_ahead.take(JOB_CARRIED_MAX)
        self._schemas.update((each.collection, each) for each in taken.schemas)
        # Progress alone needs no executor, only its place behind the jobs before it.
        job = self._run(self._carry_inputs(taken.records)) if taken.records else None
        return _Work(job, taken.schemas, taken.position)

    def _run(self, parts: Sequence[TaskInput]) -> SparkJob:
        return self._executors.run(self._settings.plan, [part.encode() for part in parts])

    async def _split_inputs(self) -> list[TaskInput]:
        """The next splits of the source, one or more for each core; at least one."""
        parts: list[TaskInput] = []
        try:
            while len(parts) < self._pace.rounds * self._executors.cores:
                split = await self._calls("split", self._part_size)
                parts.append(self._part(split))
        except (EndOfSource, NothingYet):
            if not parts:
                raise
        return parts

    def _carry_inputs(self, drawn: list[ReadRecord]) -> list[TaskInput]:
        """What has been read by now, divided by the number of cores."""
        size = -(-len(drawn) // self._executors.cores)
        return [self._carry(drawn[start : start + size]) for start in range(0, len(drawn), size)]

    def _part(self, split: bytes = b"", carried: CarriedRecords | None = None) -> TaskInput:
        # Numbered in the order of the records: it tells destinations which parts were taken before another.
        part, self._parts = PartId(self._source_place, self._parts), self._parts + 1
        equipment = self._equipment.given if self._equipment is not None else None
        return TaskInput(self._node, split, carried, equipment, self._acks_each, part)

    def _carry(self, drawn: list[ReadRecord]) -> TaskInput:
        refused = {index: each.refused for index, each in enumerate(drawn) if each.refused is not None}
        try:
            return self._part(carried=carry_records([each.record for each in drawn], refused, self._schemas.values()))
        except RecordRefused as error:
            raise FatalError(
                f"{self._node} read a record that cannot be sent to an executor: {error.message}",
                suggestion=error.suggestion,
            ) from error
