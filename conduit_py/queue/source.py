"""QueueSource: the source that all connectors of leased queues share. A connector adds only its queue."""

import inspect
import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import trio

from conduit_py.errors import FatalError, describe
from conduit_py.payloads import Columns, Payloads
from conduit_py.queue.leased_queue import BodyKind, LeasedQueue, QueueDelivery, QueueOptions
from conduit_py.queue.message_body import (
    Announcement,
    Discard,
    LookAhead,
    ObjectOpener,
    ObjectRecord,
    ObjectThread,
    as_reading,
    decode_position,
    encode_position,
    end_point,
    is_end_point,
    offset_of,
    parse_body,
    point_at,
)
from conduit_py.queue.work_in_progress import (
    ByteWindow,
    Cooldown,
    HeldMessage,
    Lease,
    Received,
    WorkInProgress,
    WorkItem,
)
from conduit_py.sdk.plugin import OptionsT
from conduit_py.sdk.source import (
    KeptOrder,
    QueueCounts,
    Reading,
    Records,
    ShardProgress,
    ShardTable,
    SharedShard,
    SharedSource,
)

log = logging.getLogger("conduit_py.queue")

T = TypeVar("T")

_PAUSE_SECONDS = 0.1
"""The pause after a receive without new work: a queue that returns at once must not be polled in a busy loop."""


class QueueSource(SharedSource[OptionsT]):
    """Receives messages from a queue that delivers at least once, and commits the content of each once.

    Every shard of work has a row in the state store, with the token of its worker and its progress. In an
    exactly-once pipeline the progress commits with the data: a message that is delivered again, to this process or
    another, continues at the last commit, and a finished one is only acked. Work stops when its lease is lost; if
    it continues all the same, the token makes its commit fail. Other pipelines deliver at least once. Records of
    one shard stay in order.
    """

    endless = True
    queue_counts: QueueCounts
    _queue: LeasedQueue

    @abstractmethod
    def queue(self) -> LeasedQueue:
        """The queue, not opened."""

    def objects(self) -> ObjectOpener:
        """Return what opens the announced objects."""
        raise NotImplementedError(f"{type(self).__qualname__} cannot read objects: its messages are the records")

    @property
    def order(self) -> KeptOrder:
        # Shards are worked on side by side; a message that is a record is a shard of its own.
        return KeptOrder.NOTHING if self.settings.messages is BodyKind.RECORD else KeptOrder.OBJECT

    @property
    def gives(self) -> Any:
        # Objects may be of several formats.
        return bytes if self.settings.messages is BodyKind.RECORD else Any

    @property
    def settings(self) -> QueueOptions:
        options = self.options
        assert isinstance(options, QueueOptions)
        return options

    @property
    def scope(self) -> str:
        return self.settings.group or self._name

    def join(self, shards: ShardTable, name: str) -> None:
        self._shards = shards
        self._name = name
        self.queue_counts = QueueCounts()

    def check_position(self, position: bytes) -> None:
        raise FatalError("a queue has no position that can be set: it delivers what is not acked")

    async def open(self, position: bytes | None) -> None:
        # The position is ignored: each shard has its own in the table, and another worker may have moved it since.
        # New at every start: a commit of an earlier run that is still ending must not pass as one of this run.
        self._token = f"{self._name}/{uuid.uuid4().hex}"
        self._work = WorkInProgress(self.settings.window_messages)
        self._content: LookAhead | None = None
        self._in_flight = ByteWindow(self.settings.in_flight_bytes_max)
        if self.settings.announces_objects:
            self._objects = self.objects()
            self._thread = ObjectThread(self.settings.read_seconds)
        # Without a buffer: a lease that waited in it would not be extended.
        self._leases, self._kept = trio.open_memory_channel[Lease](0)
        self._cleaned = Cooldown()
        self._queue = self.queue()
        await self._call(self._queue.open)

    async def read(self, n: int) -> Records | Reading:
        # The window of a source counts records, and strangers decide how large these are.
        room = await self._in_flight.wait_for_room()
        while True:
            if self._work.reading is not None:
                reading = await self._read_on(self._work.reading, n, room)
                if reading.records:
                    return reading
            elif items := self._work.take(n if self.settings.messages is BodyKind.RECORD else 1):
                if self.settings.messages is BodyKind.RECORD:
                    return self._read_whole(items)
                await self._begin(items[0])
            else:
                await self._poll(n)

    def progress(self, positions: Sequence[bytes]) -> Sequence[ShardProgress]:
        reached: dict[str, bytes] = {}
        for partition, point in map(decode_position, positions):
            reached[partition] = point
        made: list[ShardProgress] = []
        for partition, point in reached.items():
            item = self._work.tracked(partition)
            assert item is not None, f"{partition} is committed and was not read"
            made.append(ShardProgress(partition, self._token, item.committed, point, is_end_point(point)))
            item.committed = point
        return made

    async def ack(self, positions: Sequence[bytes]) -> None:
        self._in_flight.release(len(positions))
        finished: list[QueueDelivery] = []
        for partition, point in map(decode_position, positions):
            item = self._work.tracked(partition)
            if item is None:
                continue
            self._work.settle(item, point)
            if is_end_point(point):
                finished += self._work.complete(item)
        await self._ack(finished)

    async def background(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clean_up)
            async for lease in self._kept:
                nursery.start_soon(self._keep, lease)

    async def teardown(self) -> None:
        await self._leases.aclose()
        if self._content is not None:
            await self._apart(self._content.close)
        await self._call(self._queue.close)

    async def _keep(self, lease: Lease) -> None:
        self.queue_counts.held += 1
        try:
            await lease.keep()
        finally:
            self.queue_counts.held -= 1
            self.queue_counts.lost += lease.lost

    async def _clean_up(self) -> None:
        settings = self.settings
        while True:
            await trio.sleep(settings.cleanup_seconds)
            if self._cleaned.ready(self.scope, trio.current_time(), settings.cleanup_seconds):
                await self._shards.prune(
                    self.scope,
                    age_seconds=settings.window_seconds,
                    count_max=settings.window_messages,
                    grace_seconds=settings.grace_seconds,
                )

    async def _poll(self, count: int) -> None:
        """Receive messages and decide what to do with each."""
        asked_at = trio.current_time()
        terms = self.settings.terms
        receive = partial(self._queue.receive, min(count, self._queue.receive_max), terms.receive_seconds)
        deliveries: Sequence[QueueDelivery] = await self._call(receive)
        received = Received()
        for delivery in deliveries:
            parsed = parse_body(delivery, self.settings.messages)
            if isinstance(parsed, Discard):
                received.done.append(delivery)
            elif isinstance(parsed, Announcement):
                self._sort(delivery, parsed.partitions, received)
            else:
                # Not acked: the queue counts its deliveries, and moves it to its own dead-letter queue.
                self.queue_counts.unreadable += 1
                log.error("message %s cannot be used: %s", delivery.id, parsed.reason)
        if received.fresh:
            await self._track(received, asked_at + terms.receive_seconds)
        # After the new ones are tracked: a second message about the same work may be in the same batch.
        for delivery, partitions in received.again:
            self._work.note_redelivery(partitions, delivery)
        await self._ack(received.done)
        if not received.fresh:
            await trio.sleep(_PAUSE_SECONDS)

    def _sort(self, delivery: QueueDelivery, partitions: tuple[str, ...], received: Received) -> None:
        """Sort a message: finished ones are acked, ones whose work is held are kept for later, others are new."""
        if all(self._work.is_completed(partition) for partition in partitions):
            self.queue_counts.duplicates += 1
            received.done.append(delivery)
        elif received.names.intersection(partitions) or any(map(self._work.tracked, partitions)):
            # Not acked yet: if this worker fails, another must receive the message again.
            self.queue_counts.duplicates += 1
            received.again.append((delivery, partitions))
        else:
            received.names.update(partitions)
            received.fresh.append((delivery, partitions))

    async def _track(self, received: Received, deadline: float) -> None:
        """Prepare the work of new messages. A message whose work is all done is only acked."""
        rows = {row.shard: row for row in await self._shards.open(self.scope, list(received.names), self._token)}
        rows |= {row.shard: row for row in await self._take_over(rows.values())}
        for delivery, names in received.fresh:
            open_names = [name for name in names if not rows[name].done]
            for name in set(names) - set(open_names):
                self._work.note_completed(name)
            ours = [name for name in open_names if rows[name].token == self._token]
            if not open_names:
                self.queue_counts.duplicates += 1
                received.done.append(delivery)
            elif ours:
                # With all open names, not only ours: the message may be acked only after other workers finish theirs.
                held = HeldMessage(delivery, self._extend, deadline, self.settings.terms, open_names)
                for name in ours:
                    self._work.add(WorkItem(name, held, rows[name].position))
                await self._leases.send(held.lease)

    async def _take_over(self, rows: Iterable[SharedShard]) -> list[SharedShard]:
        """Acquire shards of an earlier run of this source at once, and those of other workers if abandoned."""
        foreign = [row for row in rows if row.token != self._token and not row.done]
        earlier = [row.shard for row in foreign if row.token.startswith(f"{self._name}/")]
        left = [row.shard for row in foreign if row.shard not in earlier]
        taken: list[SharedShard] = []
        # Without a grace period: only one run of a source exists at a time, so the earlier one has ended.
        if earlier:
            taken += await self._shards.acquire(self.scope, earlier, self._token, 0.0)
        if left:
            acquired = await self._shards.acquire(self.scope, left, self._token, self.settings.grace_seconds)
            self.queue_counts.taken_over += len(acquired)
            taken += acquired
        return taken

    async def _extend(self, delivery: QueueDelivery, seconds: float) -> None:
        await self._call(self._queue.extend, delivery, seconds)
        self.queue_counts.extended += 1

    async def _begin(self, item: WorkItem) -> None:
        """Open an object at its last commit. If that fails, its message is delivered again later."""
        opener = partial(self._objects.open, item.partition, offset_of(item.committed))
        try:
            self._content = await self._apart(lambda: LookAhead(opener()))
        except Exception as error:  # plugin boundary: the object is the user's
            self.queue_counts.failed += 1
            log.error("%s cannot be opened: %s", item.partition, describe(error))
            self._work.give_up(item)
            return
        self._work.begin(item)

    async def _read_on(self, item: WorkItem, n: int, room: int) -> Reading:
        content = self._content
        assert content is not None
        parts: list[ObjectRecord] = []
        last = False
        if not item.held.lease.lost:
            try:
                parts, last = await self._apart(partial(content.take, n, room))
            except Exception as error:  # plugin boundary: the object is the user's
                self.queue_counts.failed += 1
                log.error("%s cannot be read on: %s", item.partition, describe(error))
        if parts:
            item.read = end_point(parts[-1].offset) if last else point_at(parts[-1].offset)
        if last or not parts:
            await self._close(item, finished=last)
        self._in_flight.admit([part.size for part in parts])
        positions = [encode_position(item.partition, point_at(part.offset)) for part in parts]
        positions[-1:] = [encode_position(item.partition, item.read)] if parts else []
        return as_reading(parts, positions)

    async def _close(self, item: WorkItem, *, finished: bool) -> None:
        content, self._content = self._content, None
        if content is not None:
            await self._apart(content.close)
        if not finished:
            self._work.give_up(item)
        elif item.read == item.committed:
            # No record follows the last commit, so no later commit could complete the item.
            await self._ack(self._work.complete(item))
        else:
            self._work.await_commit(item)

    def _read_whole(self, items: Sequence[WorkItem]) -> Payloads:
        """Return the messages themselves as records."""
        deliveries = [item.held.delivery for item in items]
        for item in items:
            item.read = end_point(1)
            self._work.await_commit(item)
        self._in_flight.admit([len(delivery.body) for delivery in deliveries])
        columns = Columns(
            keys=[delivery.id.encode() for delivery in deliveries],
            metadata=[dict(delivery.attributes) for delivery in deliveries],
        )
        positions = [encode_position(item.partition, item.read) for item in items]
        return Payloads([delivery.body for delivery in deliveries], positions, bytes, columns)

    async def _ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        if deliveries:
            await self._call(self._queue.ack, deliveries)

    async def _apart(self, work: Callable[[], T]) -> T:
        """Call a method of an object, in a thread if it may block."""
        if self._objects.blocking:
            return await self._thread.run(work)
        await trio.lowlevel.checkpoint()
        return work()

    async def _call(self, method: Callable[..., Any], *args: object) -> Any:
        """Call a method of the queue, a sync one in a thread."""
        target = method.func if isinstance(method, partial) else method
        if inspect.iscoroutinefunction(target):
            return await method(*args)
        # Abandoned on cancel: a `receive` may wait for minutes, and what it receives then is delivered again.
        return await trio.to_thread.run_sync(method, *args, abandon_on_cancel=True)
