"""Going back: a source reads again what was settled since a moment of the past."""

import time

import pytest
import trio
from conduit_connectors import memory

from conduit_py import Destination, Pipeline, Source
from conduit_py.errors import PipelineBusy, PipelineUnknown, PositionUnknown
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, simulated


def made(log: EventLog, records: int = 5) -> Pipeline:
    return Pipeline(
        "a",
        sources=[Source("source", ScriptedSource(records=records, log=log))],
        destinations=[Destination("to", ScriptedDestination(name="to", log=log))],
    )


async def wait_until_completed(fleet: Fleet) -> None:
    fleet.start("a")
    await fleet["a"].ended.wait()


@simulated(seeds=range(3))
async def test_a_source_is_set_back_to_where_it_was() -> None:
    log, began = EventLog(), time.time()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(made(log))
        await wait_until_completed(fleet)
        history = await fleet.position_history("a", "source")
        latest = await fleet.replay("a", "source", time.time())
        stayed = await fleet.positions("a")
        first = await fleet.replay("a", "source", history.points[0].at)
        await wait_until_completed(fleet)

    assert [(point.position, point.start) for point in history.points] == [(None, True), (b"4", False)]
    assert began <= history.points[0].at <= history.points[1].at <= time.time()
    assert (latest.position, stayed) == (b"4", {"source": b"4"})
    assert first.position is None
    assert log.numbers("to") == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


@simulated(seeds=range(1))
async def test_what_is_not_known_or_under_way_is_refused() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(made(log))
        with pytest.raises(PositionUnknown, match="no point is known yet"):
            await fleet.replay("a", "source", time.time())
        await wait_until_completed(fleet)
        with pytest.raises(PositionUnknown, match="was at 2001-09-09T01:46:40") as early:
            await fleet.replay("a", "source", 1e9)
        with pytest.raises(PipelineUnknown, match="no source 'sauce'"):
            await fleet.position_history("a", "sauce")
        fleet.start("a")
        with pytest.raises(PipelineBusy):
            await fleet.replay("a", "source", time.time())

    assert early.value.suggestion == "replay from a later time, or from the start"


@simulated(seeds=range(1))
async def test_another_connector_under_the_same_id_has_no_past() -> None:
    log, store = EventLog(), MemoryStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        await fleet.add(made(log))
        await wait_until_completed(fleet)
        other = Pipeline(
            "a",
            sources=[Source("source", memory.Source(records=[]))],
            destinations=[Destination("to", ScriptedDestination(name="to", log=log))],
        )
        kept = len((await store.position_history("a", "source")).points)
        await fleet.replace(other)
        await wait_until_completed(fleet)

    assert kept == 2
    assert (await store.position_history("a", "source")).points == []
