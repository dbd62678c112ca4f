"""At-most-once delivery: a record is done with before it is written, so a crash loses but never repeats."""

import itertools
from typing import Any

import pytest
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source
from conduit_py.errors import PipelineInvalid
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    OutageStore,
    Refuse,
    ScriptedDestination,
    ScriptedSource,
    position_of,
    run_with_outage,
    simulated,
)


def made(
    log: EventLog, *, records: int = 9, acks: AckMode = AckMode.WRITE, handler: Any = "drop", **lake: Any
) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=log, prunes=True), batch_size=3, window=6)],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, acks=acks, **lake))],
        dead_letters=DeadLetters(handler),
        delivery="at_most_once",
    )


@pytest.mark.parametrize("acks", list(AckMode))
async def test_the_position_is_saved_then_acked_then_the_record_written(
    acks: AckMode, autojump_clock: MockClock
) -> None:
    log = EventLog()
    state = await Supervisor(made(log, acks=acks), OutageStore(log)).run()

    assert state.status is Status.COMPLETED
    assert log.acked["source"] == [position_of(n) for n in range(9)]
    assert sorted(n for n in log.numbers("lake") if n is not None) == list(range(9))
    saved, acked = -1, -1
    for event in log.events:
        if event.did == "save" and event.what[0].startswith("position:"):
            saved = int(event.what[0].partition("=")[2])
        elif event.did == "ack":
            acked = int(event.what[0])
            assert acked <= saved
        elif event.did == "write":
            assert int(event.what[0].partition(":")[2]) <= acked
    log.check()


@pytest.mark.parametrize("acks", list(AckMode))
@simulated(seeds=range(3))
async def test_a_crash_at_any_moment_never_repeats_and_loses_only_what_was_on_its_way(acks: AckMode, seed: int) -> None:
    losses = set()
    for moment in itertools.count():
        log = EventLog()
        store = OutageStore(log)
        script: dict[int, Any] = {4: OnAnswer(Delay(1)), 5: Refuse("no")}
        dying = Supervisor(made(log, acks=acks, script=script), store)
        struck = await run_with_outage(dying.run, log=log, moment=moment)
        in_flight = len(log.read["source"]) - len(log.stored["lake"])
        state = await Supervisor(made(log, acks=acks, script=script), store).run()

        assert state.status is Status.COMPLETED
        received = [delivery.number for delivery in log.received["lake"]]
        assert len(received) == len(set(received))
        stored = set(log.numbers("lake"))
        lost = set(range(9)) - stored - {5}
        assert len(lost) <= in_flight <= 9
        assert len(lost) <= 6
        losses.add(len(lost))
        log.check()
        if not struck:
            break
    assert lost == set()
    assert losses > {0}
    assert moment > 20


@simulated(seeds=range(10))
async def test_the_window_still_bounds_what_is_in_flight(seed: int) -> None:
    log = EventLog()
    slow: dict[int, Any] = {n: Delay(1) for n in range(40)}
    state = await Supervisor(made(log, records=40, script=slow), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    read = stored = worst = 0
    for event in log.events:
        read += len(event.what) if event.did == "read" else 0
        stored += event.did == "store"
        worst = max(worst, read - stored)
    assert worst <= 6
    assert log.numbers("lake") == list(range(40))


@simulated(seeds=range(5))
async def test_filters_splits_and_refusals_are_settled_as_ever(seed: int) -> None:
    log = EventLog()

    def shape(record: Record) -> list[Record] | None:
        n = record.payload["n"]
        return None if n % 3 == 0 else [Record.of({"n": n * 10}), Record.of({"n": n * 10 + 1})]

    pipeline = made(log, script={40: Refuse("no")})
    pipeline.processors = [Processor("shape", shape)]
    supervisor = Supervisor(pipeline, MemoryStore())
    state = await supervisor.run()

    assert state.status is Status.COMPLETED
    assert log.numbers("lake") == [10, 11, 20, 21, 41, 50, 51, 70, 71, 80, 81]
    assert supervisor.progress().dead_letters == 1
    assert supervisor.progress().in_flight == 0
    assert log.acked["source"] == [position_of(n) for n in range(9)]


@simulated(seeds=range(5))
async def test_a_failed_write_is_not_repeated_by_a_restart(seed: int) -> None:
    log, store = EventLog(), MemoryStore()
    settings: dict[str, Any] = {"script": {4: Fail("down", times=1)}}
    first = await Supervisor(made(log, **settings), store).run()
    second = await Supervisor(made(log, **settings), store).run()

    assert first.status is Status.DEGRADED
    assert second.status is Status.COMPLETED
    received = [int(position) for delivery in log.received["lake"] for position in [delivery.record.position]]
    assert received == sorted(set(received))
    assert 4 in received
    assert 4 not in log.numbers("lake")


async def test_a_store_that_fails_keeps_the_records_from_being_written(autojump_clock: MockClock) -> None:
    log = EventLog()
    store = MemoryStore()
    supervisor = Supervisor(made(log), store)
    # The state and the two connectors are saved; the first position is not.
    store.fail_after = 3
    state = await supervisor.run()

    assert state.error is not None
    assert state.error.code == "state.failed"
    assert log.received["lake"] == []
    assert log.acked["source"] == []


def test_a_handler_that_would_keep_letters_is_refused() -> None:
    with pytest.raises(PipelineInvalid) as invalid:
        compile_pipeline(made(EventLog(), handler=ScriptedDestination()))

    [problem] = invalid.value.problems
    assert (problem.path, problem.message) == ("dead_letters", "at_most_once drops refused records")
