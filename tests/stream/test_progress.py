"""Progress without a record: stored and acked in the order of the records, seldom, and in every guarantee."""

from typing import Any

import pytest
import trio
from change_source import ChangeSource
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, DestinationConnector, EndOfSource, Options, Reading, SourceConnector
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage

DELIVERIES = ["at_least_once", "at_most_once", "exactly_once"]


class CountingStore(MemoryStore):
    """Notes when positions of `s` are stored, and which."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[float, bytes]] = []

    def _note(self, positions: Any) -> None:
        if "s" in positions:
            self.kept.append((trio.current_time(), positions["s"]))

    async def save_positions(self, pipeline: str, positions: Any, histories: Any = {}) -> None:  # noqa: B006
        self._note(positions)
        await super().save_positions(pipeline, positions, histories)

    async def claim(self, pipeline: str) -> Any:
        claim = await super().claim(pipeline)
        commit = claim.commit

        async def note_changes(changes: Any) -> None:
            self._note(changes.positions)
            await commit(changes)

        claim.commit = note_changes  # type: ignore[method-assign]
        return claim


class Played(SourceConnector[Options]):
    """Plays readings and pauses, a number of seconds each, then ends or waits."""

    def of(self, *played: Any, endless: bool = False) -> "Played":
        self.played, self.never_ends = list(played), endless
        self.acks: list[list[bytes]] = []
        self.opened: list[bytes | None] = []
        return self

    def fresh(self) -> "Played":
        return self

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self.opened.append(position)

    async def read(self, n: int) -> Reading:
        await trio.lowlevel.checkpoint()
        if self.played and isinstance(self.played[0], int | float):
            await trio.sleep(self.played.pop(0))
        if self.played:
            reading: Reading = self.played.pop(0)
            return reading
        if self.never_ends:
            await trio.sleep_forever()
        raise EndOfSource

    async def ack(self, positions: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.acks.append(list(positions))


class Sink(DestinationConnector[Options]):
    """Takes `seconds` for each write."""

    def taking(self, seconds: float) -> "Sink":
        self.seconds = seconds
        return self

    def fresh(self) -> "Sink":
        return self

    async def write(self, batch: Batch) -> None:
        await trio.sleep(self.seconds)


def at(position: str, *numbers: int) -> Reading:
    return Reading([record(number) for number in numbers], position=position.encode())


def record(number: int) -> Record:
    return Record.of({"n": number}, position=b"r%d" % number)


def pipeline(source: SourceConnector[Any], delivery: Any, sink: DestinationConnector[Any] | None = None) -> Pipeline:
    staged = FakeStagedDestination(storage=FakeStorage())
    return Pipeline(
        "p",
        sources=[Source("s", source, batch_size=4)],
        destinations=[Destination("d", sink or staged)],
        delivery=delivery,
        dead_letters=DeadLetters.drop(),
    )


async def run(source: SourceConnector[Any], delivery: Any, sink: Any = None) -> CountingStore:
    store = CountingStore()
    state = await Supervisor(pipeline(source, delivery, sink), store).run()
    assert state.status is Status.COMPLETED, state
    return store


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_progress_is_the_last_position_that_is_stored_and_acked(delivery: str, autojump_clock: MockClock) -> None:
    source = Played().of(at("p1", 1, 2))

    store = await run(source, delivery)

    assert await store.positions("p") == {"s": b"p1"}
    assert [position for ack in source.acks for position in ack] == [b"r1", b"r2", b"p1"]


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_an_idle_source_is_stored_and_acked_about_once_a_second(delivery: str, autojump_clock: MockClock) -> None:
    keepalives = [part for number in range(100) for part in (0.1, at(f"k{number}"))]
    source = Played().of(*keepalives)

    store = await run(source, delivery)

    gaps = [later - earlier for (earlier, _), (later, _) in zip(store.kept, store.kept[1:-1], strict=False)]
    assert 9 <= len(store.kept) <= 13
    assert min(gaps) >= 0.99
    assert store.kept[-1][1] == b"k99"
    assert [[position] for _, position in store.kept] == source.acks


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_progress_of_an_idle_source_becomes_durable_without_a_further_read(
    delivery: str, autojump_clock: MockClock
) -> None:
    source, store = Played().of(at("k1"), at("k2"), endless=True), CountingStore()
    supervisor = Supervisor(pipeline(source, delivery), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(3)
        stored = await store.positions("p")
        acks = list(source.acks)
        supervisor.stop()

    assert stored == {"s": b"k2"}
    assert acks[-1] == [b"k2"]


async def test_invariant_2_progress_waits_for_the_records_before_it(autojump_clock: MockClock) -> None:
    source, sink = Played().of(at("p1", 1), 0.5, at("p2"), 0.5, at("p3")), Sink().taking(30)

    store = await run(source, "at_least_once", sink)

    assert [(time > 29, position) for time, position in store.kept] == [(True, b"p3")]
    assert source.acks == [[b"r1", b"p3"]]


async def test_at_most_once_never_sets_a_position_back_to_earlier_progress(autojump_clock: MockClock) -> None:
    source, sink = Played().of(Reading([record(1)]), 0.1, at("p1"), 0.1, Reading([record(2)]), 20), Sink().taking(5)

    store = await run(source, "at_most_once", sink)

    positions = [position for _, position in store.kept]
    assert positions == sorted(positions, key=[b"r1", b"p1", b"r2"].index)
    assert positions[-1] == b"r2"


class SyncPlayed(Played):
    """As Played, with a sync `read`, which the dispatcher calls."""

    def read(self, n: int) -> Reading:  # type: ignore[override]
        if not self.played:
            raise EndOfSource
        reading: Reading = self.played.pop(0)
        return reading


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_progress_of_a_sync_source_follows_its_records(delivery: str, autojump_clock: MockClock) -> None:
    source = SyncPlayed()
    source.of(at("p1", 1, 2), at("p2"), at("p3"), at("p4", 3), at("p5"))

    store = await run(source, delivery)

    assert await store.positions("p") == {"s": b"p5"}
    acked = [position for ack in source.acks for position in ack]
    order = [b"r1", b"r2", b"p1", b"p2", b"p3", b"r3", b"p4", b"p5"]
    assert acked == sorted(set(acked), key=order.index)
    assert {b"r1", b"r2", b"r3", b"p5"} <= set(acked)


async def test_a_restart_opens_the_source_at_its_progress(autojump_clock: MockClock) -> None:
    source, store = Played().of(at("p1", 1)), CountingStore()
    await Supervisor(pipeline(source, "exactly_once"), store).run()
    await Supervisor(pipeline(source, "exactly_once"), store).run()

    assert source.opened == [None, b"p1"]


async def test_progress_is_not_counted_as_a_record(autojump_clock: MockClock) -> None:
    source, store = Played().of(at("p1", 1), 3, at("p2")), CountingStore()
    supervisor = Supervisor(pipeline(source, "at_least_once", Sink().taking(0)), store)
    await supervisor.run()

    progress = supervisor.progress()
    assert (progress.read, progress.acked, progress.in_flight) == (1, 1, 0)


async def test_the_same_progress_again_is_no_progress(autojump_clock: MockClock) -> None:
    class Same(Played):
        reads = 0

        async def read(self, n: int) -> Reading:
            await trio.lowlevel.checkpoint()
            self.reads += 1
            return at("k")

    source = Same()
    source.of()
    store = CountingStore()
    supervisor = Supervisor(pipeline(source, "exactly_once"), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(10)
        supervisor.stop()

    assert len(store.kept) == 1
    # It is read with the back-off of a source that has nothing: not in a loop that never waits.
    assert source.reads < 40


@pytest.mark.parametrize(
    ("reading", "rule"),
    [
        (Reading([], position=b""), "read() returned the position b'': it must be bytes, and not empty"),
        (Reading([], position="p"), "read() returned the position 'p': it must be bytes, and not empty"),  # type: ignore[arg-type]
        (Reading([]), "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource"),
    ],
)
async def test_wrong_progress_is_a_broken_contract(reading: Reading, rule: str, autojump_clock: MockClock) -> None:
    state = await Supervisor(pipeline(Played().of(reading), "at_least_once", Sink().taking(0)), MemoryStore()).run()

    assert state.error is not None
    assert state.error.message == f"s: {rule}"


async def test_a_record_at_the_position_of_progress_is_a_broken_contract(autojump_clock: MockClock) -> None:
    source = Played().of(at("r1"), 1, Reading([record(1)]))
    state = await Supervisor(pipeline(source, "at_least_once", Sink().taking(0)), MemoryStore()).run()

    assert state.error is not None
    assert state.error.message == "s: read() returned a position twice"


async def test_every_restart_of_a_source_with_markers_continues_after_its_progress(autojump_clock: MockClock) -> None:
    sizes = [2, 0, 3, 1, 0]
    for stop_after in range(1, 12):
        storage, store = FakeStorage(), MemoryStore()
        for _ in range(20):
            source = ChangeSource(sizes=sizes, ends="marker", pause_seconds=1)
            supervisor = Supervisor(pipeline(source, "exactly_once", FakeStagedDestination(storage=storage)), store)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.run)
                await trio.sleep(stop_after + 0.5)
                supervisor.stop()
        assert storage.visible == list(range(6))
