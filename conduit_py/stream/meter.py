"""Meter: what a node has done and what it waits for; the numbers behind progress, metrics and the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Literal, TypeAlias

import msgspec

from conduit_py.sdk.source import Lag
from conduit_py.sdk.tally import Tally
from conduit_py.stream.histogram import DURATION_BOUNDS, SIZE_BOUNDS, Histogram, Stopwatch, empty

NodeKind: TypeAlias = Literal["source", "processor", "destination", "dead_letters"]

COUNTERS = ("records", "batches", "filtered", "refused", "acked", "retries")
HISTOGRAMS = ("batch_sizes", "calls", "settling", "persists", "checkpoints")


class Meter(msgspec.Struct):
    """Plain counters, touched once per batch, and what the node's tasks wait for."""

    node: str
    kind: NodeKind
    records: int = 0
    """Read (source), processed (processor), accepted (destination), stored (dead_letters)."""
    batches: int = 0
    filtered: int = 0
    refused: int = 0
    acked: int = 0
    """Positions acked to the source, dead letters included."""
    retries: int = 0
    in_flight: int = 0
    window: int = 0
    queued: int = 0
    """Batches that wait in the channel before the node."""
    oldest_seconds: float = 0.0
    """How long ago the oldest record was read that is not settled; 0 if all are."""
    stalled_seconds: float = 0.0
    """For how long there have been records to settle and none has been; 0 if all are settled."""
    lag: Lag | None = None
    """What a source has still to read, as it last said itself."""
    tally: Tally | None = None
    """What a source over a shared queue counts by itself."""
    settled_at: float = float("-inf")
    waits: list[str] = []
    batch_sizes: Histogram = msgspec.field(default_factory=empty(SIZE_BOUNDS))
    calls: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """How long one call took: of a processor for a batch, of `write`, of the dead-letter handler."""
    settling: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """How long each record took from when it was read until it was acked to the source."""
    persists: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """How long it took to make something durable: to save a position (source), to flush (destination)."""
    checkpoints: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """How long a source's commits took: to save its position and to tell it."""

    def plus(self, earlier: "Meter | None") -> "Meter":
        """A new meter with the counts of both; gauges are those of this one."""
        total = copy(self)
        total.waits = list(self.waits)
        total.tally = self.tally and self.tally.plus(earlier.tally if earlier else None)
        for name in COUNTERS:
            setattr(total, name, getattr(self, name) + (getattr(earlier, name) if earlier else 0))
        for name in HISTOGRAMS:
            setattr(total, name, getattr(self, name).plus(getattr(earlier, name) if earlier else None))
        return total

    def rest(self) -> None:
        """The run has ended: what it left unsettled is no longer on its way, and will be read again."""
        self.in_flight = self.queued = 0
        self.oldest_seconds = self.stalled_seconds = 0.0
        self.lag = None
        if self.tally is not None:
            self.tally.held = 0

    @property
    def waiting_on(self) -> str | None:
        """What blocks the node at this moment: of several tasks of one node, the last that began to wait."""
        return self.waits[-1] if self.waits else None

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Say what a task of the node waits for while the block runs."""
        self.waits.append(reason)
        try:
            yield
        finally:
            self.waits.remove(reason)

    def timing(self, histogram: Histogram) -> Stopwatch:
        """Observe how long the block takes, also when it fails."""
        return Stopwatch(histogram)


class Progress(msgspec.Struct, frozen=True):
    """One look at a running pipeline: totals over its nodes, and the nodes themselves."""

    pipeline: str
    status: str
    elapsed_seconds: float
    read: int
    acked: int
    filtered: int
    dead_letters: int
    in_flight: int
    blocked_on: str | None
    nodes: list[Meter]
    recoveries: int = 0
    """How often it was started again after an error."""

    @property
    def stalled_seconds(self) -> float:
        """The age of its progress: for how long some source has had records to settle and settled none."""
        return max((meter.stalled_seconds for meter in self.nodes), default=0.0)
