"""A queue source by itself, call by call, on virtual time (QW-S, QW-R, QW-F3, QW-F4, QW-I2).

Where the rest of the vectors are: QW-C, QW-N2, QW-N3 and I14 in test_queue_source.py (QW-C3, QW-C4 in
test_queue_objects.py); QW-V, QW-CD in test_work_in_progress.py; QW-M, QW-PO in test_message_body.py; QW-Q in
test_sqlite_queue.py and, for every queue, in test_queue_contract.py; QW-F1, QW-F2 in test_sqlite_queue.py; QW-I1
in test_queue_workers.py; QW-O, QW-A, QW-D, QW-P, QW-N1, QW-N4 in tests/store/test_shards.py; QW-K in
tests/store/test_shard_changes.py.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from conduit_py.queue.leased_queue import BodyKind, LeasedQueue, QueueDelivery, QueueOptions
from conduit_py.queue.message_body import ObjectRecord, end_point, point_at
from conduit_py.queue.source import QueueSource
from conduit_py.record import Payload, Record
from conduit_py.sdk.source import Reading, ShardProgress, SharedShard
from conduit_py.store.claim import ShardChange
from conduit_py.store.memory import MemoryStore


class Hundreds:
    """Every object has a hundred lines, and an offset counts them."""

    blocking = False

    def __init__(self, count: int = 100) -> None:
        self._count = count

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        for number in range(offset, self._count):
            yield ObjectRecord(Record(payload=Payload(after=b"%d" % number)), number + 1)


class VectorOptions(QueueOptions):
    queue: Any
    lines: int = 100


class VectorSource(QueueSource[VectorOptions]):
    def queue(self) -> LeasedQueue:
        queue: LeasedQueue = self.options.queue
        return queue

    def objects(self) -> Hundreds:
        return Hundreds(self.options.lines)


class Counted:
    """The table of a store, and how often it was asked for what."""

    def __init__(self, store: MemoryStore) -> None:
        self._shards = store.shards
        self.opened = 0
        self.acquired: list[str] = []

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[SharedShard]:
        self.opened += 1
        return await self._shards.open(scope, names, token)

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[SharedShard]:
        rows = await self._shards.acquire(scope, names, token, idle_seconds)
        self.acquired += [row.shard for row in rows]
        return rows

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        return await self._shards.prune(
            scope, age_seconds=age_seconds, count_max=count_max, grace_seconds=grace_seconds
        )


class Rig:
    """A source with its queue and its table."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.store = MemoryStore()
        self.table = Counted(self.store)

    async def note_work(self, name: str, point: bytes, *, done: bool = False) -> None:
        """Somebody else has come this far with it."""
        await self.store.shards.open("work", [name], "other/q/1")
        assert not await self.store.shards.advance([ShardChange("work", name, "other/q/1", b"", point, done)])

    @asynccontextmanager
    async def source(self, **options: Any) -> AsyncIterator[VectorSource]:
        settings: dict[str, Any] = {"messages": BodyKind.URI, "group": "work"} | options
        source = VectorSource(queue=self.queue, **settings)
        source.join(self.table, "mine/q")
        async with trio.open_nursery() as nursery:
            await source.open(None)
            nursery.start_soon(source.background)
            yield source
            nursery.cancel_scope.cancel()
        await source.teardown()


@pytest.fixture
def rig(queue: Any) -> Rig:
    return Rig(queue)


def numbers(reading: Any) -> list[int]:
    return [int(record.payload.after) for record in reading.records]


async def read_all(source: VectorSource, seconds: float = 30) -> list[list[int]]:
    """What it reads until it has nothing more to do at the moment."""
    readings: list[list[int]] = []
    with trio.move_on_after(seconds):
        while True:
            reading = await source.read(100)
            assert isinstance(reading, Reading)
            readings.append(numbers(reading))
    return readings


async def test_qw_s1_what_is_completed_is_acked_and_what_is_missing_is_opened_in_one_step(
    rig: Rig, autojump_clock: MockClock
) -> None:
    await rig.note_work("p1", end_point(100), done=True)
    rig.queue.send(b"p1")
    rig.queue.send(b"p2")
    async with rig.source() as source:
        assert await read_all(source) == [list(range(100))]

    assert rig.queue.acked == ["message-1/1"]
    assert (rig.table.opened, rig.table.acquired) == (1, [])


async def test_qw_s2_what_another_worked_on_a_moment_ago_is_left(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.note_work("p1", point_at(99))
    rig.queue.send(b"p1")
    rig.queue.send(b"p2")
    async with rig.source() as source:
        assert await read_all(source) == [list(range(100))]
        assert source.queue_counts.taken_over == 0

    assert (rig.queue.acked, rig.table.acquired) == ([], [])


async def test_qw_s3_what_another_left_longer_ago_than_the_grace_goes_on_where_it_was(
    rig: Rig, autojump_clock: MockClock
) -> None:
    await rig.note_work("p1", point_at(98))
    await trio.sleep(100)
    rig.queue.send(b"p1")
    rig.queue.send(b"p2")
    async with rig.source(commit_seconds=5) as source:
        assert await read_all(source) == [[98, 99], list(range(100))]
        assert source.queue_counts.taken_over == 1

    assert (rig.table.opened, rig.table.acquired) == (1, ["p1"])


async def test_what_an_earlier_run_of_the_same_pipeline_began_goes_on_at_once(
    rig: Rig, autojump_clock: MockClock
) -> None:
    await rig.store.shards.open("work", ["p1"], "mine/q/1")
    await rig.store.shards.advance([ShardChange("work", "p1", "mine/q/1", b"", point_at(97))])
    rig.queue.send(b"p1")
    async with rig.source() as source:
        assert await read_all(source) == [[97, 98, 99]]
        assert source.queue_counts.taken_over == 0


async def test_qw_s4_positions_map_back_to_the_progress_of_each_piece_of_work(
    rig: Rig, autojump_clock: MockClock
) -> None:
    await rig.note_work("p1", end_point(100), done=True)
    await rig.note_work("p2", point_at(40))
    await trio.sleep(200)
    for name in (b"p1", b"p2", b"p3"):
        rig.queue.send(name)
    async with rig.source() as source:
        readings = [await source.read(30) for _ in range(3)]
        made = source.progress([record.position for reading in readings for record in reading.records])  # type: ignore[union-attr]

    token = made[0].token
    assert list(made) == [
        ShardProgress("p2", token, point_at(40), end_point(100), True),
        ShardProgress("p3", token, b"", point_at(30), False),
    ]


def event(*names: str) -> bytes:
    """What S3 says about several objects at once."""
    about = [{"bucket": {"name": "b"}, "object": {"key": name}} for name in names]
    return msgspec.json.encode({"Records": [{"eventName": "ObjectCreated:Put", "s3": each} for each in about]})


async def test_a_message_that_announces_more_than_we_have_is_not_acked_with_what_we_have(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.queue.send(event("x", "x"))
    rig.queue.send(event("x", "y"))
    async with rig.source(messages=BodyKind.S3, lines=2, commit_seconds=1) as source:
        await commit(rig, source, await source.read(100))
        assert rig.queue.acked == ["message-1/1"]
        await commit(rig, source, await source.read(100))

        assert rig.queue.acked == ["message-1/1", "message-2/2"]
        assert {row.shard: row.done for row in await rig.store.shards.all("work")} == {
            "s3://b/x": True,
            "s3://b/y": True,
        }


async def commit(rig: Rig, source: VectorSource, reading: Any) -> None:
    """Commit a reading, as a run does."""
    positions = [record.position for record in reading.records]
    made = source.progress(positions)
    changes = [ShardChange("work", each.shard, each.token, each.start, each.end, each.done) for each in made]
    assert not await rig.store.shards.advance(changes)
    await source.ack(positions)


@pytest.mark.parametrize(("lines", "sizes"), [(9, [9]), (10, [10]), (11, [10, 1]), (20, [10, 10])])
async def test_qw_f3_f4_an_object_that_just_fits_is_one_batch_and_one_line_more_makes_another(
    rig: Rig, autojump_clock: MockClock, lines: int, sizes: list[int]
) -> None:
    rig.queue.send(b"a")
    readings: list[Any] = []
    async with rig.source(lines=lines) as source:
        with trio.move_on_after(5):
            while True:
                readings.append(await source.read(10))
        last = source.progress([readings[-1].records[-1].position])

    assert [len(reading.records) for reading in readings] == sizes
    assert [(made.end, made.done) for made in last] == [(end_point(lines), True)]


async def test_qw_r1_whoever_waits_for_messages_keeps_nobody_from_extending_and_acking(
    rig: Rig, autojump_clock: MockClock
) -> None:
    # There are no slices of a receive here: it waits in a task of its own, for as long as the queue likes.
    rig.queue.send(b"a")
    async with rig.source(lines=2, commit_seconds=1000) as source, trio.open_nursery() as nursery:
        reading: Any = await source.read(10)
        nursery.start_soon(source.read, 10)
        await trio.sleep(1)
        before = trio.current_time()
        source.progress([record.position for record in reading.records])
        await source.ack([record.position for record in reading.records])

        assert (rig.queue.acked, trio.current_time()) == (["message-1/1"], before)
        assert source.queue_counts.extended == 1
        nursery.cancel_scope.cancel()


class Broken(LeasedQueue):
    """Fails when it is asked, at once or after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self, count: int, lease_seconds: float) -> Sequence[QueueDelivery]:
        await trio.sleep(self._seconds)
        raise OSError("the queue is gone")

    async def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None: ...

    async def ack(self, deliveries: Sequence[QueueDelivery]) -> None: ...

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("seconds", [0, 20])
async def test_qw_r2_an_error_of_the_queue_is_that_of_the_read_when_it_happens(
    autojump_clock: MockClock, seconds: float
) -> None:
    rig = Rig(Broken(seconds))
    async with rig.source() as source:
        before = trio.current_time()
        with pytest.raises(OSError, match="the queue is gone"):
            await source.read(10)

        assert trio.current_time() == before + seconds


async def test_qw_i2_the_table_settles_at_the_size_of_its_window(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.source(messages=BodyKind.RECORD, window_messages=5, commit_seconds=1) as source:
        for number in range(12):
            rig.queue.send(b"%d" % number)
        with trio.move_on_after(5):
            while True:
                await settle(rig, source, await source.read(100))
        assert len(await rig.store.shards.all("work")) == 12
        await trio.sleep(130)

        assert [row.shard for row in await rig.store.shards.all("work")] == sorted(
            f"message-{number}" for number in range(8, 13)
        )


async def settle(rig: Rig, source: VectorSource, records: Any) -> None:
    """Commit what was read, as a run does, at a time of its own for each."""
    for record in records:
        await trio.sleep(0.01)
        [made] = source.progress([record.position])
        change = ShardChange("work", made.shard, made.token, made.start, made.end, made.done)
        assert not await rig.store.shards.advance([change])
        await source.ack([record.position])
