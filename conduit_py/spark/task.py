"""Task: what one executor does with one part: read it, run the processors, tell what became of each record.

It is a run of the pipeline like any other, between ends of its own: the same readers, processors, ledger
and dead letters as on one machine.
"""

import gc
import os
import socket
from collections import defaultdict
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Any

import msgspec
import trio

from conduit_py import sdk
from conduit_py.backoff import Retry
from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import FatalError, RecordRefused, describe
from conduit_py.graph.compile import compile_pipeline
from conduit_py.pipeline import DeadLetters, Pipeline
from conduit_py.record import Record
from conduit_py.sdk.destination import Refusals
from conduit_py.sdk.preparing import PreparingDestination
from conduit_py.spark.outcome import Broken, Delivery, Done, Piece, outcome, prepared
from conduit_py.spark.part import Part, PartSource
from conduit_py.spark.plan import Plan
from conduit_py.store.memory import MemoryStore
from conduit_py.store.packing import pack
from conduit_py.stream.commit import CommitEach
from conduit_py.stream.meter import COUNTERS
from conduit_py.stream.run import Run


def perform(plan: bytes, part: bytes) -> bytes:
    """Run the planned pipeline over a part. An error that ends it is in the result: Spark need not try that again."""
    try:
        pipeline = _planned(plan)
    except Exception as error:  # a border: what is pickled is the user's, and may need what is not installed here
        return msgspec.msgpack.encode(Done([], [], {}, broken=Broken.of(_unplanned(error))))
    return msgspec.msgpack.encode(trio.run(run_part, pipeline, Part.decode(part)))


async def run_part(pipeline: Pipeline, part: Part) -> Done:
    """What becomes of each record of a part. Nothing outside of this process is written."""
    results = Results()
    own, source = _between_own_ends(pipeline, part, results)
    run = Run(compile_pipeline(own), MemoryStore(), CommitEach())
    ending = await run.execute()
    if ending.error is not None:
        return Done([], [], {}, broken=Broken.of(ending.error))
    counts = {meter.node: [getattr(meter, name) for name in COUNTERS] for meter in run.meters}
    count = len(source.positions)
    if part.equipment is None:
        return Done(source.positions, results.outcomes(count), counts)
    positions = source.positions if part.each else source.positions[-1:]
    return Done(positions, [results.prepared()] if count else [], counts, count)


class Results:
    """What came out for each record that was read, by its sequence."""

    def __init__(self) -> None:
        self._deliveries: dict[int, dict[int, tuple[Record, Delivery]]] = defaultdict(dict)
        self._letters: dict[int, list[DeadLetter]] = defaultdict(list)
        self._pieces: dict[int, Piece] = {}

    def deliver(self, destination: int, sequence: int, piece: tuple[int, ...], record: Record) -> None:
        """Keep a record for a destination. One that cannot be carried raises RecordRefused."""
        known = self._deliveries[sequence]
        # Destinations that share a record share it here too: it is packed and sent once.
        if id(record) not in known:
            known[id(record)] = record, Delivery([], pack(record), piece)
        known[id(record)][1].destinations.append(destination)

    async def refuse(self, letter: DeadLetter) -> None:
        self._letters[letter.message.sequence].append(letter)

    def hand_over(self, destination: int, piece: Piece) -> None:
        """Keep what a destination is to take for all records of the part together."""
        self._pieces[destination] = piece

    def prepared(self) -> bytes:
        """One outcome for all records, where destinations take pieces."""
        letters = [letter for sequence in sorted(self._letters) for letter in self._letters[sequence]]
        return prepared(self._pieces, letters)

    def outcomes(self, count: int) -> list[bytes]:
        return [
            outcome([delivery for _, delivery in self._deliveries[sequence].values()], self._letters[sequence])
            for sequence in range(count)
        ]


class Outgoing(sdk.Destination[sdk.Options]):
    """Stands where a destination does, and keeps what would be written there for the driver to write."""

    blocking = False

    def __init__(self, place: int, results: Results) -> None:
        super().__init__()
        self._place = place
        self._results = results

    def fresh(self) -> "Outgoing":
        return self

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        refused: dict[int, str | Exception] = {}
        for index, (sequence, record) in enumerate(zip(batch.sequences, batch.records, strict=True)):
            try:
                self._results.deliver(self._place, sequence, batch.piece(index), record)
            except RecordRefused as error:
                refused[index] = error
        return refused or None


class Preparation(sdk.Destination[sdk.Options]):
    """Stands where a destination does, and has the records made ready for the driver to put in place."""

    blocking = False

    def __init__(self, place: int, connector: PreparingDestination[Any], results: Results) -> None:
        super().__init__()
        self._place = place
        self._connector = connector
        self._results = results
        self._size = 0

    def fresh(self) -> "Preparation":
        return self

    def write(self, batch: Batch) -> Refusals | None:
        refused = self._connector.prepare(batch)
        self._size += len(batch) - len(refused or ())
        return refused

    def teardown(self) -> None:
        # Also after a failed run, whose results nobody asks for.
        if self._size:
            self._results.hand_over(self._place, Piece(self._size, self._connector.prepared()))


def _between_own_ends(pipeline: Pipeline, part: Part, results: Results) -> tuple[Pipeline, PartSource]:
    own = copy(pipeline)
    own.settings = pipeline.settings.model_copy(update={"delivery": "at_least_once", "transaction": None})
    own.outbox = {}
    own.dead_letters = DeadLetters(results.refuse)
    own.sources = [copy(source) for source in pipeline.sources]
    for source in own.sources:
        source.connector = PartSource(source.id, source.connector, part if source.id == part.source else None)
    own.destinations = [copy(destination) for destination in pipeline.destinations]
    for place, destination in enumerate(own.destinations):
        destination.connector = _outgoing(place, destination.connector, part, results)
        destination.retry = Retry(attempts=1)
    read_here = next(source.connector for source in own.sources if source.id == part.source)
    assert isinstance(read_here, PartSource)
    return own, read_here


def _outgoing(place: int, connector: Any, part: Part, results: Results) -> "Outgoing | Preparation":
    if part.equipment is None:
        return Outgoing(place, results)
    instance = connector.fresh()
    instance.equip(part.equipment[place])
    return Preparation(place, instance, results)


def _unplanned(error: Exception) -> FatalError:
    return FatalError(
        f"the pipeline cannot be made on executor {socket.gethostname()}: {describe(error)}",
        suggestion="install there what is installed here, for example with spark.archives",
    )


@lru_cache(maxsize=4)
def _planned(pickled: bytes) -> Pipeline:
    """A worker process runs many tasks of one plan. It goes where the driver is, if there is such a folder here."""
    from pyspark import cloudpickle

    plan: Plan = cloudpickle.loads(pickled)
    with suppress(OSError):
        os.chdir(plan.folder)
    # Spark's worker looks for garbage after every task. What is here now stays, and need not be looked through again.
    gc.collect()
    gc.freeze()
    return plan.pipeline
