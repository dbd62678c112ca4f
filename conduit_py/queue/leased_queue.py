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
    """One delivery of a message."""

    id: str
    """The id of the message: the same at every delivery."""
    handle: str
    """Identifies this delivery to the queue, to extend or ack it."""
    body: bytes
    attempt: int = 1
    """The number of this delivery, counted from 1, if the queue counts them."""
    attributes: Mapping[str, str] = {}


class LeasedQueue(ABC):
    """A queue that delivers at least once and hides a delivered message from other receivers for a while.

    The methods may be async, or sync; sync ones run in threads. `extend` and `ack` are called while a `receive`
    waits. The source retries transient errors with back-off.
    """

    receive_max: int = 10
    """The most messages that one `receive` returns."""

    def open(self) -> Awaitable[None] | None:  # noqa: B027
        """Connect. Called once, before anything else."""

    @abstractmethod
    def receive(self, count: int, lease_seconds: float) -> Awaitable[Sequence[QueueDelivery]] | Sequence[QueueDelivery]:
        """Wait a while for messages and return at most `count`, hidden from other receivers for `lease_seconds`.

        Returns early once there are some, and an empty list if none arrive. A message that is neither acked nor
        extended in time is delivered again.
        """

    @abstractmethod
    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> Awaitable[None] | None:
        """Hide the message for `lease_seconds` from now. Raises if the lease is lost."""

    @abstractmethod
    def ack(self, deliveries: Sequence[QueueDelivery]) -> Awaitable[None] | None:
        """Remove the messages from the queue. One whose lease is lost is skipped without an error."""

    def close(self) -> Awaitable[None] | None:  # noqa: B027
        """Release everything."""


class LeaseTerms(msgspec.Struct, frozen=True):
    """How long leases are, and how early they are extended."""

    receive_seconds: float = 180.0
    """The first lease of a message: usually long enough to read and commit it."""
    extension_seconds: float = 60.0
    last_extension_seconds: float = 120.0
    """The lease after the last record is read: long enough for its commit."""
    request_seconds: float = 3.0
    """How long the queue may take to answer."""
    margin_seconds: float = 1.0
    """How much earlier than necessary to extend."""

    @property
    def longest_seconds(self) -> float:
        """The longest lease in use, for queues whose leases all have one length."""
        return max(self.receive_seconds, self.extension_seconds, self.last_extension_seconds)


class BodyKind(Enum):
    """What the body of a message is."""

    RECORD = "record"
    """The message is the record."""
    URI = "uri"
    """The body is the address of an object that contains the records."""
    S3 = "s3"
    """The body is an S3 event notification about such objects."""


class QueueOptions(Options):
    """The options of every source over a leased queue."""

    messages: BodyKind = Field(
        default=BodyKind.RECORD, description="whether a message is a record, or announces where records are"
    )
    group: str = Field(default="", max_length=128, description="sources with the same group share the work")
    lease_seconds: float = Field(default=120.0, ge=1, description="the time before a lease is extended")
    commit_seconds: float = Field(default=60.0, gt=0, description="the longest that a commit may take")
    window_seconds: float = Field(default=3600.0, gt=0, description="how long a finished message is recognised")
    window_messages: int = Field(default=100_000, ge=1, description="how many finished messages are recognised")
    cleanup_seconds: float = Field(default=60.0, gt=0, description="how often older ones are deleted")
    in_flight_bytes_max: int = Field(
        default=128 * 2**20, ge=1, description="about how many bytes of records are read before some of them are acked"
    )
    read_seconds: float = Field(default=300.0, gt=0, description="the longest that one read of an object may take")

    @property
    def announces_objects(self) -> bool:
        return self.messages is not BodyKind.RECORD

    @property
    def grace_seconds(self) -> float:
        """A shard without progress for so long may be taken over."""
        return 2 * self.commit_seconds

    @property
    def terms(self) -> LeaseTerms:
        lease = self.lease_seconds
        return LeaseTerms(
            receive_seconds=lease + self.commit_seconds,
            extension_seconds=min(60.0, lease),
            last_extension_seconds=2 * self.commit_seconds,
            # Shares of a short lease: a request of three seconds would not leave time to extend one of four.
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
    in_flight_bytes_max: int
    read_seconds: float
