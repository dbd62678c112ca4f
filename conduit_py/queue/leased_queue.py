"""LeasedQueue: a queue that delivers at least once and keeps a message from others for a while."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence

import msgspec


class QueueDelivery(msgspec.Struct, frozen=True):
    """A message as it was delivered, this time."""

    id: str
    """The message's own: the same every time it is delivered."""
    handle: str
    """What this delivery is extended and acked by."""
    body: bytes
    attempt: int = 1
    """The how many-eth delivery this is, as far as the queue knows."""
    attributes: Mapping[str, str] = {}


class LeasedQueue(ABC):
    """Three methods make any queue usable that delivers at least once with exclusive visibility.

    They may be sync, then they run in threads, or async. `extend` and `ack` are called while a `receive`
    waits. What they raise is retried by the source, with back-off, where that can help.
    """

    receive_max: int = 10
    """The most messages that one `receive` gives."""

    def open(self) -> Awaitable[None] | None:  # noqa: B027
        """Connect. Called once, before anything else."""

    @abstractmethod
    def receive(self, count: int, lease_seconds: float) -> Awaitable[Sequence[QueueDelivery]] | Sequence[QueueDelivery]:
        """Wait a while for messages and give at most `count`, each of which nobody else gets for `lease_seconds`.

        Returns early with what there is; nothing when there is nothing. A message that is neither acked
        nor extended is delivered again.
        """

    @abstractmethod
    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> Awaitable[None] | None:
        """Keep the message for so long from now on. Raises when it is not ours any more."""

    @abstractmethod
    def ack(self, deliveries: Sequence[QueueDelivery]) -> Awaitable[None] | None:
        """Have the messages never delivered again. One that is not ours any more is left out silently."""

    def close(self) -> Awaitable[None] | None:  # noqa: B027
        """Let go of everything."""
