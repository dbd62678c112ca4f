"""WorkInProgress: the messages that this worker holds, the lease of each, and the work that each announces."""

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import TypeAlias

import trio

from conduit_py.queue.leased_queue import LeaseTerms, QueueDelivery

log = logging.getLogger("conduit_py.queue")
Extend: TypeAlias = Callable[[float], Awaitable[None]]
"""Extends a lease at the queue by so many seconds from now."""


class Lease:
    """The lease of one message. `keep` extends it until it is released or its last extension is made.

    A lost lease is not an error: another worker may now have the same message, and the token in the commit decides
    whose work counts. To continue would only waste work.
    """

    def __init__(self, extend: Extend, deadline: float, terms: LeaseTerms) -> None:
        self.deadline = deadline
        """By trio's clock, and never later than the queue's own deadline."""
        self.lost = False
        self.extensions = 0
        self._extend = extend
        self._terms = terms
        self._finishing = False
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    def finish(self) -> None:
        """Called when everything is read: extend it once more, for the commit."""
        self._finishing = True
        self._changed.set()

    def release(self) -> None:
        """Stop extending it."""
        self._scope.cancel()

    async def keep(self) -> None:
        """Extend it before each deadline, until it is finished, released or lost."""
        with self._scope:
            while not self._finishing and not self.lost:
                with trio.move_on_at(self._due_at):
                    await self._changed.wait()
                if not self._finishing:
                    await self._ask(self._terms.extension_seconds)
            # Only if it lasts longer than the present lease: an extension also shortens a longer one.
            if not self.lost and trio.current_time() + self._terms.last_extension_seconds > self.deadline:
                await self._ask(self._terms.last_extension_seconds)

    @property
    def _due_at(self) -> float:
        return self.deadline - self._terms.request_seconds - self._terms.margin_seconds

    async def _ask(self, seconds: float) -> None:
        asked_at = trio.current_time()
        if asked_at >= self.deadline:
            self.lost = True
            return
        try:
            with trio.fail_at(min(asked_at + self._terms.request_seconds, self.deadline)):
                await self._extend(seconds)
        except Exception as error:  # plugin boundary: after any error another worker may have the message
            log.warning("a lease is lost: %s", error)
            self.lost = True
            return
        # Counted from before the request: from after it, a slow answer would put our deadline behind the queue's.
        self.deadline = asked_at + seconds
        self.extensions += 1


class WorkState(Enum):
    """The state of a work item. Only a completed item may be acked."""

    READY = "ready"
    READING = "reading"
    AWAITING = "awaiting commit"
    GIVEN_UP = "given up"
    """Not read any further. It is not begun again before its records in flight are settled."""


class HeldMessage:
    """A message that this worker holds: its lease and the names of its work.

    `deliveries` has what is acked with it, by message id: its own newest delivery, and deliveries of other messages
    that announce only the same work.
    """

    def __init__(
        self,
        delivery: QueueDelivery,
        extend: Callable[[QueueDelivery, float], Awaitable[None]],
        deadline: float,
        terms: LeaseTerms,
        partitions: Iterable[str],
    ) -> None:
        self._id = delivery.id
        self._extend = extend
        self.deliveries = {delivery.id: delivery}
        self.lease = Lease(self._extend_newest, deadline, terms)
        self.names = frozenset(partitions)
        self.incomplete = set(self.names)
        self.unread = set(self.names)

    @property
    def delivery(self) -> QueueDelivery:
        """Its own newest delivery."""
        return self.deliveries[self._id]

    async def _extend_newest(self, seconds: float) -> None:
        await self._extend(self.delivery, seconds)


class WorkItem:
    """One piece of work, its message, and how far it is read and committed."""

    __slots__ = ("committed", "held", "partition", "read", "stage")

    def __init__(self, partition: str, held: HeldMessage, position: bytes) -> None:
        self.partition = partition
        self.held = held
        self.stage = WorkState.READY
        self.committed = position
        self.read = position


class WorkInProgress:
    """Work items by name. At most one is being read; any number may wait for their commit.

    The names of the latest `completed_max` completed items are kept. A message that is delivered again can be acked
    without a call of the store.
    """

    def __init__(self, completed_max: int = 100_000) -> None:
        self._items: dict[str, WorkItem] = {}
        self._ready: deque[WorkItem] = deque()
        self._reading: WorkItem | None = None
        self._completed: OrderedDict[str, None] = OrderedDict()
        self._completed_max = completed_max

    def __len__(self) -> int:
        return len(self._items)

    def tracked(self, partition: str) -> WorkItem | None:
        return self._items.get(partition)

    def is_completed(self, partition: str) -> bool:
        return partition in self._completed

    @property
    def reading(self) -> WorkItem | None:
        return self._reading

    def add(self, item: WorkItem) -> None:
        assert item.partition not in self._items, f"{item.partition} is tracked already"
        self._items[item.partition] = item
        self._ready.append(item)

    def take(self, count: int) -> list[WorkItem]:
        """Return at most `count` items that are ready. Items whose lease was lost meanwhile are dropped."""
        taken: list[WorkItem] = []
        while self._ready and len(taken) < count:
            item = self._ready.popleft()
            # Another worker may have its message by now, and the commit of ours would fail.
            if item.held.lease.lost:
                self.forget(item)
            else:
                taken.append(item)
        return taken

    def begin(self, item: WorkItem) -> None:
        assert self._reading is None, "at most one piece of work is being read"
        item.stage = WorkState.READING
        self._reading = item

    def await_commit(self, item: WorkItem) -> None:
        """Mark an item as read to its end. After the last item of a message its lease is extended only once more."""
        self._leave(item, WorkState.AWAITING)
        item.held.unread.discard(item.partition)
        if not item.held.unread:
            item.held.lease.finish()

    def give_up(self, item: WorkItem) -> None:
        """Stop reading an item. It is dropped once none of its records is in flight."""
        self._leave(item, WorkState.GIVEN_UP)
        item.held.lease.release()
        # Kept while records are in flight: begun again now, they would be read and delivered a second time.
        if item.committed == item.read:
            self.forget(item)

    def settle(self, item: WorkItem, point: bytes) -> None:
        """Record that an item is committed up to `point`."""
        item.committed = point
        if item.stage is WorkState.GIVEN_UP and point == item.read:
            self.forget(item)

    def complete(self, item: WorkItem) -> list[QueueDelivery]:
        """Mark an item as committed to its end. Return the deliveries to ack if its whole message is."""
        self.forget(item)
        self.note_completed(item.partition)
        item.held.incomplete.discard(item.partition)
        if item.held.incomplete:
            return []
        item.held.lease.release()
        return list(item.held.deliveries.values())

    def note_completed(self, partition: str) -> None:
        self._completed[partition] = None
        # A name that is seen again is the newest: a message that is still repeated must not be forgotten first.
        self._completed.move_to_end(partition)
        if len(self._completed) > self._completed_max:
            self._completed.popitem(last=False)

    def forget(self, item: WorkItem) -> None:
        if self._reading is item:
            self._reading = None
        self._items.pop(item.partition, None)

    def note_redelivery(self, partitions: Sequence[str], delivery: QueueDelivery) -> bool:
        """Return True if a held message has work announced here. If it has all of it, both are acked together."""
        found = [self._items[partition].held for partition in partitions if partition in self._items]
        for held in found:
            # Only if nothing else is announced: acked with this work, the rest of the message would be lost.
            if all(partition in held.names or self.is_completed(partition) for partition in partitions):
                held.deliveries[delivery.id] = delivery
        return bool(found)

    def _leave(self, item: WorkItem, stage: WorkState) -> None:
        item.stage = stage
        if self._reading is item:
            self._reading = None


class Cooldown:
    """Remembers when a key may be used again. Expired keys make room for new ones; without any it grows."""

    def __init__(self, size_max: int = 1024) -> None:
        self._size_max = size_max
        self._until: OrderedDict[str, float] = OrderedDict()

    def ready(self, key: str, now: float, seconds: float) -> bool:
        """Return True if the key may be used now. It then may not be used again for `seconds`."""
        if self._until.get(key, now) > now:
            return False
        self._until.pop(key, None)
        if len(self._until) >= self._size_max:
            self._make_room(now)
        self._until[key] = now + seconds
        return True

    def __len__(self) -> int:
        return len(self._until)

    def _make_room(self, now: float) -> None:
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
        # It grows, because a dropped key could be used before its time.
        if len(self._until) >= self._size_max:
            self._size_max *= 2


class ByteWindow:
    """Counts the bytes of records that were read and are not acked. Records are acked in the order of reading."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._sizes: deque[int] = deque()
        self._total = 0
        self._acked = trio.Event()

    async def wait_for_room(self) -> int:
        """Wait until there is room; return how many bytes. With nothing in flight there is always room for one."""
        while self._total >= self._size_max:
            self._acked = trio.Event()
            await self._acked.wait()
        return self._size_max - self._total

    def admit(self, sizes: Sequence[int]) -> None:
        """Count records that were read."""
        self._sizes += sizes
        self._total += sum(sizes)

    def release(self, count: int) -> None:
        """Count the oldest records as acked."""
        for _ in range(min(count, len(self._sizes))):
            self._total -= self._sizes.popleft()
        self._acked.set()


class Received:
    """The messages of one receive: new ones, repeats of held work, and finished ones."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fresh: list[tuple[QueueDelivery, tuple[str, ...]]] = []
        self.again: list[tuple[QueueDelivery, tuple[str, ...]]] = []
        self.done: list[QueueDelivery] = []
