"""Outage: everything before the chosen moment lasts, nothing from it on, and nothing else changes."""

import itertools

import pytest
from trio.testing import MockClock

from conduit_py.batch import Batch, Span
from conduit_py.testing.crash import OutageStore, run_with_outage
from conduit_py.testing.event_log import EventLog
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource


async def copy(log: EventLog, store: OutageStore, *, ack_first: bool = False) -> None:
    """A pipeline in five lines; with `ack_first`, the wrong way round."""
    source, destination = ScriptedSource(records=4, log=log, prunes=True), ScriptedDestination(log=log)
    await source.open((await store.positions("p")).get("source"))
    await destination.open()
    while source._next < 4:
        records = await source.read(2)
        assert isinstance(records, list)
        positions = [record.position for record in records]
        await destination.write(Batch.whole(Span("p", "source", 0, positions), records))
        if ack_first:
            await source.ack(positions)
        await store.save_positions("p", {"source": positions[-1]})
        if not ack_first:
            await source.ack(positions)


async def test_no_outage_when_the_run_ends_before(autojump_clock: MockClock) -> None:
    log = EventLog()

    assert await run_with_outage(copy, log, OutageStore(log), log=log, moment=1000) is False
    assert log.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("moment", [0, 1, 4, 7, 11])
async def test_the_moments_before_an_outage_are_those_of_a_run_without_one(
    moment: int, autojump_clock: MockClock
) -> None:
    whole, cut = EventLog(), EventLog()
    await copy(whole, OutageStore(whole))

    assert await run_with_outage(copy, cut, OutageStore(cut), log=cut, moment=moment) is True

    assert cut.trace() == whole.trace()[:moment]


async def test_store_and_ends_keep_what_they_had_at_the_outage(autojump_clock: MockClock) -> None:
    log = EventLog()
    store = OutageStore(log)

    # open, open, read, write, store, write, store, save: then the power is gone before the ack.
    await run_with_outage(copy, log, store, log=log, moment=8)

    assert await store.positions("p") == {"source": b"1"}
    assert (log.numbers(), log.acked["source"]) == ([0, 1], [])


async def test_every_moment_of_a_correct_runtime_loses_nothing(autojump_clock: MockClock) -> None:
    for moment in itertools.count():
        log = EventLog()
        store = OutageStore(log)
        struck = await run_with_outage(copy, log, store, log=log, moment=moment)
        await copy(log, store)
        assert set(log.numbers()) == {0, 1, 2, 3}
        if not struck:
            break
    assert moment == len(log.events) - 2  # the second run only opened its ends


async def test_some_moment_exposes_a_runtime_that_acks_too_early(autojump_clock: MockClock) -> None:
    async def loses(moment: int) -> bool:
        log = EventLog()
        store = OutageStore(log)
        await run_with_outage(copy_wrongly, log, store, log=log, moment=moment)
        try:
            await copy_wrongly(log, store)
        except Exception as error:
            return "acked and are gone" in str(error)
        return False

    async def copy_wrongly(log: EventLog, store: OutageStore) -> None:
        await copy(log, store, ack_first=True)

    assert [moment for moment in range(20) if await loses(moment)] == [8, 9, 16, 17]


async def test_errors_of_a_run_without_outage_come_out(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await run_with_outage(fail, log=EventLog(), moment=3)
