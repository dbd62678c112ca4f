"""Going back in an exactly-once pipeline: what it keeps of the past, and what it takes to change a position."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from conduit_connectors import memory
from exactly_once_scenario import Numbers
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Record, Source, State, TransactionLimits, processor, sdk
from conduit_py.errors import PipelineBusy, PositionBound
from conduit_py.exactly_once.participants import TransactionCheckpoint
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.store.claim import Changes
from conduit_py.store.memory import MemoryStore
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)


@processor(state=True)
def counted(record: Record, state: State) -> Record:
    state.put("count", state.get("count", 0) + 1)
    return record


def made(*destinations: sdk.DestinationConnector[Any], **more: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=[{"n": n} for n in range(5)]))],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(destinations)],
        delivery="exactly_once",
        **more,
    )


@asynccontextmanager
async def fleet_with(pipeline: Pipeline, store: MemoryStore) -> AsyncIterator[Fleet]:
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        await fleet.add(pipeline)
        yield fleet


async def wait_until_completed(fleet: Fleet) -> None:
    fleet.start("p")
    await fleet["p"].ended.wait()
    assert fleet["p"].state.error is None


async def count_of(store: MemoryStore) -> int:
    state = State()
    found = dict(await store.look(lambda tables: tables.scan("p", b"")))
    state.load({"count": found.get(b"counted\0count", b"\0")}, (await store.claim("p")).seen)
    return int(state.get("count"))


class TestWithoutState:
    async def test_a_source_is_set_back_to_where_it_was(self, autojump_clock: MockClock) -> None:
        store, staged, keyed, began = MemoryStore(), FakeStorage(), FakeStorage(), time.time()
        async with fleet_with(
            made(FakeStagedDestination(storage=staged), FakeKeyedDestination(storage=keyed)), store
        ) as fleet:
            await wait_until_completed(fleet)
            history = await fleet.position_history("p", "s")
            point = await fleet.replay("p", "s", history.points[0].at)
            await wait_until_completed(fleet)

        assert [(each.position, each.start) for each in history.points] == [(None, True), (b"memory:1:4", False)]
        assert began <= history.points[0].at
        assert point.position is None
        # Those who know records by their keys know them again.
        assert staged.visible == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
        assert sorted(keyed.by_key.values()) == [0, 1, 2, 3, 4]

    async def test_the_home_keeps_the_trail_for_a_store_that_did_not_get_to_it(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        async with fleet_with(made(FakeTransactionalDestination(storage=home)), store) as fleet:
            await wait_until_completed(fleet)
            history = await store.position_history("p", "s")
        assert home.changes is not None

        assert Changes.decode(home.changes).histories == {"s": history.encode()}


class TestWithState:
    async def test_a_position_is_bound_to_the_state(self, autojump_clock: MockClock) -> None:
        store, storage = MemoryStore(), FakeStorage()
        async with fleet_with(made(FakeStagedDestination(storage=storage), processors=[counted]), store) as fleet:
            await fleet.set_position("p", "s", b"memory:1:0")
            await wait_until_completed(fleet)
            with pytest.raises(PositionBound, match="counted of pipeline 'p' keeps state") as refused:
                await fleet.set_position("p", "s", b"memory:1:1")
            with pytest.raises(PositionBound):
                await fleet.set_position("p", "s", None)
            with pytest.raises(PositionBound):
                await fleet.replay("p", "s", time.time())
            positions = await fleet.positions("p")

        assert "positions reset p --all" in str(refused.value.suggestion)
        assert "--keep-state" in str(refused.value.suggestion)
        assert positions == {"s": b"memory:1:4"}
        assert storage.visible == [1, 2, 3, 4]
        assert await count_of(store) == 4

    async def test_it_may_be_left_as_it_is_if_that_is_said(self, autojump_clock: MockClock) -> None:
        store, storage = MemoryStore(), FakeStorage()
        async with fleet_with(made(FakeStagedDestination(storage=storage), processors=[counted]), store) as fleet:
            await wait_until_completed(fleet)
            await fleet.set_position("p", "s", b"memory:1:2", keep_state=True)
            await wait_until_completed(fleet)
            began = (await fleet.position_history("p", "s")).points[0].at
            await fleet.replay("p", "s", began, keep_state=True)
            await wait_until_completed(fleet)

        assert storage.visible == [0, 1, 2, 3, 4, 3, 4, 0, 1, 2, 3, 4]
        assert await count_of(store) == 12

    @pytest.mark.parametrize("kind", [FakeStagedDestination, FakeTransactionalDestination])
    async def test_to_start_over_is_to_count_anew(
        self, autojump_clock: MockClock, kind: type[FakeStagedDestination]
    ) -> None:
        store, storage = MemoryStore(), FakeStorage()
        async with fleet_with(made(kind(storage=storage), processors=[counted]), store) as fleet:
            await wait_until_completed(fleet)
            await fleet.start_over("p")
            before = await fleet.positions("p")
            await wait_until_completed(fleet)

        assert before == {}
        assert storage.visible == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
        assert await count_of(store) == 5

    async def test_only_while_stopped(self, autojump_clock: MockClock) -> None:
        store = MemoryStore()
        async with fleet_with(made(FakeStagedDestination(storage=FakeStorage()), processors=[counted]), store) as fleet:
            fleet.start("p")
            with pytest.raises(PipelineBusy):
                await fleet.start_over("p")


class TestAfterACrashOfTheStoreBehindItsHome:
    """The home has committed a transaction that the store does not have yet when somebody sets a position."""

    async def crash(self, store: MemoryStore, home: FakeStorage) -> None:
        claim = await store.claim("p")
        await claim.commit(Changes(1, TransactionCheckpoint("d0").encode(), positions={"s": b"memory:1:1"}))
        home.visible = [0, 1, 2, 3]
        ahead = TransactionCheckpoint("d0", before={"s": b"memory:1:1"})
        puts: dict[bytes, bytes | None] = {b"counted\0count": b"\x04"}
        home.changes = Changes(2, ahead.encode(), puts, positions={"s": b"memory:1:3"}).encode()

    async def test_without_that_it_goes_on_after_its_home(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        await self.crash(store, home)
        async with fleet_with(made(FakeTransactionalDestination(storage=home)), store) as fleet:
            await wait_until_completed(fleet)

        assert home.visible == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(("position", "again"), [(b"memory:1:2", [3, 4]), (None, [0, 1, 2, 3, 4])])
    async def test_what_was_set_stays_set(
        self, autojump_clock: MockClock, position: bytes | None, again: list[int]
    ) -> None:
        store, home = MemoryStore(), FakeStorage()
        await self.crash(store, home)
        async with fleet_with(made(FakeTransactionalDestination(storage=home)), store) as fleet:
            await fleet.set_position("p", "s", position)
            await wait_until_completed(fleet)

        assert home.visible == [0, 1, 2, 3, *again]

    async def test_a_source_that_was_exchanged_is_where_it_begins(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        async with fleet_with(made(FakeTransactionalDestination(storage=home)), store) as fleet:
            await wait_until_completed(fleet)
            first = TransactionCheckpoint.decode("p", Changes.decode(home.changes or b"").checkpoint).before
            other = Numbers(first=7, count=2, acked=lambda name, numbers: None, name="s")
            await fleet.replace(
                Pipeline(
                    "p",
                    sources=[Source("s", other)],
                    destinations=[Destination("d0", FakeTransactionalDestination(storage=home))],
                    delivery="exactly_once",
                    transaction=TransactionLimits(min_seconds=1, max_seconds=1),
                )
            )
            await wait_until_completed(fleet)
            second = TransactionCheckpoint.decode("p", Changes.decode(home.changes or b"").checkpoint).before

        # With the position of the old one, a crash would be taken for a position that was set by hand.
        assert first == second == {"s": None}
        assert home.visible == [0, 1, 2, 3, 4, 7, 8]

    async def test_to_start_over_brings_nothing_of_it_back(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        await self.crash(store, home)
        async with fleet_with(made(FakeTransactionalDestination(storage=home), processors=[counted]), store) as fleet:
            await fleet.start_over("p")
            await wait_until_completed(fleet)

        assert home.visible == [0, 1, 2, 3, 0, 1, 2, 3, 4]
        assert await count_of(store) == 5
