"""Pipelines with a schedule: when they run, what they wait for, and what a stop, a crash or a missed time changes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import trio
from builders import scripted_pipeline
from trio.testing import MockClock
from waiting import until

from conduit_py import Destination, Pipeline, PipelineInvalid, Recovery, Source, Spark
from conduit_py.errors import RunElsewhere, StateFailed
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import derive
from conduit_py.schedule import Schedule
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Delay, EventLog, Fail, ScriptedDestination, ScriptedSource, rehearse

HOUR = 3600.0
MIDNIGHT = datetime(2026, 5, 1, tzinfo=UTC).timestamp()


def wall(start: float = MIDNIGHT) -> Callable[[], float]:
    """The time of day in virtual time, which begins at `start`."""
    return lambda: start + trio.current_time()


def nightly(log: EventLog, schedule: str = "0 3 * * *", timezone: str | None = None, **script: object) -> Pipeline:
    """A pipeline of six records, which the log keeps from run to run, at 3:00 by default."""
    pipeline = scripted_pipeline(log, **script)  # type: ignore[arg-type]
    source = Source("source", pipeline.sources[0].connector, batch_size=2, schedule=schedule, timezone=timezone)
    return derive(pipeline, sources=[source])


def opened_at(log: EventLog) -> list[float]:
    """At which hours the source was opened."""
    return [round(event.at / HOUR, 2) for event in log.did("open", "source")]


async def test_it_waits_for_its_time_runs_and_waits_again(autojump_clock: MockClock) -> None:
    log, store = EventLog(), MemoryStore()
    supervisor = Supervisor(nightly(log), store, clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(HOUR)
        waiting = await store.state("p")
        shown = supervisor.progress().blocked_on
        await trio.sleep(60 * HOUR)
        supervisor.stop()

    assert (waiting.status, waiting.next_run) == (Status.WAITING, MIDNIGHT + 3 * HOUR)
    assert shown == "the next run, at 2026-05-01 03:00 UTC"
    assert opened_at(log) == [3, 27, 51]
    # Every run goes on after the last position, and nothing is open in between.
    assert [event.what for event in log.did("open", "source")] == [(), ("5",), ("5",)]
    assert len(log.did("teardown", "source")) == len(log.did("teardown", "lake")) == 3
    assert (supervisor.progress().read, supervisor.progress().recoveries) == (6, 0)
    state = await store.state("p")
    assert (state.status, state.stopped_by, state.next_run) == (Status.STOPPED, Stopper.USER, MIDNIGHT + 75 * HOUR)


async def test_a_stop_ends_the_wait_at_once(autojump_clock: MockClock) -> None:
    supervisor = Supervisor(nightly(EventLog()), MemoryStore(), clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        supervisor.stop(Stopper.SYSTEM)

    assert trio.current_time() == 100
    assert (supervisor.state.status, supervisor.state.stopped_by) == (Status.STOPPED, Stopper.SYSTEM)


async def test_a_run_that_is_asked_for_begins_at_once_and_the_next_at_its_time(autojump_clock: MockClock) -> None:
    log = EventLog()
    supervisor = Supervisor(nightly(log), MemoryStore(), clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(HOUR)
        assert supervisor.run_now()
        await trio.sleep(3 * HOUR)
        supervisor.stop()

    assert opened_at(log) == [1, 3]


async def test_times_that_pass_during_a_run_are_skipped(autojump_clock: MockClock) -> None:
    log = EventLog()
    slow = nightly(log, "0 * * * *", source={"script": {2: Delay(2.5 * HOUR)}})
    supervisor = Supervisor(slow, MemoryStore(), clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(4.2 * HOUR)
        supervisor.stop()

    # From 1:00 to 3:30; 2:00 and 3:00 are not made up for.
    assert opened_at(log) == [1, 4]


@pytest.mark.parametrize(
    ("last", "first"),
    [
        (PipelineState(), 3),
        (PipelineState(Status.WAITING, next_run=MIDNIGHT - 40 * HOUR), 0),
        (PipelineState(Status.STOPPED, Stopper.SYSTEM, next_run=MIDNIGHT - HOUR), 0),
        (PipelineState(Status.WAITING, next_run=MIDNIGHT + HOUR), 3),
        (PipelineState(Status.RUNNING), 0),
        (PipelineState(Status.DEGRADED), 0),
        (PipelineState(Status.COMPLETED), 3),
    ],
)
async def test_after_a_start_missed_and_unfinished_runs_come_once_and_at_once(
    autojump_clock: MockClock, last: PipelineState, first: float
) -> None:
    log, store = EventLog(), MemoryStore()
    await store.save_state("p", last)
    supervisor = Supervisor(nightly(log), store, clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(4 * HOUR)
        supervisor.stop()

    assert opened_at(log) == sorted({first, 3})


async def test_a_run_that_fails_recovers_and_then_waits_for_the_next(autojump_clock: MockClock) -> None:
    log = EventLog()
    pipeline = nightly(log, script={3: Fail("down", times=2)})
    store = MemoryStore()
    supervisor = Supervisor(pipeline, store, recovery=Recovery(delay_seconds=600), clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(10 * HOUR)
        assert supervisor.state.status is Status.WAITING
        supervisor.stop()

    assert supervisor.progress().recoveries == 2
    assert await store.positions("p") == {"source": b"5"}


class FailsEveryOtherTime(MemoryStore):
    """A state that cannot be reached for the first run of each night."""

    tries = 0

    @asynccontextmanager
    async def run_lock(self, pipeline: str) -> AsyncIterator[None]:
        self.tries += 1
        if self.tries % 2:
            raise StateFailed("the state is away")
        yield


async def test_failures_of_different_nights_do_not_make_the_delay_grow(autojump_clock: MockClock) -> None:
    log, recovery = EventLog(), Recovery(delay_seconds=100, factor=2)
    supervisor = Supervisor(nightly(log), FailsEveryOtherTime(), recovery=recovery, clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(80 * HOUR)
        supervisor.stop()

    late = [event.at % (24 * HOUR) - 3 * HOUR for event in log.did("open", "source")]
    assert len(late) == 4
    assert all(0 < seconds <= 100 for seconds in late), late


async def test_a_run_that_another_server_has_done_is_not_done_again(autojump_clock: MockClock) -> None:
    store, logs = MemoryStore(), (EventLog(), EventLog())
    # The clock of the second is a minute behind, as if it had waited so long for the lock.
    first = Supervisor(nightly(logs[0]), store, clock=wall())
    second = Supervisor(nightly(logs[1]), store, clock=wall(MIDNIGHT - 60))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        nursery.start_soon(second.run)
        await trio.sleep(3.5 * HOUR)
        assert {first.state.next_run, second.state.next_run} == {MIDNIGHT + 27 * HOUR}
        first.stop()
        second.stop()

    assert [len(log.did("open", "source")) for log in logs] == [1, 0]


class SharedByServers(MemoryStore):
    """A state whose lock does not wait, as that of PostgreSQL. `at_release` has what was stored when it was let go."""

    held = False

    def __init__(self) -> None:
        super().__init__()
        self.at_release: list[PipelineState] = []

    @asynccontextmanager
    async def run_lock(self, pipeline: str) -> AsyncIterator[None]:
        if self.held:
            raise RunElsewhere(pipeline, "another server")
        self.held = True
        try:
            yield
            self.at_release.append(await self.state(pipeline))
        finally:
            self.held = False


@pytest.mark.parametrize("last", [PipelineState(), PipelineState(Status.WAITING, next_run=MIDNIGHT - HOUR)])
async def test_two_servers_do_a_run_once_though_one_finds_it_locked(
    autojump_clock: MockClock, last: PipelineState
) -> None:
    store, logs = SharedByServers(), (EventLog(), EventLog())
    await store.save_state("p", last)
    servers = [
        Supervisor(nightly(log, source={"script": {2: Delay(HOUR)}}), store, recovery=Recovery(retries=1), clock=wall())
        for log in logs
    ]
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(server.run)
        await trio.sleep(0.5 * HOUR + (3 * HOUR if last.next_run is None else 0))
        during = await store.state("p")
        await trio.sleep(HOUR)
        after = {server.state.next_run for server in servers} | {(await store.state("p")).next_run}
        for server in servers:
            server.stop()

    next_run = MIDNIGHT + (27 if last.next_run is None else 3) * HOUR
    assert sorted(len(log.did("open", "source")) for log in logs) == [0, 1]
    # The server that found it locked has not written over what the other one stored.
    assert during.status is Status.RUNNING
    assert after == {next_run}
    assert {state.next_run for state in store.at_release} == {next_run}


async def test_a_run_that_is_asked_for_is_done_though_another_server_has_done_one(autojump_clock: MockClock) -> None:
    store, log = SharedByServers(), EventLog()
    supervisor = Supervisor(nightly(log), store, recovery=Recovery(), clock=wall())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(HOUR)
        # As another server stores it, whose clock is ahead.
        await store.save_state("p", PipelineState(Status.WAITING, next_run=MIDNIGHT + 27 * HOUR))
        assert supervisor.run_now()
        await trio.sleep(HOUR)
        supervisor.stop()

    assert opened_at(log) == [1]


async def test_the_clock_of_the_machine_decides_also_when_it_is_set(autojump_clock: MockClock) -> None:
    log, ahead = EventLog(), [0.0]
    clock = wall()
    supervisor = Supervisor(nightly(log), MemoryStore(), clock=lambda: clock() + ahead[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(HOUR)
        # As after a suspend, in which the clock of the event loop stood still.
        ahead[0] = 4 * HOUR
        await trio.sleep(61)
        assert len(opened_at(log)) == 1
        supervisor.stop()


async def test_a_server_resumes_what_waited_and_starts_the_next_run_when_asked(autojump_clock: MockClock) -> None:
    log, store = EventLog(), MemoryStore()
    await store.save_state("p", PipelineState(Status.COMPLETED))
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        member = await fleet.add(nightly(log, "0 0 29 2 *"))
        await fleet.boot()
        await until(lambda: member.state.status is Status.WAITING)
        fleet.start("p")
        await until(lambda: len(log.acked["source"]) == 6 and member.state.status is Status.WAITING)
        fleet.stop("p")
        await member.ended.wait()
        stopped = await store.state("p")
        await fleet.boot()

    assert (stopped.status, member.running) == (Status.STOPPED, False)
    assert stopped.next_run is not None


async def test_a_rehearsal_does_not_wait(autojump_clock: MockClock) -> None:
    outcome = await rehearse(nightly(EventLog()), {"source": [{"n": 1}]})

    assert (outcome.status, outcome.payloads("lake")) == (Status.COMPLETED, [{"n": 1}])


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("expression", "after", "times"),
    [
        # 2:30 does not exist on that day, and comes right after the change.
        ("30 2 * * *", utc(2026, 3, 28, 12), [utc(2026, 3, 29, 1, 0), utc(2026, 3, 30, 0, 30)]),
        # 2:30 comes twice, and is taken once.
        ("30 2 * * *", utc(2026, 10, 24, 12), [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]),
        # Within the repeated hour, where the first 2:30 is over.
        ("30 2 * * *", utc(2026, 10, 25, 1, 10), [utc(2026, 10, 26, 1, 30)]),
        # Every hour is every hour.
        ("0 * * * *", utc(2026, 10, 24, 23, 30), [utc(2026, 10, 25, 0), utc(2026, 10, 25, 1), utc(2026, 10, 25, 2)]),
    ],
)
def test_times_follow_the_zone_through_summer_time(expression: str, after: float, times: list[float]) -> None:
    schedule, found = Schedule(expression, "Europe/Berlin"), [after]
    for _ in times:
        found.append(schedule.next_after(found[-1]))

    assert found[1:] == times


def problems_of(*sources: Source, spark: bool = False) -> list[str]:
    lake = Destination("lake", ScriptedDestination(name="lake"))
    engine = Spark() if spark else "trio"
    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(Pipeline("p", sources=sources, destinations=[lake], engine=engine))  # type: ignore[arg-type]
    return [f"{each.path}: {each.message}" for each in raised.value.problems]


class Endless(ScriptedSource):
    """Has no end."""

    endless = True


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"schedule": "61 * * * *"}, "schedule: must be a cron expression of five fields: its minute cannot be read"),
        ({"schedule": "nightly"}, "schedule: must be a cron expression of five fields"),
        ({"schedule": "0 0 31 4,6 *"}, "schedule: must be a cron expression of five fields: its day-of-month"),
        ({"schedule": "0 3 * * *", "timezone": "Europe/Berlni"}, "timezone: must be the name of a time zone"),
        ({"schedule": "0 3 * * *", "timezone": "../../etc/passwd"}, "timezone: must be the name of a time zone"),
        ({"timezone": "Europe/Berlin"}, "timezone is that of a schedule, and there is none"),
    ],
)
def test_a_wrong_schedule_is_a_problem(settings: dict[str, str], problem: str) -> None:
    found = problems_of(Source("source", ScriptedSource(), **settings))  # type: ignore[arg-type]

    assert len(found) == 1
    assert problem in found[0]


def test_all_sources_have_one_schedule_and_an_end_and_none_is_on_spark() -> None:
    source = Source("source", ScriptedSource(name="source"), schedule="0 3 * * *")
    other = Source("other", ScriptedSource(name="other"), schedule="0 3 * * *", timezone="Europe/Berlin")
    endless = Source("endless", Endless(name="endless"), schedule="0 3 * * *")
    one_schedule = "all sources of a pipeline have one schedule, because they are opened and closed together"

    assert problems_of(source, other) == [f"sources.other.schedule: {one_schedule}"]
    assert problems_of(source, Source("plain", ScriptedSource(name="plain"))) == [
        f"sources.plain.schedule: {one_schedule}"
    ]
    assert problems_of(endless) == [
        "sources.endless.schedule: Endless waits for more at its end, so no second run would ever begin"
    ]
    assert "sources.source.schedule: a Spark is not kept, or started, for runs on a schedule" in problems_of(
        source, spark=True
    )
