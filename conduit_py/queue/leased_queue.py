"""LeasedQueue: a queue that delivers at least once and hides a message from others for a while.

A connector implements `LeasedQueue`. `QueueOptions` are the options that every source over such a queue has.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import Literal, TypedDict

import msgspec
from pydantic import Field

from conduit_py.sdk.plugin import Options


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


class LeaseTerms(msgspec.Struct, frozen=True):
    """How long leases are, and how early they are extended."""

    receive_seconds: float = 180.0
    """The first lease of a message: long enough to be read and committed in the common case."""
    extension_seconds: float = 60.0
    last_extension_seconds: float = 120.0
    """After the last record was read: long enough for its commit."""
    request_seconds: float = 3.0
    """How long the queue may take to answer."""
    margin_seconds: float = 1.0
    """How much earlier than necessary to ask."""

    @property
    def longest_seconds(self) -> float:
        """No lease is longer: for queues whose leases all have one length."""
        return max(self.receive_seconds, self.extension_seconds, self.last_extension_seconds)


class BodyKind(Enum):
    """What the bodies of messages are."""

    RECORD = "record"
    """The message is the record."""
    URI = "uri"
    """The body is the address of an object whose content is the records."""
    S3 = "s3"
    """The body is an S3 event notification about such objects."""


class QueueOptions(Options):
    """What every source over a leased queue can be told."""

    messages: BodyKind = Field(
        default=BodyKind.RECORD, description="whether a message is a record, or announces where records are"
    )
    group: str = Field(default="", max_length=128, description="those with the same group share the work of the queue")
    lease_seconds: float = Field(default=120.0, ge=1, description="how long a message is ours before it is extended")
    commit_seconds: float = Field(default=60.0, gt=0, description="the longest that a commit may take")
    window_seconds: float = Field(default=3600.0, gt=0, description="how long a finished message is known again")
    window_messages: int = Field(default=100_000, ge=1, description="how many finished messages are known again")
    cleanup_seconds: float = Field(default=60.0, gt=0, description="how often older ones are forgotten")

    @property
    def grace_seconds(self) -> float:
        """After so long without progress a piece of work may be taken over."""
        return 2 * self.commit_seconds

    @property
    def terms(self) -> LeaseTerms:
        lease = self.lease_seconds
        return LeaseTerms(
            receive_seconds=lease + self.commit_seconds,
            extension_seconds=min(60.0, lease),
            last_extension_seconds=2 * self.commit_seconds,
            request_seconds=min(3.0, lease / 4),
            margin_seconds=min(1.0, lease / 8),
        )


class QueueArguments(TypedDict, total=False):
    """QueueOptions as a caller writes them, for editors and type checkers."""

    messages: Literal["record", "uri", "s3"] | BodyKind
    group: str
    lease_seconds: float
    commit_seconds: float
    window_seconds: float
    window_messages: int
    cleanup_seconds: float
