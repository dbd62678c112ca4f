"""Limits of a node: how much a source reads in a second, how much a destination writes in a second and in one call."""

import random
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

from conduit_py import (
    Batch,
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    RateLimit,
    Retry,
    Source,
    processor,
    sdk,
)
from conduit_py.batch import Fate, MessageId
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Delay, EventLog, ScriptedDestination, ScriptedSource, number_of, simulated
from conduit_py.testing.fake_destinations import FakeKeyedDestination, FakeStorage


class Counting(sdk.DestinationConnector[sdk.Options]):
    """Notes when it was given how many records, and refuses the record 7."""

    writes: ClassVar[list[tuple[float, int]]] = []

    async def write(self, batch: Batch) -> dict[int, str]:
        self.writes.append((trio.current_time(), len(batch)))
        return {index: "unlucky" for index, record in enumerate(batch) if record.payload.after == {"number": 7}}


@pytest.fixture(autouse=True)
def _forget() -> None:
    Counting.writes.clear()


def records(count: int, size: int = 0) -> list[sdk.Record]:
    return [sdk.Record.of({"number": number} | ({"text": "x" * size} if size else {})) for number in range(count)]


async def run(given: list[sdk.Record], *, source: Any = None, lake: Any = None) -> Supervisor:
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=given, log=EventLog()), **(source or {}))],
        destinations=[Destination("lake", Counting(), **(lake or {}))],
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    state = await supervisor.run()
    assert state.status is Status.COMPLETED
    assert sum(count for _, count in Counting.writes) == len(given)
    return supervisor


async def test_a_source_reads_so_many_records_in_a_second_and_evenly(autojump_clock: MockClock) -> None:
    await run(records(500), source={"rate": RateLimit(records_per_second=50)})

    assert trio.current_time() == pytest.approx(10, abs=1.2)
    seconds = [sum(count for at, count in Counting.writes if int(at) == second) for second in range(1, 9)]
    assert all(40 <= count <= 110 for count in seconds)


async def test_a_source_reads_so_many_bytes_in_a_second(autojump_clock: MockClock) -> None:
    await run(records(100, size=1000), source={"rate": RateLimit(bytes_per_second=10_000)})

    assert 8 < trio.current_time() < 13


async def test_a_destination_writes_so_many_records_in_a_second(autojump_clock: MockClock) -> None:
    supervisor = await run(records(500), lake={"rate": RateLimit(records_per_second=100)})

    assert trio.current_time() == pytest.approx(4, abs=1.2)
    assert max(count for _, count in Counting.writes) <= 100
    # The refused record is found in the part that it was in.
    assert supervisor.progress().dead_letters == 1


async def test_a_destination_writes_batches_of_a_size_and_of_so_many_bytes(autojump_clock: MockClock) -> None:
    await run(records(100), lake={"batch_size": 30})
    sizes = [count for _, count in Counting.writes]
    Counting.writes.clear()
    await run(records(100, size=1000), lake={"batch_bytes": 10_000})

    assert max(sizes) == 30
    assert 5 <= max(count for _, count in Counting.writes) <= 10


class Picky(sdk.DestinationConnector[sdk.Options]):
    """Keeps what it is given. Raises `errors` at the parts that begin with these numbers, each once."""

    written: ClassVar[list[int]] = []
    errors: ClassVar[dict[int, Exception]] = {}

    async def write(self, batch: Batch) -> None:
        numbers = [record.payload["number"] for record in batch]
        if (error := self.errors.pop(numbers[0], None)) is not None:
            raise error
        self.written.extend(numbers)


async def run_picky(errors: dict[int, Exception], **lake: Any) -> Supervisor:
    Picky.written, Picky.errors = [], errors
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records(6), log=EventLog()))],
        destinations=[Destination("lake", Picky(), **lake)],
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    assert (await supervisor.run()).status is Status.COMPLETED
    return supervisor


async def test_a_part_that_is_refused_takes_no_other_with_it(autojump_clock: MockClock) -> None:
    supervisor = await run_picky({2: sdk.RecordRefused("unlucky")}, batch_size=2)

    assert Picky.written == [0, 1, 4, 5]
    assert supervisor.progress().dead_letters == 2


async def test_a_retry_repeats_only_the_part_that_failed(autojump_clock: MockClock) -> None:
    await run_picky({2: sdk.TransientError("away")}, batch_size=2, retry=Retry(attempts=2))

    assert Picky.written == [0, 1, 2, 3, 4, 5]


async def test_what_is_written_is_settled_while_the_rest_waits_for_the_limit(autojump_clock: MockClock) -> None:
    Picky.written, Picky.errors = [], {}
    slow = Destination("lake", Picky(), rate=RateLimit(records_per_second=0.01))
    source = Source("source", ScriptedSource(records=records(6), log=EventLog()))
    supervisor = Supervisor(Pipeline("p", sources=[source], destinations=[slow]), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(250)
        acked, written = supervisor.progress().acked, len(Picky.written)
        supervisor.force()

    assert written == 3
    assert acked == 3


async def test_a_stop_does_not_wait_for_the_limit(autojump_clock: MockClock) -> None:
    slow = Source("source", ScriptedSource(records=9, log=EventLog()), rate=RateLimit(records_per_second=0.001))
    pipeline = Pipeline("p", sources=[slow], destinations=[Destination("lake", Counting())])
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        supervisor.stop()

    assert trio.current_time() < 101
    assert (supervisor.state.status, supervisor.progress().acked) == (Status.STOPPED, 1)


async def test_a_burst_is_all_that_passes_at_once(autojump_clock: MockClock) -> None:
    await run(records(30), lake={"rate": RateLimit(records_per_second=10, burst=5)})

    assert Counting.writes[0] == (0.0, 5)
    assert all(count <= 5 for _, count in Counting.writes)
    assert trio.current_time() == pytest.approx(2.5)


class Spread(sdk.DestinationConnector[sdk.Options]):
    """Keeps when it was given which numbers, and registers a fate handler for each."""

    acks = AckMode.FLUSH
    writes: ClassVar[list[tuple[float, list[int]]]] = []
    fates: ClassVar[list[int]] = []

    async def write(self, batch: Batch) -> dict[int, str]:
        numbers = [record.payload["number"] for record in batch]
        self.writes.append((trio.current_time(), numbers))
        for index, number in enumerate(numbers):
            assert batch.span.position(batch.sequences[index]) == batch[index].position
            batch.on_fate(index, partial(self._note, number))
        return {index: "unlucky" for index, number in enumerate(numbers) if number == 7}

    def _note(self, number: int, message: MessageId, fate: Fate) -> None:
        assert (fate is Fate.NACKED) == (number == 7)
        self.fates.append(number)


async def run_spread(gaps: dict[int, float], count: int = 8, source: Any = None, **lake: Any) -> Supervisor:
    """Run records that come one by one, some after a gap of so many seconds."""
    Spread.writes, Spread.fates = [], []
    script = {number: Delay(seconds) for number, seconds in gaps.items()}
    given = ScriptedSource(records=records(count), log=EventLog(), script=script)
    pipeline = Pipeline(
        "p",
        sources=[Source("source", given, **{"batch_size": 1, **(source or {})})],
        destinations=[Destination("lake", Spread(), **lake)],
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    assert (await supervisor.run()).status is Status.COMPLETED
    assert [number for _, numbers in Spread.writes for number in numbers] == list(range(count))
    assert (supervisor.progress().acked, supervisor.progress().dead_letters) == (count, 1)
    assert sorted(Spread.fates) == list(range(count))
    return supervisor


async def test_records_wait_so_long_for_a_full_batch(autojump_clock: MockClock) -> None:
    await run_spread({1: 1, 2: 1, 3: 60, 4: 1}, batch_seconds=10, batch_size=4)

    # Ten seconds after the first of them; full at once; and at the end of the source, which is no reason to wait.
    assert Spread.writes == [(10, [0, 1, 2]), (63, [3, 4, 5, 6]), (63, [7])]


async def test_a_full_window_does_not_wait_for_a_batch(autojump_clock: MockClock) -> None:
    await run_spread({}, source={"window": 4}, batch_seconds=1000)

    assert trio.current_time() < 1
    assert max(len(numbers) for _, numbers in Spread.writes) <= 4


async def test_a_window_full_of_records_for_others_does_not_wait_either(autojump_clock: MockClock) -> None:
    Spread.writes, Spread.fates = [], []
    first = Destination("lake", Spread(), batch_seconds=1000, when=lambda record: record.payload["number"] == 0)
    source = Source("source", ScriptedSource(records=records(50), log=EventLog()), window=4, batch_size=1)
    others = Destination("rest", Counting())
    letters = DeadLetters("drop", window_size=0)
    pipeline = Pipeline("p", sources=[source], destinations=[first, others], dead_letters=letters)
    assert (await Supervisor(pipeline, MemoryStore()).run()).status is Status.COMPLETED

    assert [numbers for _, numbers in Spread.writes] == [[0]]
    assert trio.current_time() < 2


@pytest.mark.parametrize("acks", list(AckMode))
async def test_a_stop_writes_what_is_held_at_once(acks: AckMode, autojump_clock: MockClock) -> None:
    log = EventLog()
    source = Source("source", ScriptedSource(records=9, log=log, script={5: Delay(10_000)}), batch_size=2)
    lake = Destination("lake", ScriptedDestination(name="lake", log=log, acks=acks), batch_seconds=1000)
    supervisor = Supervisor(Pipeline("p", sources=[source], destinations=[lake]), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        held = log.numbers("lake")
        supervisor.stop()

    assert (held, log.numbers("lake")) == ([], [0, 1, 2, 3, 4])
    assert (supervisor.state.status, supervisor.progress().acked) == (Status.STOPPED, 5)
    assert trio.current_time() < 101
    log.check()


@simulated(seeds=range(8))
async def test_held_batches_keep_order_whatever_the_limits(seed: int) -> None:
    """Two sources, a split, a filter and a refusal: every record once, in order, and every vote counted."""
    log, rng = EventLog(), random.Random(seed)

    @processor
    def change(record: sdk.Record) -> list[sdk.Record] | sdk.Record | None:
        number = number_of(record) or 0
        return None if number % 5 == 0 else [record, record] if number % 7 == 0 else record

    limits: dict[str, Any] = {
        "batch_size": rng.choice([None, 3, 50]),
        "batch_bytes": rng.choice([None, 100]),
        "batch_seconds": 0.05,
    }
    acks = rng.choice(list(AckMode))
    script: dict[int, Any] = {number: Delay(rng.random() / 20) for number in range(0, 60, 3)}
    sources = [
        Source(name, ScriptedSource(records=60, name=name, log=log, script=script), batch_size=4, window=32)
        for name in ("a", "b")
    ]
    lake = Destination("lake", ScriptedDestination(name="lake", log=log, acks=acks), **limits)
    pipeline = Pipeline("p", sources=sources, processors=[change], destinations=[lake])
    supervisor = Supervisor(pipeline, MemoryStore())

    assert (await supervisor.run()).status is Status.COMPLETED
    assert supervisor.progress().acked == 120
    log.check()


def test_wrong_limits_are_problems() -> None:
    with pytest.raises(ValueError, match="records_per_second or bytes_per_second must be given"):
        RateLimit()
    with pytest.raises(ValueError, match="burst needs records_per_second"):
        RateLimit(bytes_per_second=1, burst=1)
    lake = Destination("lake", ScriptedDestination(), batch_size=0, rate=7, batch_seconds=-1)  # type: ignore[arg-type]
    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(Pipeline("p", sources=[Source("source", ScriptedSource())], destinations=[lake]))
    assert [each.path.rpartition(".")[2] for each in raised.value.problems] == ["batch_size", "batch_seconds", "rate"]
    exact = {"sources": [Source("source", ScriptedSource())], "delivery": "exactly_once"}
    lake = Destination("lake", FakeKeyedDestination(storage=FakeStorage()), batch_seconds=1)
    with pytest.raises(PipelineInvalid, match="batch_seconds: a transaction would wait for records that wait"):
        compile_pipeline(Pipeline("p", destinations=[lake], **exact))  # type: ignore[arg-type]
