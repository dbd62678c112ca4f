"""Processors, promised of both engines: every kind of them, their retries, and what their errors mean."""

from typing import Any

import pyarrow.compute as pc
import pytest
import trio
from conduit_connectors import generator
from engine_world import OneByOne, World

from conduit_py import Rows
from conduit_py import pipeline as p
from conduit_py.backoff import Recovery, Retry
from conduit_py.batch import Batch, Fate, MessageId
from conduit_py.errors import FatalError, RecordRefused, TransientError
from conduit_py.record import Record
from conduit_py.sdk.processor import Processor, processor
from conduit_py.status import Status

SHORT = Retry(attempts=3, delay_seconds=0.01)


async def test_processors_may_be_async_by_batch_by_table_or_a_class(world: World) -> None:
    class Opened(Processor[Any]):
        async def open(self) -> None:
            self.ready = "yes"

        async def process(self, record: Record) -> Record:
            record.payload["opened"] = self.ready
            return record

    @processor(batch=True)
    def by_batch(batch: Batch) -> list[Record | Exception]:
        return [record if record.payload["id"] != 3 else ValueError("three") for record in batch]

    @processor
    async def later(record: Record) -> Record:
        await trio.lowlevel.checkpoint()
        record.payload["later"] = record.payload["id"] + 1
        return record

    @processor(arrow=True)
    def by_table(table: Any) -> Any:
        return Rows(table, keep=pc.not_equal(table["id"], 5))

    pipeline = world.pipeline(
        Opened(),
        by_batch,
        later,
        by_table,
        sources=[p.Source("made", generator.Source(count=100, seed=1))],
        dead_letters=p.DeadLetters("drop"),
    )

    state = await world.run(pipeline)

    assert state.status is Status.COMPLETED, state.error
    assert [(row["later"], row["opened"]) for row in world.rows()] == [
        (n + 1, "yes") for n in range(100) if n not in (3, 5)
    ]


async def test_parallel_workers_keep_the_order_and_conditions_let_records_pass(world: World) -> None:
    world.write(range(400))

    async def jitter(record: Record) -> list[Record] | Record:
        await trio.sleep((record.payload["n"] * 13) % 4 / 1000)
        record.payload["seen"] = True
        return [record, record.copy()] if record.payload["n"] % 50 == 0 else record

    state = await world.run(
        world.pipeline(p.Processor("jitter", jitter, workers=8, when=lambda record: record.payload["n"] % 10 == 0))
    )

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == [n for n in range(400) for _ in range(2 if n % 50 == 0 else 1)]
    assert {row["n"] for row in world.rows() if "seen" in row} == set(range(0, 400, 10))


async def test_a_processor_is_tried_again_as_its_policy_says(world: World) -> None:
    world.write(range(300))
    tried: dict[int, int] = {}

    def flaky(record: Record) -> Record:
        n = record.payload["n"]
        tried[n] = tried.get(n, 0) + 1
        if n == 200 and tried[n] < 3:
            raise TransientError("busy")
        if n == 201:
            raise RecordRefused("never")
        return record

    supervisor = world.supervisor(world.pipeline(p.Processor("flaky", flaky, retry=SHORT)))
    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == [n for n in range(300) if n != 201]
    [letter] = world.rows("dead")
    assert (letter["node"], letter["error"], letter["attempt"]) == ("flaky", "never", 3)
    [meter] = [each for each in supervisor.progress().nodes if each.node == "flaky"]
    assert (meter.records, meter.retries, meter.refused) == (300, 2, 1)


@pytest.mark.parametrize(("kind", "code"), [(FatalError, "run.fatal"), (TransientError, "run.transient")])
async def test_what_a_processor_raises_ends_the_run_as_it_says(world: World, kind: type[Exception], code: str) -> None:
    world.write(range(20))

    def fails(record: Record) -> Record:
        raise kind("the service is gone")

    state = await world.run(world.pipeline(fails))

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node, state.error.message) == (code, "fails", "the service is gone")
    assert world.numbers() == []


@pytest.mark.parametrize("kind", [TransientError, FatalError])
async def test_only_a_transient_error_is_recovered_from(world: World, kind: type[Exception]) -> None:
    world.write(range(500))
    marker = world.folder / "failed"

    def fails_once(record: Record) -> Record:
        if record.payload["n"] == 300 and not marker.exists():
            marker.touch()
            raise kind("for once")
        return record

    recovery = Recovery(delay_seconds=0.01, retries=3)
    supervisor = world.supervisor(world.pipeline(fails_once, recovery=recovery))
    state = await supervisor.run()

    assert marker.exists()
    if kind is FatalError:
        assert (state.status, supervisor.progress().recoveries) == (Status.DEGRADED, 0)
    else:
        assert (state.status, supervisor.progress().recoveries) == (Status.COMPLETED, 1)
        assert list(dict.fromkeys(world.numbers())) == list(range(500))


async def test_a_later_failure_does_not_mask_the_first(world: World) -> None:
    world.write(range(300))

    class Torn(world.kind):  # type: ignore[misc, name-defined]
        def teardown(self) -> None:
            super().teardown()
            raise OSError("the second")

    def fails(record: Record) -> Record:
        if record.payload["n"] == 250:
            raise FatalError("the first")
        return record

    state = await world.run(world.pipeline(fails, destinations=[world.destination(kind=Torn)]))

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.node, state.error.message) == ("fails", "the first")


async def test_a_wrong_result_names_the_processor(world: World) -> None:
    world.write(range(10))

    def wrong(record: Record) -> Any:
        return "text"

    state = await world.run(world.pipeline(wrong))

    assert state.error is not None
    assert (state.error.code, state.error.node) == ("contract.broken", "wrong")
    assert "returned str: return a Record, None or a list of Records, or raise" in state.error.message


async def test_on_spark_a_processor_is_opened_for_each_part(world: World) -> None:
    world.write(range(1000))
    opened = world.folder / "opened"

    class Opening(Processor[Any]):
        def open(self) -> None:
            with opened.open("a") as file:
                file.write("opened\n")
            self.seen = 0

        def process(self, record: Record) -> Record:
            self.seen += 1
            record.payload["seen"] = self.seen
            return record

    state = await world.run(world.pipeline(Opening()))

    assert state.status is Status.COMPLETED, state.error
    parts = sum(row["seen"] == 1 for row in world.rows())
    assert len(opened.read_text().splitlines()) == parts
    if world.on_spark:
        assert 4 <= parts <= 8
    else:
        assert parts == 1


async def test_on_spark_a_processor_gets_the_fate_that_a_record_has_with_the_executor(world: World) -> None:
    """What the destination says of it is known on the driver, and there are no processors."""
    world.write(range(100))
    noted = world.folder / "noted"

    class Refusing(OneByOne):
        def write(self, batch: Batch) -> Any:
            refused = {index: "no" for index, record in enumerate(batch) if record.payload["n"] == 7}
            rest = [index for index in range(len(batch)) if index not in refused]
            super().write(batch.select(rest))
            return refused

    def note_fate(message: MessageId, fate: Fate) -> None:
        with noted.open("a") as file:
            file.write(f"{fate.value}\n")

    @processor(batch=True)
    def watching(batch: Batch) -> list[Record]:
        for index, record in enumerate(batch):
            if record.payload["n"] in (7, 8):
                batch.on_fate(index, note_fate)
        return batch.records

    destination = p.Destination("out", Refusing(path=world.path("out"), format="json"))
    state = await world.run(world.pipeline(watching, destinations=[destination]))

    assert state.status is Status.COMPLETED, state.error
    assert sorted(noted.read_text().split()) == (["acked", "acked"] if world.on_spark else ["acked", "nacked"])
    assert world.refused() == [7]
