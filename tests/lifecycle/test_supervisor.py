"""A pipeline over time: its state and progress in every phase, and stops at any moment."""

from typing import Any

import pytest
import trio
from builders import scripted_pipeline
from trio.testing import MockClock

from conduit_py import Recovery
from conduit_py.errors import FatalError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Block,
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    Refuse,
    position_of,
    simulated,
)


class SlowStore(MemoryStore):
    """Takes a second to save a state, and keeps every status that it saved."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[Status] = []

    async def save_state(self, pipeline: str, state: PipelineState) -> None:
        await trio.sleep(1)
        await super().save_state(pipeline, state)
        self.statuses.append(state.status)


class TestStateAndProgress:
    """What others see at every moment of a pipeline's life."""

    async def test_before_it_runs(self, autojump_clock: MockClock) -> None:
        await trio.sleep(50)
        supervisor = Supervisor(scripted_pipeline(EventLog()), MemoryStore())
        progress = supervisor.progress()

        assert supervisor.state.status is Status.CREATED
        assert (progress.pipeline, progress.status, progress.elapsed_seconds) == ("p", "created", 0)
        assert (progress.read, progress.acked, progress.in_flight, progress.nodes) == (0, 0, 0, [])
        assert progress.blocked_on is None

    async def test_while_a_connector_opens(self, autojump_clock: MockClock) -> None:
        store = MemoryStore()
        supervisor = Supervisor(scripted_pipeline(EventLog(), at_open=Delay(10)), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            progress = supervisor.progress()
            saved = await store.state("p")

        assert saved.status is Status.RUNNING
        assert (progress.status, progress.elapsed_seconds, progress.read) == ("running", 5, 0)
        assert [(meter.node, meter.kind) for meter in progress.nodes] == [
            ("source", "source"),
            ("lake", "destination"),
            ("dead-letters", "dead_letters"),
        ]

    async def test_while_it_runs_and_something_blocks(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        supervisor = Supervisor(scripted_pipeline(log, records=20, script={5: Block()}), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            progress = supervisor.progress()
            supervisor.force()

        assert (progress.read, progress.acked, progress.in_flight) == (8, 4, 4)
        assert progress.blocked_on == "lake: write"
        source, lake, _ = progress.nodes
        assert (source.records, source.acked, source.in_flight, source.window) == (8, 4, 4, 4)
        assert source.waiting_on == "window"
        assert lake.waiting_on == "write"

    async def test_while_nothing_blocks_but_the_source_itself(self, autojump_clock: MockClock) -> None:
        supervisor = Supervisor(scripted_pipeline(EventLog(), source={"bounded": False}), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            progress = supervisor.progress()
            supervisor.stop()

        assert progress.blocked_on is None
        assert progress.nodes[0].waiting_on == "source"

    async def test_while_it_stops_and_after(self, autojump_clock: MockClock) -> None:
        log, store = EventLog(), MemoryStore()
        supervisor = Supervisor(
            scripted_pipeline(log, source={"bounded": False}, acks=AckMode.LATER, script={5: OnAnswer(Delay(20))}),
            store,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            supervisor.stop(Stopper.SYSTEM)
            stopping = supervisor.progress()
            assert supervisor.state.stopped_by == Stopper.SYSTEM
            supervisor.stop(Stopper.USER)
            # What the system only meant to start again, or to stop with the server, stays stopped for the user.
            supervisor.stop(Stopper.SYSTEM)
        await trio.sleep(100)
        stopped = supervisor.progress()

        assert (stopping.status, stopping.in_flight) == ("stopping", 1)
        assert (stopped.status, stopped.in_flight, stopped.acked) == ("stopped", 0, 6)
        assert stopped.elapsed_seconds == 20
        assert (await store.state("p")).stopped_by is Stopper.USER
        assert await store.state("p") == supervisor.state

    async def test_when_it_is_completed(self, autojump_clock: MockClock) -> None:
        log, store = EventLog(), MemoryStore()
        supervisor = Supervisor(
            scripted_pipeline(log, script={n: Delay(1) for n in range(6)} | {3: Refuse("no")}), store
        )
        state = await supervisor.run()
        progress = supervisor.progress()

        assert state == supervisor.state == await store.state("p")
        assert (state.status, state.stopped_by, state.error) == (Status.COMPLETED, None, None)
        assert (progress.read, progress.acked, progress.dead_letters, progress.in_flight) == (6, 6, 1, 0)
        assert progress.nodes[1].records == 5
        assert progress.elapsed_seconds == pytest.approx(5, abs=0.2)

    async def test_after_a_force_nothing_is_in_flight_any_more(self, autojump_clock: MockClock) -> None:
        supervisor = Supervisor(scripted_pipeline(EventLog(), script={2: Block()}), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            assert supervisor.progress().in_flight == 4
            supervisor.force()

        assert supervisor.progress().in_flight == 0
        assert supervisor.progress().acked == 2
        assert supervisor.state.status is Status.STOPPED


class TestStopsAtAnyMoment:
    """A stop is never lost, and never changes how a pipeline has ended."""

    @pytest.mark.parametrize("forced", [False, True])
    async def test_before_the_run(self, forced: bool, autojump_clock: MockClock) -> None:
        log, store = EventLog(), MemoryStore()
        supervisor = Supervisor(scripted_pipeline(log), store)
        supervisor.force() if forced else supervisor.stop()
        state = await supervisor.run()

        assert (state.status, state.stopped_by, state.error) == (Status.STOPPED, Stopper.USER, None)
        assert log.events == []
        assert await store.state("p") == state

    @pytest.mark.parametrize("forced", [False, True])
    async def test_while_the_first_state_is_saved(self, forced: bool, autojump_clock: MockClock) -> None:
        log, store = EventLog(), SlowStore()
        supervisor = Supervisor(scripted_pipeline(log, source={"bounded": False}), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(0.5)
            supervisor.force() if forced else supervisor.stop()
            assert supervisor.progress().status == "stopping"

        assert supervisor.state.status is Status.STOPPED
        assert log.read["source"] == []
        assert store.statuses == [Status.RUNNING, Status.STOPPED]

    async def test_while_the_last_state_is_saved(self, autojump_clock: MockClock) -> None:
        log, store = EventLog(), SlowStore()
        supervisor = Supervisor(scripted_pipeline(log), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1.5)
            assert log.acked["source"] == [position_of(n) for n in range(6)]
            supervisor.stop()

        assert supervisor.state.status is Status.COMPLETED
        assert store.statuses == [Status.RUNNING, Status.COMPLETED]

    @pytest.mark.parametrize("script", [{}, {3: Fail("gone", error=FatalError)}])
    async def test_after_the_end(self, script: dict[int, Any], autojump_clock: MockClock) -> None:
        supervisor = Supervisor(scripted_pipeline(EventLog(), script=script), MemoryStore())
        state = await supervisor.run()
        supervisor.stop()
        supervisor.force()

        assert supervisor.state == state
        assert state.status is (Status.DEGRADED if script else Status.COMPLETED)

    @pytest.mark.parametrize("forced", [False, True])
    async def test_while_a_recovering_state_is_saved(self, forced: bool, autojump_clock: MockClock) -> None:
        log, store = EventLog(), SlowStore()
        supervisor = Supervisor(
            scripted_pipeline(log, script={3: Fail("down")}), store, recovery=Recovery(delay_seconds=60)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1.5)
            supervisor.force() if forced else supervisor.stop()

        assert supervisor.state.status is Status.STOPPED
        assert supervisor.state.error is not None
        assert supervisor.state.error.message == "down"
        assert store.statuses[-1] is Status.STOPPED
        assert len(log.did("open", "source")) == 1

    @simulated(seeds=range(5))
    async def test_a_failure_while_stopping_is_shown_and_does_not_restart(self, seed: int) -> None:
        log = EventLog()
        slow_failure: Any = {5: (Delay(10), Fail("too late", times=None))}
        supervisor = Supervisor(
            scripted_pipeline(log, source={"bounded": False}, script=slow_failure), MemoryStore(), recovery=Recovery()
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            supervisor.stop()

        assert supervisor.state.status is Status.STOPPED
        assert supervisor.state.stopped_by is Stopper.USER
        assert supervisor.state.error is not None
        assert supervisor.state.error.message == "too late"
        assert len(log.did("open", "source")) == 1
