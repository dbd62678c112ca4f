"""Invariants 2, 3 and 11 through the whole runtime: a power cut at any moment loses nothing, whatever the ack mode."""

import itertools
from collections.abc import Callable, Iterable

import pytest

from conduit_py import DeadLetters, Destination, Pipeline, Record, Recovery, Source, processor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.testing.crash import OutageStore, run_with_outage
from conduit_py.testing.event_log import EventLog, ReceivedRecord
from conduit_py.testing.harness import run_to_end
from conduit_py.testing.script import Delay, Fail, OnAck, OnAnswer, Refuse
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource
from conduit_py.testing.simulation import simulate

COUNT = 6


@processor
def odd_ones_twice(record: Record) -> Record | list[Record] | None:
    """Filters number 2 and splits number 3, so that pieces and gaps meet every outage too."""
    number = record.payload["n"]
    if number == 2:
        return None
    return [record, record.copy()] if number == 3 else record


def straight(log: EventLog, mode: AckMode) -> Pipeline:
    return Pipeline(
        "straight",
        sources=[Source("in", ScriptedSource(log=log, records=COUNT, chunks=[2, 1], prunes=True), batch_size=2)],
        destinations=[Destination("out", ScriptedDestination(log=log, name="out", acks=mode))],
    )


def crooked(log: EventLog, mode: AckMode) -> Pipeline:
    """Two sources, a filter, a split, a fan-out to uneven destinations, dead letters, and a failure."""
    late = {1: OnAnswer(Delay(0.5)), 4: OnAnswer(Delay(0.1))}
    return Pipeline(
        "crooked",
        sources=[
            Source("a", ScriptedSource(log=log, name="a", records=COUNT, prunes=True), batch_size=4, window=4),
            Source("b", ScriptedSource(log=log, name="b", records=3, prunes=True, script={1: OnAck(Fail("lost"))})),
        ],
        processors=[odd_ones_twice],
        destinations=[
            Destination("quick", ScriptedDestination(log=log, name="quick", acks=mode, script=late)),
            Destination("slow", ScriptedDestination(log=log, name="slow", script={0: Delay(1), 5: Refuse("five")})),
        ],
        dead_letters=DeadLetters(ScriptedDestination(log=log, name="letters")),
        recovery=Recovery(retries=5),
    )


async def cut_and_restart(
    make: Callable[[EventLog, AckMode], Pipeline], mode: AckMode, moment: int
) -> tuple[EventLog, bool]:
    log = EventLog()
    store = OutageStore(log)
    struck = await run_with_outage(run_to_end, make(log, mode), store, log=log, moment=moment)
    again = await run_to_end(make(log, mode), store)
    assert again.status is Status.COMPLETED, again.error
    return log, struck


@pytest.mark.parametrize("mode", AckMode)
def test_an_outage_at_any_moment_loses_nothing(mode: AckMode) -> None:
    for moment in itertools.count():
        log, struck = simulate(cut_and_restart, straight, mode, moment, seed=moment)
        assert set(log.numbers("out")) == set(range(COUNT))
        assert first_times(log.received["out"]) == list(range(COUNT))
        if not struck:
            break
    assert moment > 3 * COUNT


@pytest.mark.parametrize("mode", AckMode)
def test_an_outage_at_any_moment_of_a_crooked_pipeline_loses_nothing(mode: AckMode) -> None:
    for moment in itertools.count():
        log, struck = simulate(cut_and_restart, crooked, mode, moment, seed=moment)
        for source, numbers in (("a", {0, 1, 3, 4, 5}), ("b", {0, 1})):
            assert set(log.numbers("quick", source)) == numbers
            assert set(log.numbers("slow", source)) == numbers - {5}
            assert first_times(each for each in log.received["quick"] if each.source == source) == sorted(numbers)
        assert set(log.numbers("letters")) == {5}
        if not struck:
            break
    assert moment > 40


def first_times(deliveries: Iterable[ReceivedRecord]) -> list[int | None]:
    """The numbers in the order of their first delivery."""
    return list(dict.fromkeys(delivery.number for delivery in deliveries))
