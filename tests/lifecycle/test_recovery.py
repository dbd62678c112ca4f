"""What happens after a failure: when a pipeline starts again, how often, and what is known meanwhile."""

import itertools
import random
from typing import Any

import pytest
import trio
from builders import scripted_pipeline
from trio.testing import MockClock

from conduit_py import Recovery
from conduit_py.errors import FatalError, TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import StoredEntry
from conduit_py.testing import (
    Delay,
    EventLog,
    Fail,
)


class TestRecovery:
    """A transient failure starts the pipeline again, with growing pauses, within limits."""

    async def test_the_pauses_grow_and_counters_are_summed_over_runs(self, autojump_clock: MockClock) -> None:
        log, rng = EventLog(), random.Random(9)
        recovery = Recovery(delay_seconds=10, delay_max_seconds=35, factor=2, window_seconds=1000)
        delays = [recovery.delay(attempt, rng) for attempt in (1, 2, 3, 4)]
        supervisor = Supervisor(
            scripted_pipeline(log, script={3: Fail("down", times=4)}),
            MemoryStore(),
            recovery=recovery,
            rng=random.Random(9),
        )
        state = await supervisor.run()

        assert state.status is Status.COMPLETED
        assert state.error is None
        opened = [event.at for event in log.did("open", "source")]
        assert opened == pytest.approx([0, delays[0], sum(delays[:2]), sum(delays[:3]), sum(delays)])
        assert all(cap / 2 <= delay <= cap for cap, delay in zip((10, 20, 35, 35), delays, strict=True))
        progress = supervisor.progress()
        assert progress.read == len(log.read["source"]) > 6
        assert progress.acked == len(log.acked["source"])
        # Every write that failed had stored the record 2 before, but accepted nothing.
        assert progress.nodes[1].records == len(log.stored["lake"]) - 4
        assert progress.elapsed_seconds == pytest.approx(sum(delays), abs=0.1)

    async def test_the_pauses_reach_their_maximum_although_it_is_longer_than_the_window(
        self, autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        supervisor = Supervisor(
            scripted_pipeline(log, script={3: Fail("down", times=None)}),
            MemoryStore(),
            recovery=Recovery(),
            rng=random.Random(1),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(7200)
            supervisor.stop()

        opened = [event.at for event in log.did("open", "source")]
        pauses = [later - earlier for earlier, later in itertools.pairwise(opened)]
        # 1, 2, 4, … 512 seconds, then ten minutes each, less up to half of it at random.
        assert all(min(2**n, 600) / 2 <= pause <= min(2**n, 600) + 0.1 for n, pause in enumerate(pauses))
        assert len(pauses) > 11

    async def test_a_run_that_lasted_lets_the_pauses_begin_anew(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        recovery = Recovery(delay_seconds=10, factor=4, window_seconds=100)
        script: Any = {1: Fail("down", times=2), 5: (Delay(200), Fail("down again"))}
        supervisor = Supervisor(scripted_pipeline(log, script=script), MemoryStore(), recovery=recovery)
        state = await supervisor.run()

        assert state.status is Status.COMPLETED
        opened = [event.at for event in log.did("open", "source")]
        assert 5 <= opened[1] <= 10
        assert 20 <= opened[2] - opened[1] <= 40
        assert 5 <= opened[3] - (opened[2] + 200) <= 10.1

    @pytest.mark.parametrize("retries", [0, 1, 3])
    async def test_no_more_retries_than_allowed_within_the_window(
        self, retries: int, autojump_clock: MockClock
    ) -> None:
        log, store = EventLog(), MemoryStore()
        recovery = Recovery(delay_seconds=1, retries=retries, window_seconds=1000)
        supervisor = Supervisor(scripted_pipeline(log, script={3: Fail("down", times=None)}), store, recovery=recovery)
        state = await supervisor.run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.message == "down"
        assert len(log.did("open", "source")) == retries + 1
        assert await store.state("p") == state

    async def test_retries_outside_of_the_window_do_not_count(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        recovery = Recovery(delay_seconds=1, delay_max_seconds=1, retries=2, window_seconds=50)
        # Every run lasts 30 s, so that there are never more than two failures in any 50 s.
        script: Any = {3: (Delay(30), Fail("down", times=6))}
        state = await Supervisor(scripted_pipeline(log, script=script), MemoryStore(), recovery=recovery).run()

        assert state.status is Status.COMPLETED
        assert len(log.did("open", "source")) == 7

    @pytest.mark.parametrize(("error", "opens"), [(TransientError, 4), (OSError, 4), (FatalError, 1)])
    async def test_all_but_fatal_errors_are_worth_another_try(
        self, error: type[Exception], opens: int, autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        recovery = Recovery(delay_seconds=1, retries=3)
        script: Any = {3: Fail("down", error=error, times=None)}
        state = await Supervisor(scripted_pipeline(log, script=script), MemoryStore(), recovery=recovery).run()

        assert state.status is Status.DEGRADED
        assert len(log.did("open", "source")) == opens

    async def test_an_open_that_fails_is_worth_another_try_too(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        recovery = Recovery(delay_seconds=1, retries=3)
        pipeline = scripted_pipeline(log, source={"at_open": Fail("not up yet", times=2)})
        state = await Supervisor(pipeline, MemoryStore(), recovery=recovery).run()

        assert state.status is Status.COMPLETED
        assert len(log.did("open", "source")) == 3
        log.check()

    async def test_the_state_tells_of_the_pause_and_of_the_error_until_it_is_over(
        self, autojump_clock: MockClock
    ) -> None:
        log, store = EventLog(), MemoryStore()
        script: Any = {3: Fail("down"), 5: Delay(40)}
        supervisor = Supervisor(scripted_pipeline(log, script=script), store, recovery=Recovery(delay_seconds=60))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(20)
            recovering, saved, progress = supervisor.state, await store.state("p"), supervisor.progress()
            await trio.sleep(45)
            running = supervisor.state

        assert recovering == saved
        assert recovering.status is Status.RECOVERING
        assert recovering.error is not None
        assert (recovering.error.message, recovering.error.node) == ("down", "lake")
        assert (progress.status, progress.in_flight, progress.blocked_on) == ("recovering", 0, None)
        assert (running.status, running.error) == (Status.RUNNING, recovering.error)
        assert supervisor.state.error is None

    def test_the_pipeline_says_how_it_recovers_unless_the_caller_does(self) -> None:
        pipeline = scripted_pipeline(EventLog(), script={3: Fail("down", times=None)})
        pipeline.settings = pipeline.settings.model_copy(update={"recovery": Recovery(retries=7)})

        assert Supervisor(pipeline, MemoryStore())._recovery.retries == 7
        assert Supervisor(pipeline, MemoryStore(), recovery=Recovery(retries=2))._recovery.retries == 2
        assert Supervisor(scripted_pipeline(EventLog()), MemoryStore())._recovery.retries == 0


class BrokenStore(MemoryStore):
    """Cannot save states with these statuses, the first `times` times."""

    def __init__(self, *statuses: Status, times: int = 1_000) -> None:
        super().__init__()
        self._statuses = [f'"{status.value}"'.encode() for status in statuses]
        self._times = times

    async def _save(self, rows: list[StoredEntry]) -> None:
        broken = rows[0].kind == "state" and any(status in rows[0].value for status in self._statuses)
        if broken and self._times:
            self._times -= 1
            self.fail_after = 0
        try:
            await super()._save(rows)
        finally:
            self.fail_after = None


class TestAStoreThatFails:
    """A state that cannot be saved is an error of the pipeline, not of its supervisor."""

    async def test_at_the_start_nothing_is_opened(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        state = await Supervisor(scripted_pipeline(log), BrokenStore(Status.RUNNING)).run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "state.failed"
        assert log.events == []

    async def test_at_the_start_it_is_tried_again(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        state = await Supervisor(
            scripted_pipeline(log), BrokenStore(Status.RUNNING, times=2), recovery=Recovery(delay_seconds=1)
        ).run()

        assert state.status is Status.COMPLETED
        assert len(log.did("open", "source")) == 1

    async def test_at_the_end_the_state_is_true_and_says_that_it_was_not_saved(self, autojump_clock: MockClock) -> None:
        log, store = EventLog(), BrokenStore(Status.COMPLETED)
        state = await Supervisor(scripted_pipeline(log), store).run()

        assert state.status is Status.COMPLETED
        assert state.error is not None
        assert state.error.code == "state.failed"
        assert (await store.state("p")).status is Status.RUNNING

    async def test_in_recovery_and_at_the_end_the_first_error_is_kept(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        recovery = Recovery(delay_seconds=1, retries=1)
        script: Any = {3: Fail("down", times=None)}
        state = await Supervisor(
            scripted_pipeline(log, script=script), BrokenStore(Status.RECOVERING, Status.DEGRADED), recovery=recovery
        ).run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.message == "down"
        assert len(log.did("open", "source")) == 2
