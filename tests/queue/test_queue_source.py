"""A source over a leased queue, in pipelines on virtual time (QW-C, QW-N, QW-I)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py.backoff import Recovery
from conduit_py.batch import Batch
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Destination, Pipeline, Source
from conduit_py.queue.leased_queue import BodyKind, LeasedQueue, QueueOptions
from conduit_py.queue.message_body import ObjectRecord, end_point, point_at
from conduit_py.queue.source import QueueSource
from conduit_py.record import Record
from conduit_py.sdk import DestinationConnector as SinkConnector
from conduit_py.sdk import Options, WriteGuarantee
from conduit_py.status import Stopper
from conduit_py.store.claim import ShardChange
from conduit_py.store.memory import MemoryStore


class Shelf:
    """Objects by address: their lines are their records, every third as a whole one. An offset counts lines."""

    blocking = False

    def __init__(self, contents: Mapping[str, Sequence[str]]) -> None:
        self.contents = dict(contents)

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        if address not in self.contents:
            raise FileNotFoundError(address)
        for number, line in enumerate(self.contents[address][offset:], offset + 1):
            text = f"{address}:{line}".encode()
            yield ObjectRecord(Record.of(text) if number % 3 == 0 else text, number, size=len(text))


class ShelfOptions(QueueOptions):
    queue: Any
    shelf: Any = None


class ShelfSource(QueueSource[ShelfOptions]):
    def queue(self) -> LeasedQueue:
        queue: LeasedQueue = self.options.queue
        return queue

    def objects(self) -> Shelf:
        shelf: Shelf = self.options.shelf
        return shelf


class KeptOptions(Options):
    kept: Any
    gate: Any = None


class Kept(SinkConnector[KeptOptions]):
    """Keeps the text of each record once by its key, and can be held up."""

    guarantee = WriteGuarantee.IDEMPOTENT

    async def write(self, batch: Batch) -> None:
        if self.options.gate is not None:
            await self.options.gate.wait()
        await trio.lowlevel.checkpoint()
        for index, record in enumerate(batch):
            assert isinstance(record.payload.after, bytes)
            self.options.kept.append((batch.delivery_key(index), record.payload.after.decode()))


class Bench:
    """A queue, a store and what came out, on virtual time; several pipelines may work on them."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.store = MemoryStore()
        self.kept: list[tuple[bytes, str]] = []
        self.failures: list[object] = []

    @property
    def lines(self) -> list[str]:
        return [line for _, line in self.kept]

    def pipeline(
        self, shelf: Shelf | None = None, *, id: str = "p", gate: trio.Event | None = None, **more: Any
    ) -> Pipeline:
        options = {name: more.pop(name) for name in ("commit_seconds", "in_flight_bytes_max") if name in more}
        source = ShelfSource(
            queue=self.queue,
            shelf=shelf,
            messages=BodyKind.RECORD if shelf is None else BodyKind.URI,
            group="work",
            **options,
        )
        destination = Destination("out", Kept(kept=self.kept, gate=gate))
        return Pipeline(id, sources=[Source("q", source)], destinations=[destination], **more)

    async def run(self, pipeline: Pipeline, seconds: float) -> None:
        """Let it run for so long, then stop it."""
        supervisor = Supervisor(pipeline, self.store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(seconds)
            supervisor.force(Stopper.USER)
        self.failures.append(supervisor.state.error)

    async def rows(self) -> dict[str, tuple[bytes, bool]]:
        return {row.shard: (row.position, row.done) for row in await self.store.shards.all("work")}


def lines(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def texts(address: str, first: int, count: int) -> list[str]:
    return [f"{address}:{number}" for number in range(first, count)]


@pytest.fixture
def bench(queue: Any) -> Bench:
    return Bench(queue)


DELIVERIES: list[Any] = ["at_least_once", "exactly_once"]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("announced", [True, False])
async def test_records_in_flight_are_bounded_by_their_bytes(
    announced: bool, delivery: Any, bench: Bench, autojump_clock: MockClock
) -> None:
    """However large records are: the window counts them, and its default is 32 768."""
    bodies = [b"a"] if announced else [b"%06d" % number for number in range(100)]
    shelf = Shelf({"a": [f"{number:04d}" for number in range(100)]}) if announced else None
    for body in bodies:
        bench.queue.send(body)
    gate = trio.Event()
    pipeline = bench.pipeline(shelf, gate=gate, delivery=delivery, in_flight_bytes_max=60)
    supervisor = Supervisor(pipeline, bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(30)
        held = supervisor.progress().read
        gate.set()
        await trio.sleep(300)
        supervisor.stop(Stopper.USER)

    # Ten of 6 bytes fill it.
    assert held == 10
    assert len(bench.kept) == 100


async def test_qw_c1_an_empty_queue_gives_nothing(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.run(bench.pipeline(), 60)

    assert (bench.lines, bench.failures) == ([], [None])


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_messages_that_are_records_are_committed_and_acked_once_each(
    bench: Bench, autojump_clock: MockClock, delivery: Any
) -> None:
    for number in range(25):
        bench.queue.send(b"%d" % number)

    await bench.run(bench.pipeline(delivery=delivery), 30)

    assert bench.lines == lines(25)
    assert len(bench.queue.acked) == 25
    assert bench.queue.visible_at == {}
    assert set((await bench.rows()).values()) == {(end_point(1), True)}


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_qw_c2_every_line_of_an_announced_object_is_a_record(
    bench: Bench, autojump_clock: MockClock, delivery: Any
) -> None:
    bench.queue.send(b"a")

    await bench.run(bench.pipeline(Shelf({"a": lines(10)}), delivery=delivery), 30)

    assert bench.lines == texts("a", 0, 10)
    assert await bench.rows() == {"a": (end_point(10), True)}
    assert bench.queue.acked == ["message-1/1"]


async def test_qw_c5_an_object_that_is_announced_twice_is_read_once(bench: Bench, autojump_clock: MockClock) -> None:
    bench.queue.send(b"a")
    bench.queue.send(b"a")

    await bench.run(bench.pipeline(Shelf({"a": lines(10)})), 1000)

    assert bench.lines == texts("a", 0, 10)
    # Both at once, after the commit: a message that announces nothing else is done when that is.
    assert bench.queue.acked == ["message-1/1", "message-2/1"]
    assert bench.queue.visible_at == {}


async def test_qw_c6_what_another_has_finished_is_acked_without_work(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.store.shards.open("work", ["a"], "other")
    await advance(bench.store, "a", "other", b"", end_point(10), done=True)
    bench.queue.send(b"a")

    await bench.run(bench.pipeline(Shelf({"a": lines(10)})), 30)

    assert bench.lines == []
    assert bench.queue.acked == ["message-1/1"]


async def advance(store: MemoryStore, shard: str, token: str, start: bytes, stop: bytes, *, done: bool = False) -> None:
    assert await store.shards.advance([ShardChange("work", shard, token, start, stop, done)]) == []


async def test_qw_c7_stale_work_of_others_is_taken_over_where_it_was_and_fresh_work_is_left(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.store.shards.open("work", ["p1", "p2"], "other")
    await advance(bench.store, "p2", "other", b"", point_at(2))
    await trio.sleep(121)
    await bench.store.shards.open("work", ["p3"], "other")
    await advance(bench.store, "p3", "other", b"", point_at(6))
    for name in ("p1", "p2", "p3"):
        bench.queue.send(name.encode())

    await bench.run(bench.pipeline(Shelf(dict.fromkeys(("p1", "p2", "p3"), lines(10)))), 60)

    assert bench.lines == texts("p1", 0, 10) + texts("p2", 2, 10)
    assert await bench.rows() == {"p1": (end_point(10), True), "p2": (end_point(10), True), "p3": (point_at(6), False)}
    assert bench.queue.acked == ["message-1/1", "message-2/1"]


async def test_qw_c8_what_another_works_on_is_not_touched(bench: Bench, autojump_clock: MockClock) -> None:
    held_up, shelf = trio.Event(), Shelf({"a": lines(10)})
    bench.queue.send(b"a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run, bench.pipeline(shelf, id="one", gate=held_up), 60)
        await trio.sleep(1)
        bench.queue.send(b"a")
        await bench.run(bench.pipeline(shelf, id="two"), 20)
        assert bench.lines == []
        held_up.set()

    assert bench.lines == texts("a", 0, 10)


async def test_two_pipelines_share_the_work_of_a_queue(bench: Bench, autojump_clock: MockClock) -> None:
    shelf = Shelf({f"object-{number}": lines(3) for number in range(40)})
    for number in range(40):
        bench.queue.send(b"object-%d" % number)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run, bench.pipeline(shelf, id="one", delivery="exactly_once"), 60)
        nursery.start_soon(bench.run, bench.pipeline(shelf, id="two", delivery="exactly_once"), 60)

    assert sorted(bench.lines) == sorted(line for number in range(40) for line in texts(f"object-{number}", 0, 3))
    assert bench.queue.visible_at == {}


async def test_a_record_has_the_same_delivery_key_in_every_pipeline_that_shares_the_work(
    bench: Bench, autojump_clock: MockClock
) -> None:
    shelf = Shelf({"a": lines(3)})
    for id in ("one", "two"):
        await bench.store.shards.prune("work", age_seconds=0, count_max=0, grace_seconds=0)
        bench.queue.send(b"a")
        await bench.run(bench.pipeline(shelf, id=id), 10)
    alone = Pipeline(
        "one",
        sources=[Source("q", ShelfSource(queue=bench.queue, shelf=shelf, messages=BodyKind.URI))],
        destinations=[Destination("out", Kept(kept=bench.kept))],
    )
    bench.queue.send(b"a")
    await bench.run(alone, 10)

    first, second, third = (dict(bench.kept[at : at + 3]) for at in (0, 3, 6))
    assert first == second
    assert list(first.values()) == texts("a", 0, 3) == list(third.values())
    assert set(third).isdisjoint(first)


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_a_worker_that_died_half_way_is_taken_over_where_its_last_commit_was(
    bench: Bench, autojump_clock: MockClock, delivery: Any
) -> None:
    await bench.store.shards.open("work", ["a"], "dead")
    await advance(bench.store, "a", "dead", b"", point_at(4))
    bench.queue.send(b"a")

    await bench.run(bench.pipeline(Shelf({"a": lines(10)}), delivery=delivery), 500)

    assert bench.lines == texts("a", 4, 10)
    assert await bench.rows() == {"a": (end_point(10), True)}
    assert bench.queue.visible_at == {}


async def test_qw_n2_a_lease_that_is_lost_while_waiting_is_not_begun(bench: Bench, autojump_clock: MockClock) -> None:
    held_up = trio.Event()
    bench.queue.send(b"a")
    bench.queue.send(b"b")
    shelf = Shelf({"a": lines(2), "b": lines(2)})
    bench.queue.failing = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run, bench.pipeline(shelf, gate=held_up, delivery="exactly_once"), 900)
        await trio.sleep(200)
        bench.queue.failing = False
        held_up.set()

    assert sorted(bench.lines) == [*texts("a", 0, 2), *texts("b", 0, 2)]
    assert bench.queue.visible_at == {}


async def test_qw_n3_a_message_that_comes_again_before_its_commit_is_acked_by_its_newest_handle(
    bench: Bench, autojump_clock: MockClock
) -> None:
    held_up = trio.Event()
    key = bench.queue.send(b"a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run, bench.pipeline(Shelf({"a": lines(2)}), gate=held_up), 60)
        await trio.sleep(1)
        bench.queue.visible_at[key] = 0.0
        await trio.sleep(25)
        assert bench.queue.acked == []
        held_up.set()

    assert bench.queue.acked == ["message-1/2"]
    assert bench.lines == texts("a", 0, 2)


async def test_i14_the_commit_of_a_late_worker_is_refused_and_nothing_counts_twice(
    bench: Bench, autojump_clock: MockClock
) -> None:
    held_up = trio.Event()
    bench.queue.send(b"a")
    pipeline = bench.pipeline(Shelf({"a": lines(3)}), gate=held_up, delivery="exactly_once")
    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(pipeline, bench.store, recovery=Recovery(retries=0))
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        (taken,) = await bench.store.shards.acquire("work", ["a"], "other", 0)
        held_up.set()

    assert supervisor.state.error is not None
    assert supervisor.state.error.code == "transaction.stale_token"
    assert await bench.rows() == {"a": (taken.position, False)}
    assert bench.queue.acked == []


async def test_an_object_that_cannot_be_read_is_delivered_again_and_holds_up_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    shelf = Shelf({"b": lines(2)})
    bench.queue.send(b"missing")
    bench.queue.send(b"b")
    bench.queue.send(b"empty")
    shelf.contents["empty"] = []

    await bench.run(bench.pipeline(shelf), 60)

    assert bench.lines == texts("b", 0, 2)
    assert bench.queue.acked == ["message-3/1", "message-2/1"]
    assert list(bench.queue.visible_at) == ["message-1"]


async def test_finished_work_is_forgotten_after_its_window(bench: Bench, autojump_clock: MockClock) -> None:
    bench.queue.send(b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run, bench.pipeline(), 3600 + 130)
        await trio.sleep(3590)
        assert list(await bench.rows()) == ["message-1"]

    assert await bench.rows() == {}
