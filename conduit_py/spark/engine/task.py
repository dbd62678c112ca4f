"""What one executor does with one task: reads its input, runs the processors, reports what became of each record.

It is a run of the pipeline like any other, between ends of its own: the same readers, processors, ledger
and dead letters as on one machine.
"""

import gc
import logging
import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import Any, Self

import msgspec
import trio

from conduit_py import sdk
from conduit_py.backoff import Retry
from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import FatalError, RecordRefused, RunError, describe
from conduit_py.graph.compile import compile_pipeline
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, derive
from conduit_py.record import CollectionSchema, Record
from conduit_py.record_codec import decode_record, encode_record
from conduit_py.sdk.destination import ManyWriterDestination, PartId, PreparingDestination, Refusals
from conduit_py.sdk.source import EndOfSource, Reading, SplittableSource
from conduit_py.spark.engine.outcome import (
    DeliveredRecord,
    PreparedBatch,
    TaskResult,
    encode_outcome,
    encode_task_outcome,
)
from conduit_py.spark.engine.read_ahead import refuse_uncarried
from conduit_py.spark.engine.split import Plan
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.commit import CommitEach
from conduit_py.stream.meter import COUNTERS
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors
from conduit_py.stream.run import Run
from conduit_py.wire_error import WireError

log = logging.getLogger("conduit_py")


class CarriedRecords(msgspec.Struct, frozen=True, array_like=True):
    """Records that the driver has read, and by index why their source could not parse some of them."""

    records: list[bytes]
    refused: dict[int, str]
    schemas: list[CollectionSchema] = []
    """All that the source has announced up to these records."""


class TaskInput(msgspec.Struct, frozen=True, array_like=True):
    """The input of a task: `split` is the part of the source to read, or `carried` has the records.

    With `equipment`, by the place of a destination, the task prepares the batches that destinations take as they are,
    or stages them as `part`. `each` requests the positions of all records even then, if the source implements `ack`.
    """

    source: str
    split: bytes = b""
    carried: CarriedRecords | None = None
    equipment: dict[int, bytes] | None = None
    each: bool = False
    part: PartId = PartId(0, 0)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "TaskInput":
        return msgspec.msgpack.decode(encoded, type=cls)


def carry_records(
    records: list[Record], refused: Mapping[int, str], schemas: Iterable[CollectionSchema] = ()
) -> CarriedRecords:
    """These records, packed for a task. Raises RecordRefused for one that cannot be packed."""
    return CarriedRecords(list(map(encode_record, records)), dict(refused), list(schemas))


class TaskInputSource(sdk.SourceConnector[sdk.Options]):
    """Gives the records of a task, then ends; without an input it ends at once. `count` is how many were read."""

    def __init__(self, node: str, connector: sdk.SourceConnector[Any] | None, part: TaskInput | None) -> None:
        super().__init__()
        self.positions: list[bytes] = []
        """Of all that was read, or only the last one, if one outcome stands for all records."""
        self.count = 0
        self._keeps_each = part is not None and (part.equipment is None or part.each)
        self._part = part
        self._calls = PluginCaller(node, connector.fresh()) if part is not None and connector is not None else None
        self._left = part.carried if part is not None else None

    def fresh(self) -> "TaskInputSource":
        return self

    async def open(self, position: bytes | None) -> None:
        if self._calls is not None and self._part is not None:
            assert isinstance(self._calls.plugin, SplittableSource)
            await self._calls("open_part", self._part.split)

    async def read(self, n: int) -> sdk.Records | Reading:
        reading: sdk.Records | Reading
        reading = await self._calls("read", n) if self._calls is not None else self._unpack_next(n)
        records = reading.records if isinstance(reading, Reading) else reading
        if self._calls is not None and isinstance(reading, Reading):
            refuse_uncarried(self._calls.node, reading)
        self.count += len(records)
        if not self._keeps_each and len(records):
            # Most positions are made on demand: of a part that is one.
            last = records.positions[-1] if isinstance(records, sdk.Payloads) else records[-1].position
            self.positions = [last]
        elif isinstance(records, sdk.Payloads):
            self.positions += records.positions
        else:
            self.positions += [record.position for record in records]
        return reading

    def _unpack_next(self, n: int) -> Reading:
        left = self._left
        if left is None or not left.records:
            raise EndOfSource
        now = {index: why for index, why in left.refused.items() if index < n}
        later = {index - n: why for index, why in left.refused.items() if index >= n}
        self._left = CarriedRecords(left.records[n:], later)
        return Reading(list(map(decode_record, left.records[:n])), now, schemas=left.schemas)

    async def teardown(self) -> None:
        if self._calls is not None:
            try:
                await self._calls("teardown")
            finally:
                self._calls.close()


def perform(plan: bytes, part: bytes) -> bytes:
    """Run the planned pipeline over an input. The result carries an error, which Spark would only raise again."""
    try:
        pipeline = _load_plan(plan)
    except Exception as error:  # a plugin boundary: the user's code may need what is not installed here
        return msgspec.msgpack.encode(TaskResult([], [], {}, error=WireError.of(_plan_error(error))))
    return msgspec.msgpack.encode(trio.run(run_task, pipeline, TaskInput.decode(part)))


async def run_task(pipeline: Pipeline, part: TaskInput) -> TaskResult:
    """Run the pipeline over an input, and return an outcome for each record. Nothing is written elsewhere."""
    results = TaskOutcomes()
    [read] = [each.connector for each in pipeline.sources if each.id == part.source]
    source = TaskInputSource(part.source, read, part)
    with ExitStack() as at_end:
        try:
            collectors = [
                _open_collector(place, each, part, results, at_end) for place, each in enumerate(pipeline.destinations)
            ]
            # A store that is thrown away: the driver keeps positions, state and letters.
            # The driver has checked the types. Here fewer modules may be loaded, and with them fewer subclasses known.
            graph = compile_pipeline(_task_pipeline(pipeline, source, part, results, collectors), types_checked=True)
            run = Run(graph, MemoryStore(), CommitEach())
            ending = await run.execute()
            if ending.error is not None:
                raise ending.error
            # Only now: nothing that a failed run has prepared is staged.
            for collector in collectors:
                collector.hand_over()
        except RunError as error:
            return TaskResult([], [], {}, error=WireError.of(error))
    counts = {meter.node: [getattr(meter, name) for name in COUNTERS] for meter in run.meters}
    if part.equipment is None:
        return TaskResult(source.positions, results.outcomes(source.count), counts)
    return TaskResult(source.positions, [results.task_outcome()] if source.count else [], counts, source.count)


class TaskOutcomes:
    """The deliveries and dead letters of each record that was read, by its sequence."""

    def __init__(self) -> None:
        self._deliveries: dict[int, dict[int, tuple[Record, DeliveredRecord]]] = defaultdict(dict)
        self._letters: dict[int, list[DeadLetter]] = defaultdict(list)
        self._prepared: dict[int, PreparedBatch] = {}

    def deliver(self, destination: int, sequence: int, piece: tuple[int, ...], record: Record) -> None:
        """Keep a record for a destination. Raises RecordRefused for one that cannot be packed."""
        known = self._deliveries[sequence]
        # Destinations that share a record share it here too: it is packed and sent once.
        # The record is kept with its outcome, so that no later object can get the same id.
        if id(record) not in known:
            known[id(record)] = record, DeliveredRecord([], encode_record(record), piece)
        known[id(record)][1].destinations.append(destination)

    async def refuse(self, letter: DeadLetter) -> None:
        self._letters[letter.message.sequence].append(letter)

    def hand_over(self, destination: int, piece: PreparedBatch) -> None:
        """Keep what a destination takes for all records of the task together."""
        self._prepared[destination] = piece

    def task_outcome(self) -> bytes:
        """One outcome for all records, where destinations take prepared batches."""
        letters = [letter for sequence in sorted(self._letters) for letter in self._letters[sequence]]
        return encode_task_outcome(self._prepared, letters)

    def outcomes(self, count: int) -> list[bytes]:
        return [
            encode_outcome([delivery for _, delivery in self._deliveries[sequence].values()], self._letters[sequence])
            for sequence in range(count)
        ]


class Collector(sdk.DestinationConnector[sdk.Options]):
    """Stands in for a destination in a task."""

    blocking = False

    def fresh(self) -> Self:
        return self

    def hand_over(self) -> None:
        """Report what was collected, after the end of a run without an error."""


class RecordCollector(Collector):
    """Keeps the records of a destination for the driver to write."""

    def __init__(self, place: int, results: TaskOutcomes) -> None:
        super().__init__()
        self._place = place
        self._results = results

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        refused: dict[int, str | Exception] = {}
        for index, (sequence, record) in enumerate(zip(batch.sequences, batch.records, strict=True)):
            try:
                self._results.deliver(self._place, sequence, batch.piece(index), record)
            except RecordRefused as error:
                refused[index] = error
        return refused or None


class PreparedCollector(Collector):
    """The connector of a destination prepares or stages the records here, and takes them on the driver."""

    def __init__(
        self, place: int, declared: Destination, connector: PreparingDestination[Any], results: TaskOutcomes
    ) -> None:
        super().__init__()
        self._place = place
        self._node = declared.id
        self._connector = connector
        self._results = results
        self._size = 0

    def write(self, batch: Batch) -> Refusals | None:
        refused = self._connector.prepare(batch)
        self._size += len(batch) - len(refused or ())
        return refused

    def hand_over(self) -> None:
        if self._size:
            with PluginErrors(self._node, "prepared"):
                data = self._connector.prepared()
            self._results.hand_over(self._place, PreparedBatch(self._size, data))


def _task_pipeline(
    pipeline: Pipeline,
    source: TaskInputSource,
    part: TaskInput,
    results: TaskOutcomes,
    collectors: Sequence[Collector],
) -> Pipeline:
    """The pipeline with other ends: its source reads `part`, and its destinations collect."""
    return derive(
        pipeline,
        settings=pipeline.settings.model_copy(update={"delivery": "at_least_once", "transaction": None}),
        outbox={},
        # The driver handles dead letters and counts them; a task only reports them, however many.
        dead_letters=DeadLetters(results.refuse, window_size=0),
        sources=[
            derive(each, connector=source if each.id == part.source else TaskInputSource(each.id, None, None))
            for each in pipeline.sources
        ],
        destinations=[
            # The driver retries what it writes. A task that cannot stage fails, and its part is read again.
            derive(each, connector=collector, retry=Retry(attempts=1))
            for each, collector in zip(pipeline.destinations, collectors, strict=True)
        ],
    )


def _open_collector(
    place: int, declared: Destination, part: TaskInput, results: TaskOutcomes, at_end: ExitStack
) -> Collector:
    if part.equipment is None:
        return RecordCollector(place, results)
    instance: Any = declared.connector.fresh()
    if isinstance(instance, ManyWriterDestination):
        at_end.callback(_discard, declared.id, instance)
        with PluginErrors(declared.id, "open_part"):
            instance.open_part(part.equipment[place], part.part)
    else:
        instance.equip(part.equipment[place])
    return PreparedCollector(place, declared, instance, results)


def _discard(node: str, instance: ManyWriterDestination[Any]) -> None:
    try:
        instance.discard_part()
    except Exception as error:  # a plugin boundary
        # It must not mask why the task failed. The driver removes what no manifest names.
        log.warning("%s: a task could not clear what it has staged: %s", node, describe(error))


def _plan_error(error: Exception) -> FatalError:
    return FatalError(
        f"the pipeline cannot be built on executor {socket.gethostname()}: {describe(error)}",
        suggestion="install there what is installed here, for example with spark.archives",
    )


# A worker process runs many tasks of one plan, and unpickling it costs more than a small task.
@lru_cache(maxsize=4)
def _load_plan(pickled: bytes) -> Pipeline:
    """The pipeline of a plan. The process changes to the driver's working directory, if that exists here."""
    from pyspark import cloudpickle

    plan: Plan = cloudpickle.loads(pickled)
    # On a machine without the folder, relative paths fail where they are used, which names them.
    with suppress(OSError):
        os.chdir(plan.folder)
    # Spark's worker collects garbage after every task. What is loaded now stays, so it need not be scanned each time.
    gc.collect()
    gc.freeze()
    return plan.pipeline
