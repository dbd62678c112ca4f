"""QueueOptions: what every source over a leased queue can be told."""

from typing import Literal, TypedDict

from pydantic import Field

from conduit_py.queue.lease import LeaseTerms
from conduit_py.queue.message_body import Kind
from conduit_py.sdk.options import Options


class QueueOptions(Options):
    """What every source over a leased queue can be told."""

    messages: Kind = Field(default=Kind.RECORD, description="whether a message is a record, or says where records are")
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

    messages: Literal["record", "uri", "s3"] | Kind
    group: str
    lease_seconds: float
    commit_seconds: float
    window_seconds: float
    window_messages: int
    cleanup_seconds: float
