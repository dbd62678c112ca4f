"""`atomic=True`: no reader of a destination sees half of a source's group, whatever its size and whatever ends it."""

from itertools import accumulate
from typing import Any, ClassVar

import pytest
import trio
from change_source import ChangeSource
from conduit_connectors import memory
from deferring_pipelines import by_tens
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, TransactionLimits, processor
from conduit_py.backoff import Recovery
from conduit_py.errors import PipelineInvalid, RecordRefused
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import EndOfSource, Options, Reading, SourceConnector
from conduit_py.sdk.state import State
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import simulate
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage, FakeTransactionalDestination


class World:
    """An atomic source in front of a destination that carries the commit and one that stages."""

    def __init__(self, *sizes: int, ends: Any = "flag", pause_seconds: float = 0.0) -> None:
        self.sizes, self.ends, self.pause_seconds = list(sizes), ends, pause_seconds
        self.home, self.staged = FakeStorage(), FakeStorage()
        self.store = MemoryStore()
        self.acked: list[bytes] = []

    def pipeline(
        self, *, window: int = 100, batch_size: int = 8, limits: TransactionLimits | None = None, **more: Any
    ) -> Pipeline:
        source = ChangeSource(
            sizes=self.sizes, ends=self.ends, pause_seconds=self.pause_seconds, acked=self.acked.extend
        )
        breaks = more.pop("breaks", set())
        return Pipeline(
            "p",
            sources=[Source("s", source, atomic=True, window=window, batch_size=batch_size), *more.pop("sources", [])],
            destinations=[
                Destination("home", FakeTransactionalDestination(storage=self.home, breaks=breaks)),
                Destination("staged", FakeStagedDestination(storage=self.staged)),
            ],
            delivery="exactly_once",
            transaction=limits,
            **more,
        )

    async def run(self, **more: Any) -> PipelineState:
        return await Supervisor(self.pipeline(**more), self.store).run()

    async def run_for(self, seconds: float, **more: Any) -> None:
        supervisor = Supervisor(self.pipeline(**more), self.store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(seconds)
            supervisor.stop()

    def assert_whole_groups(self) -> None:
        ends = {0, *accumulate(self.sizes)}
        for storage in (self.home, self.staged):
            assert set(storage.history) <= ends, "half of a group was visible"
            assert storage.visible == list(range(len(storage.visible)))

    def assert_complete(self) -> None:
        self.assert_whole_groups()
        assert self.home.visible == self.staged.visible == list(range(sum(self.sizes)))


SMALL = TransactionLimits(max_records=2, max_seconds=0.5, min_seconds=0.001)


@pytest.mark.parametrize("ends", ["flag", "marker"])
async def test_a_group_is_committed_whole_even_if_it_exceeds_window_and_limits(
    ends: str, autojump_clock: MockClock
) -> None:
    world = World(50, 3, 1, 0, 30, ends=ends, pause_seconds=0.1)

    state = await world.run(window=4, batch_size=3, limits=SMALL)

    assert state.status is Status.COMPLETED
    world.assert_complete()


async def test_small_groups_are_committed_one_by_one_if_they_come_slowly(autojump_clock: MockClock) -> None:
    world = World(2, 2, 2, pause_seconds=5)

    await world.run(limits=SMALL)

    assert world.home.history == [2, 4, 6]


async def test_a_source_that_is_never_between_groups_for_long_still_commits(autojump_clock: MockClock) -> None:
    world = World(*[3] * 50)

    await world.run(batch_size=2, limits=SMALL)

    world.assert_complete()
    # Two groups at most: the first fills the transaction, so the next one does not enter.
    assert len(world.home.history) >= 25


async def test_the_last_positions_of_a_group_are_acked(autojump_clock: MockClock) -> None:
    world = World(5, 3, ends="marker")

    await world.run(batch_size=2)

    assert world.acked[-1] == b"2:0"
    assert world.acked == sorted(world.acked)


@pytest.mark.parametrize("ends", ["flag", "marker"])
async def test_a_stop_at_any_time_drops_the_unfinished_group_and_it_is_read_again(
    ends: str, autojump_clock: MockClock
) -> None:
    for seconds in range(1, 14):
        world = World(4, 1, 5, 2, ends=ends, pause_seconds=1)
        await world.run_for(seconds + 0.5, batch_size=2, limits=SMALL)
        world.assert_whole_groups()
        assert (await world.run(batch_size=2)).status is Status.COMPLETED
        world.assert_complete()


async def test_a_stop_does_not_wait_for_a_source_that_waits_for_the_rest_of_a_group(autojump_clock: MockClock) -> None:
    world, other = World(9, pause_seconds=5), ChangeSource(sizes=[1] * 50, first=1000, pause_seconds=0.5)
    supervisor = Supervisor(world.pipeline(batch_size=2, limits=SMALL, sources=[Source("other", other)]), world.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(12)
        began = trio.current_time()
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert trio.current_time() - began < 1
    assert [number for number in world.home.visible if number < 1000] == []


async def test_a_stop_inside_a_group_ends_a_processor_that_defers_records_of_another_source(
    autojump_clock: MockClock,
) -> None:
    world = World(100, pause_seconds=0.5)
    tens = ChangeSource(sizes=[1] * 35, first=1000, pause_seconds=0.2)
    supervisor = Supervisor(world.pipeline(sources=[Source("t", tens, processors=[by_tens])]), world.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(3)
        supervisor.stop()
        # A processor that defers the same records again and again would never let the clock advance.
        for _ in range(10_000):
            await trio.lowlevel.checkpoint()
        stopped = supervisor.state.status
        nursery.cancel_scope.cancel()

    assert stopped is Status.STOPPED
    state = await world.run(sources=[Source("t", tens, processors=[by_tens])])
    assert state.status is Status.COMPLETED
    assert sorted(world.home.visible) == [*range(100), *range(1000, 1035)]


async def test_another_source_is_committed_together_with_the_group(autojump_clock: MockClock) -> None:
    world = World(6, 6, pause_seconds=1)
    other = Source("other", ChangeSource(sizes=[1] * 20, first=1000, pause_seconds=0.25))

    state = await world.run(batch_size=2, limits=SMALL, sources=[other])

    assert state.status is Status.COMPLETED
    counts = [sum(n < 1000 for n in world.home.visible[:stop]) for stop in world.home.history]
    assert set(counts) <= {0, 6, 12}
    assert sorted(world.home.visible) == [*range(12), *range(1000, 1020)]


async def test_two_atomic_sources_are_both_whole(autojump_clock: MockClock) -> None:
    world = World(5, 2, 5, pause_seconds=0.3)
    other = Source("other", ChangeSource(sizes=[3, 4, 3], first=1000, pause_seconds=0.2), atomic=True)

    assert (await world.run(batch_size=2, limits=SMALL, sources=[other])).status is Status.COMPLETED

    for stop in world.home.history:
        assert sum(n < 1000 for n in world.home.visible[:stop]) in {0, 5, 7, 12}
        assert sum(n >= 1000 for n in world.home.visible[:stop]) in {0, 3, 7, 10}


async def test_a_poison_record_ends_with_its_group_alone_and_names_it(autojump_clock: MockClock) -> None:
    world = World(3, 3, 5, 3)

    state = await world.run(breaks={8}, recovery=Recovery(retries=0))

    assert state.status is Status.DEGRADED
    # Everything before the group of the poison record is committed, and nothing of that group.
    assert world.home.visible == [0, 1, 2, 3, 4, 5]
    world.assert_whole_groups()


async def test_a_refused_record_becomes_a_letter_and_the_rest_of_its_group_is_committed(
    autojump_clock: MockClock,
) -> None:
    @processor
    def refuse_four(record: Record) -> Record:
        if record.payload["n"] == 4:
            raise RecordRefused("not four")
        return record

    world = World(3, 4)

    state = await world.run(batch_size=2, processors=[refuse_four], dead_letters=DeadLetters.drop())

    assert state.status is Status.COMPLETED
    assert world.home.visible == [0, 1, 2, 3, 5, 6]
    assert set(world.home.history) <= {3, 6}


async def test_filtered_records_do_not_end_a_group(autojump_clock: MockClock) -> None:
    @processor
    def odd(record: Record) -> Record | None:
        return record if record.payload["n"] % 2 else None

    world = World(40, 4, pause_seconds=0.1)

    await world.run(window=5, batch_size=2, limits=SMALL, processors=[odd])

    assert world.home.visible == list(range(1, 44, 2))
    assert set(world.home.history) <= {20, 22}


class Torn(SourceConnector[Options]):
    """Ends inside of a group."""

    has_groups: ClassVar[bool] = True

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._read = False

    async def read(self, n: int) -> Reading:
        await trio.lowlevel.checkpoint()
        if self._read:
            raise EndOfSource
        self._read = True
        return Reading([Record.of({"n": 1}, position=b"1")], continues=True)


async def test_a_source_that_ends_inside_a_group_is_stopped_and_nothing_is_committed(
    autojump_clock: MockClock,
) -> None:
    storage = FakeStorage()
    torn = Pipeline(
        "p",
        sources=[Source("s", Torn(), atomic=True)],
        destinations=[Destination("d", FakeStagedDestination(storage=storage))],
        delivery="exactly_once",
    )

    state = await Supervisor(torn, MemoryStore()).run()

    assert state.error is not None
    assert state.error.message == (
        "s: read() raised EndOfSource inside a group: the reading before it has continues=True"
    )
    assert storage.visible == []


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    ends=st.sampled_from(["flag", "marker"]),
    window=st.integers(1, 12),
    batch_size=st.integers(1, 6),
    limit=st.integers(1, 8),
    stops=st.lists(st.floats(0.01, 4.0), max_size=4),
    seed=st.integers(0, 1000),
)
def test_no_torn_group_whatever_the_sizes_limits_and_stops(
    sizes: list[int], ends: str, window: int, batch_size: int, limit: int, stops: list[float], seed: int
) -> None:
    world = World(*sizes, ends=ends, pause_seconds=0.3)
    limits = TransactionLimits(max_records=limit, max_seconds=0.2, min_seconds=0.001)

    async def play() -> None:
        for seconds in stops:
            await world.run_for(seconds, window=window, batch_size=batch_size, limits=limits)
            world.assert_whole_groups()
        assert (await world.run(window=window, batch_size=batch_size, limits=limits)).status is Status.COMPLETED

    simulate(play, seed=seed)

    world.assert_complete()


def problems_of(source: Source, **more: Any) -> list[tuple[str, str, str | None]]:
    pipeline = Pipeline(
        "p",
        sources=[source],
        destinations=[Destination("d", FakeStagedDestination(storage=FakeStorage()))],
        **{"delivery": "exactly_once"} | more,
    )
    try:
        compile_pipeline(pipeline)
    except PipelineInvalid as error:
        return [(problem.path, problem.message, problem.suggestion) for problem in error.problems]
    return []


class TestCheck:
    """`check` reports an `atomic` that could not be kept."""

    def test_at_least_once_has_no_transactions(self) -> None:
        atomic = Source("s", ChangeSource(sizes=[1]), atomic=True)

        assert problems_of(atomic, delivery="at_least_once") == [
            (
                "sources.s.atomic",
                "only an exactly-once pipeline commits the records of a group together",
                'use delivery="exactly_once", or remove it',
            )
        ]

    def test_a_source_without_groups(self) -> None:
        [(path, message, suggestion)] = problems_of(Source("s", memory.Source(records=[]), atomic=True))

        assert path == "sources.s.atomic"
        assert message.endswith("does not tell which records belong together")
        assert suggestion == "remove it"

    def test_a_processor_that_defers(self) -> None:
        @processor(state=True, defers=True)
        def later(record: Record, state: State) -> Record:
            return record

        [(path, message, _)] = problems_of(Source("s", ChangeSource(sizes=[1]), atomic=True), processors=[later])

        assert path == "processors.later"
        assert message == "defers, but s is atomic: a deferred record would divide its group"

    def test_spark(self) -> None:
        problems = problems_of(Source("s", ChangeSource(sizes=[1]), atomic=True), engine="spark")

        assert ("sources.s.atomic", "tasks of Spark divide the records of a group") in [each[:2] for each in problems]

    def test_something_that_is_no_truth_value(self) -> None:
        assert problems_of(Source("s", ChangeSource(sizes=[1]), atomic="perhaps"))  # type: ignore[arg-type]

    def test_a_right_one(self) -> None:
        assert problems_of(Source("s", ChangeSource(sizes=[1]), atomic=True)) == []
