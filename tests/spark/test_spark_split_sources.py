"""Partitions of Kafka and parts of a journal, read by executors of the cluster: each record once, whatever dies."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from builders import batch_of
from conduit_connectors import file, journal, kafka, objects
from engine_world import kept, no_good, sorted_out
from kafka_topics import KafkaTopics

from conduit_py import pipeline as p
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk import SourceConnector
from conduit_py.sdk.processor import processor
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1200
PARTITIONS = 3
Supervise = Callable[[p.Pipeline, Store], SparkSupervisor]


@pytest.fixture
def supervised(spark: "SparkSession", spark_options: dict[str, Any]) -> Supervise:
    def supervised(pipeline: p.Pipeline, store: Store) -> SparkSupervisor:
        return SparkSupervisor(pipeline, store, spark=SparkOptions(**spark_options), part_size=2000)

    return supervised


@pytest.fixture(params=["kafka", "journal"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> SourceConnector[Any]:
    """A source with all numbers, which only executors may read."""
    if request.param == "kafka":
        return filled_topic(KafkaTopics(request.getfixturevalue("kafka_server").address))
    return filled_journal(tmp_path / "journal")


def filled_topic(topics: KafkaTopics) -> SourceConnector[Any]:
    topic = topics.create(partitions=PARTITIONS)
    topics.fill(topic, [json.dumps({"n": n}).encode() for n in range(COUNT)], keys=7)
    driver = os.getpid()

    class Elsewhere(kafka.Source):
        async def read(self, n: int) -> Any:
            assert os.getpid() != driver, "the driver has read"
            return await super().read(n)

    return Elsewhere(servers=topics.address, topics=[topic], tail=False)


def filled_journal(path: Path) -> SourceConnector[Any]:
    """With transactions of several sizes, and one that was never committed."""
    writing = journal.Destination(path=path)
    writing.open()
    writing.begin("numbers", 1, ())
    for first in range(0, COUNT, 100):
        for start in range(first, first + 100, 25):
            writing.write(batch_of(*[Record.of({"n": n}) for n in range(start, start + 25)]))
        intent = writing.stage()
        assert intent is not None
        writing.apply(intent)
    writing.write(batch_of(Record.of({"n": -1})))
    writing.teardown()
    driver = os.getpid()

    class Elsewhere(journal.Source):
        def read(self, n: int) -> Any:
            assert os.getpid() != driver, "the driver has read"
            return super().read(n)

    return Elsewhere(path=path, until="end")


@processor
def parsed(record: Record) -> Record:
    """Messages of Kafka are bytes."""
    if isinstance(record.payload.after, bytes):
        record.payload.after = json.loads(record.payload.after)
    return record


def into(folder: Path, source: SourceConnector[Any], destination: Any, delivery: Any) -> p.Pipeline:
    return p.Pipeline(
        "numbers",
        sources=[p.Source("in", source)],
        processors=[parsed, sorted_out],
        destinations=[p.Destination("out", destination)],
        dead_letters=p.DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json")),
        delivery=delivery,
        transaction=TransactionLimits(max_records=200) if delivery == "exactly_once" else None,
    )


def rows(folder: Path) -> list[int]:
    files = sorted((folder / "out").glob("part-*"))
    return [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]


def refused(folder: Path) -> list[int]:
    letters = [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]
    return [letter["record"]["payload"]["after"]["n"] for letter in letters]


def check_all(folder: Path, source: SourceConnector[Any]) -> None:
    if isinstance(source, journal.Source):
        assert rows(folder) == kept(range(COUNT))
        assert refused(folder) == no_good(range(COUNT))
    else:
        # Between partitions there is no order.
        assert sorted(rows(folder)) == kept(range(COUNT))
        assert sorted(refused(folder)) == no_good(range(COUNT))
    assert list((folder / "out").glob("_conduit/*/*")) == []


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_executors_read_all_of_it_and_the_driver_nothing(
    tmp_path: Path, supervised: Supervise, source: SourceConnector[Any], delivery: Any
) -> None:
    supervisor = supervised(
        into(tmp_path, source, objects.Destination(url=str(tmp_path / "out")), delivery), MemoryStore()
    )

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert supervisor.progress().acked == COUNT
    check_all(tmp_path, source)
    # Many parts, each written by its task.
    assert len(list((tmp_path / "out").glob("part-*"))) > PARTITIONS


async def test_a_task_that_is_killed_reads_its_range_again(
    tmp_path: Path, supervised: Supervise, source: SourceConnector[Any]
) -> None:
    """The worst moment: it has read and staged everything, and nobody will know of it."""
    died = tmp_path / "died"

    class Mortal(objects.Destination):
        def prepared(self) -> bytes:
            manifest = super().prepared()
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return manifest

    pipeline = into(tmp_path, source, Mortal(url=str(tmp_path / "out")), "exactly_once")

    state = await supervised(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    assert died.exists()
    check_all(tmp_path, source)


async def test_a_driver_that_is_cancelled_goes_on_from_its_last_commit(
    tmp_path: Path, supervised: Supervise, source: SourceConnector[Any]
) -> None:
    """Without a word to anybody, after some transactions: tasks go on, and what they stage is never seen."""
    store = MemoryStore()
    committed = trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Watched(objects.Destination):
        def apply(self, intent: bytes) -> None:
            super().apply(intent)
            token.run_sync_soon(committed.set)

        def __reduce__(self) -> Any:
            # Tasks need no watch, and a token cannot be sent.
            return objects.Destination.with_options, (objects.Destination(url="-"), self.options)

    async with trio.open_nursery() as nursery:
        pipeline = into(tmp_path, source, Watched(url=str(tmp_path / "out")), "exactly_once")
        nursery.start_soon(supervised(pipeline, store).run)
        with trio.fail_after(300):
            await committed.wait()
        nursery.cancel_scope.cancel()
    plain = objects.Destination(url=str(tmp_path / "out"))
    supervisor = supervised(into(tmp_path, source, plain, "exactly_once"), store)

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    check_all(tmp_path, source)
