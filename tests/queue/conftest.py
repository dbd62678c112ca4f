"""A queue in memory that redelivers as a real one does, on trio's clock."""

from collections.abc import Sequence

import pytest
import trio

from conduit_py.queue.leased_queue import LeasedQueue, QueueDelivery


class MemoryQueue(LeasedQueue):
    """Messages that are neither acked nor extended come again when their lease is over."""

    receive_max = 10

    def __init__(self) -> None:
        self.visible_at: dict[str, float] = {}
        self.bodies: dict[str, bytes] = {}
        self.attempts: dict[str, int] = {}
        self.handles: dict[str, str] = {}
        self.acked: list[str] = []
        self.extensions: list[tuple[str, float]] = []
        self.failing = False
        self._sent = trio.Event()
        self._count = 0

    def send(self, body: bytes, id: str | None = None) -> str:
        """Add a message; one with an id that is there is a duplicate of it, as a queue may make them."""
        self._count += 1
        key = f"message-{self._count}"
        self.bodies[key], self.visible_at[key], self.attempts[key] = body, 0.0, 0
        self.handles[key] = id or key
        self._sent.set()
        self._sent = trio.Event()
        return key

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self, count: int, lease_seconds: float) -> Sequence[QueueDelivery]:
        with trio.move_on_after(20):
            while not (keys := self._visible()[:count]):
                due = min(self.visible_at.values(), default=float("inf"))
                with trio.move_on_at(due):
                    await self._sent.wait()
        keys = self._visible()[:count]
        for key in keys:
            self.visible_at[key] = trio.current_time() + lease_seconds
            self.attempts[key] += 1
        return [
            QueueDelivery(self.handles[key], f"{key}/{self.attempts[key]}", self.bodies[key], self.attempts[key])
            for key in keys
        ]

    async def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        key = self._current(delivery)
        if self.failing or key is None:
            raise OSError("not yours any more")
        self.extensions.append((key, trio.current_time()))
        self.visible_at[key] = trio.current_time() + lease_seconds

    async def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        await trio.lowlevel.checkpoint()
        for delivery in deliveries:
            key = self._current(delivery)
            if key is not None:
                self.acked.append(delivery.handle)
                del self.visible_at[key]

    def _visible(self) -> list[str]:
        return [key for key, at in self.visible_at.items() if at <= trio.current_time()]

    def _current(self, delivery: QueueDelivery) -> str | None:
        """The message, if this is still its last delivery and its lease is not over."""
        key, _, attempt = delivery.handle.rpartition("/")
        ours = key in self.visible_at and self.attempts[key] == int(attempt)
        return key if ours and self.visible_at[key] > trio.current_time() else None


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()
