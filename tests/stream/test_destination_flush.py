"""When a destination is flushed: a lone record at once, under load once for many batches, never too late."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Record, Source, TransactionLimits, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.sdk.destination import FLUSH_RECORDS_MAX, FLUSH_SECONDS
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    AwaitFlush,
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    OnFlush,
    ScriptedDestination,
    ScriptedSource,
    position_of,
    simulated,
)
from conduit_py.testing.fake_destinations import FakeKeyedDestination, FakeStorage


def made(log: EventLog, *, source: dict[str, Any], batch_size: int = 256, window: int = 8192, **lake: Any) -> Pipeline:
    lake.setdefault("acks", AckMode.FLUSH)
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(log=log, **source), batch_size=batch_size, window=window)],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, **lake))],
    )


async def run(log: EventLog, **settings: Any) -> PipelineState:
    state = await Supervisor(made(log, **settings), MemoryStore()).run()
    log.check()
    return state


async def test_a_lone_record_is_flushed_at_once(autojump_clock: MockClock) -> None:
    log = EventLog()
    await run(log, source={"records": 3, "script": {n: Delay(60) for n in range(3)}})

    assert [event.at for event in log.did("flush", "lake")][:3] == [60, 120, 180]
    assert [event.at for event in log.did("ack")] == [60, 120, 180]


async def test_records_that_follow_closely_share_a_flush_within_the_pace(autojump_clock: MockClock) -> None:
    log = EventLog()
    script: dict[int, Any] = {n: Delay(FLUSH_SECONDS / 10) for n in range(1, 10)} | {10: Delay(60)}
    await run(log, source={"records": 11, "script": script})

    flushes = [event.at for event in log.did("flush", "lake")]
    # The first at once, the nine others together when the pace allows, the last one at once again.
    assert flushes[:2] == pytest.approx([0, FLUSH_SECONDS])
    assert flushes[2] > 60
    assert len(flushes) <= 4
    assert log.acked["source"] == [position_of(n) for n in range(11)]


@pytest.mark.parametrize("flush_seconds", [0, 0.5])
async def test_under_load_there_are_fewer_flushes_than_batches(flush_seconds: float, autojump_clock: MockClock) -> None:
    """Also when a flush takes longer than the pace: else every batch would wait for one of its own."""
    log = EventLog()
    steps: dict[int, Any] = {n: (Delay(FLUSH_SECONDS / 5), OnFlush(Delay(flush_seconds / 4))) for n in range(0, 160, 4)}
    await run(log, source={"records": 160}, batch_size=4, script=steps)

    batches = 160 // 4
    flushes = len(log.did("flush", "lake"))
    assert log.numbers("lake") == list(range(160))
    assert flushes <= batches // 4 + 2
    assert log.acked["source"] == [position_of(n) for n in range(160)]


@simulated(seeds=range(3))
async def test_no_more_than_a_bounded_number_of_records_is_unflushed(seed: int) -> None:
    log = EventLog()
    await run(log, source={"records": 3 * FLUSH_RECORDS_MAX}, window=10 * FLUSH_RECORDS_MAX)

    unflushed = worst = 0
    for event in log.events:
        if event.node == "lake":
            unflushed = unflushed + 1 if event.did == "write" else 0 if event.did == "store" else unflushed
            worst = max(worst, unflushed)
    assert worst == FLUSH_RECORDS_MAX
    assert log.numbers("lake") == list(range(3 * FLUSH_RECORDS_MAX))


class SlowlyFlushed(ScriptedDestination):
    """One whose flush completes a file, of which it wants few."""

    flush_seconds = 60.0
    flush_records = 1_000_000


async def test_a_destination_that_wants_few_flushes_gets_few(autojump_clock: MockClock) -> None:
    log = EventLog()
    pipeline = made(log, source={"records": 100, "script": {n: Delay(1) for n in range(100)}}, batch_size=1)
    lake = SlowlyFlushed(name="lake", log=log, acks=AckMode.FLUSH)
    pipeline = Pipeline("p", sources=pipeline.sources, destinations=[Destination("lake", lake)])
    await Supervisor(pipeline, MemoryStore()).run()

    # The first record at once, those of the next minute together, the last ones at the end.
    assert [event.at for event in log.did("flush", "lake")] == [1, 61, 100]
    assert log.acked["source"] == [position_of(n) for n in range(100)]


async def test_a_full_window_does_not_wait_for_a_destination_that_wants_few_flushes(autojump_clock: MockClock) -> None:
    log = EventLog()
    pipeline = made(log, source={"records": 1000}, batch_size=3, window=20)
    lake = SlowlyFlushed(name="lake", log=log, acks=AckMode.FLUSH)
    pipeline = Pipeline("p", sources=pipeline.sources, destinations=[Destination("lake", lake)])
    await Supervisor(pipeline, MemoryStore()).run()

    assert log.acked["source"] == [position_of(n) for n in range(1000)]
    assert trio.current_time() < 60


async def test_a_window_of_filtered_records_does_not_wait_for_a_destination_that_wants_few_flushes(
    autojump_clock: MockClock,
) -> None:
    """The one record in a window that is not filtered holds back all others until it is flushed."""

    @processor
    def few(record: Record) -> Record | None:
        return record if int(record.position) % 20 == 0 else None

    log = EventLog()
    pipeline = made(log, source={"records": 1000}, batch_size=3, window=20)
    lake = SlowlyFlushed(name="lake", log=log, acks=AckMode.FLUSH)
    pipeline = Pipeline("p", sources=pipeline.sources, processors=[few], destinations=[Destination("lake", lake)])
    await Supervisor(pipeline, MemoryStore()).run()

    assert log.acked["source"] == [position_of(n) for n in range(1000)]
    assert log.numbers("lake") == list(range(0, 1000, 20))
    assert trio.current_time() < 60


class SlowlyFlushedByKey(FakeKeyedDestination):
    """As SlowlyFlushed, for exactly-once pipelines."""

    acks = AckMode.FLUSH
    flush_seconds = 60.0

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_transaction_does_not_wait_for_a_destination_that_wants_few_flushes(autojump_clock: MockClock) -> None:
    log, storage = EventLog(), FakeStorage()
    pipeline = Pipeline(
        "p",
        sources=made(log, source={"records": 100}).sources,
        destinations=[Destination("lake", SlowlyFlushedByKey(storage=storage))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=10),
    )
    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert sorted(storage.by_key.values()) == list(range(100))
    assert trio.current_time() < 60


@simulated(seeds=range(10))
async def test_a_window_smaller_than_the_pace_does_not_stall(seed: int) -> None:
    log = EventLog()
    state = await run(log, source={"records": 100}, batch_size=3, window=7)

    assert state.status is Status.COMPLETED
    assert log.numbers("lake") == list(range(100))
    assert trio.current_time() < 100 * FLUSH_SECONDS


@simulated(seeds=range(10))
async def test_nothing_is_acked_between_write_and_flush(seed: int) -> None:
    log = EventLog()
    await run(log, source={"records": 30}, batch_size=4, script={n: OnFlush(Delay(1)) for n in range(30)})

    stored = 0
    for event in log.events:
        stored += event.did == "store"
        if event.did == "ack":
            assert int(event.what[0]) < stored


@simulated(seeds=range(10))
async def test_a_flush_that_fails_ends_the_run_and_acks_nothing_of_it(seed: int) -> None:
    log, store = EventLog(), MemoryStore()
    settings: dict[str, Any] = {"source": {"records": 9}, "batch_size": 3, "script": {4: OnFlush(Fail("disk full"))}}
    state = await Supervisor(made(log, **settings), store).run()

    assert state.error is not None
    assert (state.error.message, state.error.node) == ("disk full", "lake")
    assert log.acked["source"] in ([], [b"0", b"1", b"2"])

    again = await Supervisor(made(log, **settings), store).run()
    assert again.status is Status.COMPLETED
    assert list(dict.fromkeys(log.numbers("lake"))) == list(range(9))


class TestAnswersAfterAFlush:
    """A destination that answers later may hold its answers back until it is flushed."""

    @simulated(seeds=range(10))
    async def test_it_is_flushed_while_the_source_waits_for_its_window(self, seed: int) -> None:
        log = EventLog()
        state = await run(
            log,
            source={"records": 40},
            batch_size=4,
            window=8,
            acks=AckMode.LATER,
            script={n: OnAnswer(AwaitFlush()) for n in range(40)},
        )

        assert state.status is Status.COMPLETED
        assert log.numbers("lake") == list(range(40))
        assert log.acked["source"] == [position_of(n) for n in range(40)]

    async def test_it_is_flushed_while_the_source_is_idle(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        await run(
            log,
            source={"records": 2, "script": {1: Delay(60)}},
            acks=AckMode.LATER,
            script={0: OnAnswer(AwaitFlush())},
        )

        assert [event.at for event in log.did("ack")] == [0, 60]
