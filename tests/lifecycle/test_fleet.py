"""The fleet: many pipelines side by side, across stops and starts of the server."""

from typing import Any

import pytest
import trio

from conduit_py import Destination, FatalError, Pipeline, Recovery, Source
from conduit_py.errors import PipelineBusy, PipelineIdle, PipelineInvalid, PipelineUnknown, ShuttingDown
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Block, Delay, EventLog, Fail, ScriptedDestination, ScriptedSource, simulate, simulated


def pipeline(id: str, log: EventLog, *, records: int = 10, stop_seconds: float = 30, **ends: Any) -> Pipeline:
    source = {"bounded": False, **ends.get("source", {})}
    return Pipeline(
        id,
        sources=[Source("source", ScriptedSource(records=records, name=id, log=log, **source))],
        destinations=[Destination("to", ScriptedDestination(name=f"{id}-to", log=log, **ends.get("destination", {})))],
        stop_seconds=stop_seconds,
    )


@simulated(seeds=range(10))
async def test_pipelines_run_side_by_side_and_a_stuck_one_holds_up_nobody() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(pipeline("stuck", log, destination={"script": {3: Block()}}))
        for number in range(5):
            await fleet.add(pipeline(f"p{number}", log))
        await fleet.boot()
        await trio.sleep(5)
        await fleet.shutdown(seconds=10)

    assert trio.current_time() < 20
    for number in range(5):
        assert log.numbers(f"p{number}-to") == list(range(10))
        assert fleet[f"p{number}"].state.status is Status.STOPPED
        assert fleet[f"p{number}"].state.stopped_by is Stopper.SYSTEM
    assert fleet["stuck"].state.status is Status.STOPPED
    log.check(after_run=True)


@pytest.mark.parametrize(
    ("left_as", "started"),
    [
        (Status.CREATED, True),
        (Status.RUNNING, True),
        (Status.RECOVERING, True),
        (Status.STOPPING, True),
        ("stopped by system", True),
        ("stopped by user", False),
        (Status.DEGRADED, False),
        (Status.COMPLETED, False),
    ],
)
def test_a_boot_starts_what_the_system_stopped_and_nothing_else(left_as: Status | str, started: bool) -> None:
    states = {
        "stopped by system": PipelineState(Status.STOPPED, Stopper.SYSTEM),
        "stopped by user": PipelineState(Status.STOPPED, Stopper.USER),
    }

    async def main() -> None:
        log, store = EventLog(), MemoryStore()
        await store.save_state(
            "p", states[left_as] if isinstance(left_as, str) and left_as in states else PipelineState(Status(left_as))
        )
        async with trio.open_nursery() as nursery:
            fleet = Fleet(store, nursery)
            await fleet.add(pipeline("p", log))
            await fleet.boot()
            await trio.sleep(1)
            assert fleet["p"].running is started
            await fleet.shutdown(1)
        assert bool(log.did("open")) is started

    simulate(main)


@simulated(seeds=range(5))
async def test_a_user_stops_starts_and_restarts_and_nothing_is_lost() -> None:
    log, store = EventLog(), MemoryStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        await fleet.add(pipeline("p", log, records=20, destination={"script": {n: Delay(1) for n in range(20)}}))
        fleet.start("p")
        with pytest.raises(PipelineBusy):
            fleet.start("p")
        await trio.sleep(5)
        fleet.stop("p")
        await fleet["p"].ended.wait()
        with pytest.raises(PipelineIdle):
            fleet.stop("p")
        assert fleet["p"].state.stopped_by is Stopper.USER
        await fleet.restart("p")
        await trio.sleep(3)
        await fleet.restart("p")
        await trio.sleep(30)
        await fleet.shutdown(60)

    assert list(dict.fromkeys(log.numbers("p-to"))) == list(range(20))
    log.check(after_run=True)


@simulated(seeds=range(5))
async def test_transient_errors_recover_for_ever_by_default_and_fatal_ones_do_not() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery, recovery=Recovery(delay_seconds=1, delay_max_seconds=1))
        await fleet.add(pipeline("flaky", log, destination={"script": {3: Fail("link down", times=30)}}))
        await fleet.add(pipeline("broken", log, destination={"script": {3: Fail("gone", error=FatalError)}}))
        await fleet.boot()
        await trio.sleep(100)
        assert fleet["flaky"].state.status is Status.RUNNING
        assert fleet["broken"].state.status is Status.DEGRADED
        await fleet.shutdown(5)

    assert sorted(set(log.numbers("flaky-to"))) == list(range(10))  # type: ignore[type-var]


@simulated(seeds=range(5))
async def test_a_replaced_pipeline_drains_and_goes_on_with_the_new_definition() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(pipeline("p", log, records=10))
        fleet.start("p")
        await trio.sleep(1)
        await fleet.replace(pipeline("p", log, records=25))
        await trio.sleep(1)
        await fleet.shutdown(5)

    assert log.numbers("p-to") == list(range(25))
    log.check(after_run=True)


@simulated(seeds=range(2))
async def test_positions_are_set_and_reset_only_while_the_pipeline_is_stopped() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(pipeline("p", log))
        fleet.start("p")
        await trio.sleep(1)
        with pytest.raises(PipelineBusy):
            await fleet.set_position("p", "source", b"3")
        with pytest.raises(PipelineUnknown, match="no source 'sauce'"):
            await fleet.set_position("p", "sauce", b"3")
        fleet.stop("p")
        await fleet["p"].ended.wait()
        await fleet.set_position("p", "source", b"7")
        assert await fleet.positions("p") == {"source": b"7"}
        fleet.start("p")
        await trio.sleep(1)
        fleet.stop("p")
        await fleet["p"].ended.wait()
        await fleet.set_position("p", "source", None)
        assert await fleet.positions("p") == {}
        await fleet.remove("p")
        assert len(fleet) == 0

    assert log.numbers("p-to") == [*range(10), 8, 9]


@simulated(seeds=range(2))
async def test_what_cannot_be_done_is_said_with_a_code_and_advice() -> None:
    log = EventLog()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        await fleet.add(pipeline("p", log))
        with pytest.raises(PipelineUnknown) as unknown:
            fleet.start("q")
        assert unknown.value.code == "pipeline.unknown"
        assert unknown.value.suggestion == "pipelines are p"
        with pytest.raises(PipelineBusy):
            await fleet.add(pipeline("p", log))
        with pytest.raises(PipelineInvalid):
            await fleet.add(Pipeline("bad id", sources=[], destinations=[]))
        await fleet.shutdown(1)
        with pytest.raises(ShuttingDown):
            fleet.start("p")
