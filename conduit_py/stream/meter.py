"""Meter: the counters and current waits of a node, the source of progress, metrics and the web page."""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from copy import copy
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import trio

from conduit_py.errors import describe
from conduit_py.record import DriftCount as DriftCount
from conduit_py.sdk.source import Lag, QueueCounts
from conduit_py.stream.plugin_calls import PluginCaller

DURATION_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""In seconds."""
SIZE_BOUNDS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""In records."""


class Histogram(msgspec.Struct):
    """Counts each value at the first bound that is not below it; the last count is for values above every bound."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` as `count` observations, such as the records of a batch, which share one duration."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def plus(self, other: "Histogram | None") -> "Histogram":
        """Return a new histogram with the values of both."""
        if other is None:
            return Histogram(self.bounds, self.counts.copy(), self.total)
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        return sum(self.counts)


def empty(bounds: tuple[float, ...]) -> Callable[[], Histogram]:
    """Return a factory of empty histograms with these bounds."""
    return lambda: Histogram(bounds, [0] * (len(bounds) + 1))


NodeKind: TypeAlias = Literal["source", "processor", "destination", "dead_letters"]


class WaitReason(StrEnum):
    """What a task of a node waits for. The values are metric labels and part of the API."""

    SOURCE = "source"
    """The next records of the source."""
    WINDOW = "window"
    """Room in the window: records that were read are not settled yet."""
    CHANNEL = "channel"
    """Room in the channel to the next node."""
    PROCESSOR = "processor"
    BACK_OFF = "back-off"
    """The next attempt."""
    WRITE = "write"
    FLUSH = "flush"
    ANSWERS = "answers"
    COMMIT = "commit"
    """The transaction before this one."""
    STORE = "store"
    SOURCE_ACK = "source ack"
    DEAD_LETTERS = "dead letters"


WAIT_REASONS: dict[NodeKind, tuple[WaitReason, ...]] = {
    "source": (
        WaitReason.SOURCE, WaitReason.WINDOW, WaitReason.CHANNEL, WaitReason.STORE, WaitReason.SOURCE_ACK,
    ),
    "processor": (WaitReason.PROCESSOR, WaitReason.BACK_OFF, WaitReason.CHANNEL),
    "destination": (
        WaitReason.WRITE, WaitReason.FLUSH, WaitReason.BACK_OFF, WaitReason.ANSWERS, WaitReason.COMMIT,
    ),
    "dead_letters": (WaitReason.DEAD_LETTERS,),
}  # fmt: skip
"""The reasons that a node of each kind may have."""


class Wait(NamedTuple):
    """The current wait of one task, with an optional detail for people, such as the last error."""

    reason: WaitReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} after: {self.detail}" if self.detail else str(self.reason)


COUNTERS = ("records", "batches", "filtered", "refused", "acked", "retries")
HISTOGRAMS = ("batch_sizes", "calls", "settling", "persists", "checkpoints")


class StateGauge(NamedTuple):
    """How much a processor remembers, and up to when, by the time of its records, it has everything."""

    keys: int
    bytes: int
    watermark: float | None
    cached: int = 0
    """How many of the keys are in memory."""
    reads: int = 0
    """How many keys were read from the store, because they were not in memory."""


class Meter(msgspec.Struct):
    """Counters that are updated once per batch, gauges, and the current waits of the node's tasks."""

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
    unwanted: int = 0
    """Records of a source that the conditions of all destinations refused. Not counted on Spark."""
    in_flight: int = 0
    window: int = 0
    queued: int = 0
    """Batches waiting in the channel before the node."""
    oldest_seconds: float = 0.0
    """Time since the oldest unsettled record was read; 0 if all are settled."""
    stalled_seconds: float = 0.0
    """Time since the last record was settled while others are open; 0 if all are settled."""
    lag: Lag | None = None
    """What a source has still to read, as `lag` last returned it."""
    state: StateGauge | None = None
    """The state of a processor that keeps one."""
    queue_counts: QueueCounts | None = None
    """The counts of a source that reads a shared queue."""
    drift_counts: list[DriftCount] = []
    """What the plugins of the node count themselves: values and records that do not fit their schema."""
    causes: dict[str, int] = {}
    """How many dead letters have each cause, by node and error without what differs between records."""
    cause_locations: dict[str, str] = {}
    """For each cause in user code, the file, line and function that raised it last."""
    settled_at: float = float("-inf")
    waits: list[Wait] = []
    batch_sizes: Histogram = msgspec.field(default_factory=empty(SIZE_BOUNDS))
    calls: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """Duration of one call: of a processor for a batch, of `write`, of the dead-letter handler."""
    settling: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """Time from the read of each record to its ack to the source."""
    persists: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """Time to make progress durable: to save a position (source), to flush (destination)."""
    checkpoints: Histogram = msgspec.field(default_factory=empty(DURATION_BOUNDS))
    """Duration of a source's commits: to save its position and to ack."""

    def count_batch(self, records: int) -> None:
        """Count a batch that the node has read, processed or accepted."""
        self.records += records
        self.batches += 1
        sizes = self.batch_sizes
        # As `observe` does, without another call: this runs for every batch in every node.
        sizes.counts[bisect_left(sizes.bounds, records)] += 1
        sizes.total += records

    def plus(self, earlier: "Meter | None") -> "Meter":
        """Return a new meter with the counts of both and the gauges of this one."""
        total = copy(self)
        # A copy: tasks change the list while others read it.
        total.waits = list(self.waits)
        total.drift_counts = [DriftCount(self.drifted + (earlier.drifted if earlier else 0))]
        total.queue_counts = self.queue_counts and self.queue_counts.plus(earlier.queue_counts if earlier else None)
        total.causes = dict(Counter(self.causes) + Counter(earlier.causes if earlier else {}))
        # Not one of COUNTERS, which executors of Spark send: there a condition is asked where not all others are.
        total.unwanted = self.unwanted + (earlier.unwanted if earlier else 0)
        total.cause_locations = (earlier.cause_locations if earlier else {}) | self.cause_locations
        for name in COUNTERS:
            setattr(total, name, getattr(self, name) + (getattr(earlier, name) if earlier else 0))
        for name in HISTOGRAMS:
            setattr(total, name, getattr(self, name).plus(getattr(earlier, name) if earlier else None))
        return total

    @property
    def drifted(self) -> int:
        return sum(each.count for each in self.drift_counts)

    def rest(self) -> None:
        """Reset the gauges after a run: its unsettled records are no longer in flight and will be read again."""
        self.in_flight = self.queued = 0
        self.oldest_seconds = self.stalled_seconds = 0.0
        self.lag = None
        if self.queue_counts is not None:
            self.queue_counts.held = 0

    @property
    def waiting_on(self) -> str | None:
        """What blocks the node now; with several waiting tasks, the wait that began last."""
        return str(self.waits[-1]) if self.waits else None

    def waiting(self, reason: WaitReason | None, detail: str = "", *, timing: Histogram | None = None) -> "_Block":
        """Show this wait of a task while the block runs; with `timing`, observe its duration too, also if it fails.

        Without a reason the block shows no wait.
        """
        return _Block(self.waits, None if reason is None else Wait(reason, detail), timing)


class _Block(msgspec.Struct, eq=False):
    """Shows a wait and observes a duration, or one of them, while a block runs.

    A generator would cost more than all other metering: this runs several times for every batch.
    """

    waits: list[Wait]
    wait: Wait | None
    histogram: Histogram | None
    started_at: float = 0.0

    def __enter__(self) -> None:
        # Invariant 7: what blocks is visible. Progress and metrics read this list.
        if self.wait is not None:
            self.waits.append(self.wait)
        if self.histogram is not None:
            self.started_at = trio.current_time()

    def __exit__(self, *error: object) -> None:
        # Also after an error or a cancellation, or a node that no longer waits would show a wait for ever.
        if self.wait is not None:
            self.waits.remove(self.wait)
        if self.histogram is not None:
            self.histogram.observe(trio.current_time() - self.started_at)


class Progress(msgspec.Struct, frozen=True):
    """A snapshot of a running pipeline: totals over its nodes, and the nodes themselves."""

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
    """How many times it was restarted after an error."""

    @classmethod
    def over(
        cls,
        meters: list[Meter],
        pipeline: str,
        status: str,
        elapsed_seconds: float,
        waits_for: str | None,
        recoveries: int,
    ) -> "Progress":
        """Return the totals over the nodes of a pipeline."""
        sources = [meter for meter in meters if meter.kind == "source"]
        return cls(
            pipeline=pipeline,
            status=status,
            elapsed_seconds=elapsed_seconds,
            read=sum(meter.records for meter in sources),
            acked=sum(meter.acked for meter in sources),
            filtered=sum(meter.filtered for meter in meters if meter.kind == "processor"),
            dead_letters=sum(meter.records for meter in meters if meter.kind == "dead_letters"),
            in_flight=sum(meter.in_flight for meter in sources),
            blocked_on=waits_for,
            nodes=meters,
            recoveries=recoveries,
        )

    @property
    def unwanted(self) -> int:
        """Records that no destination wanted."""
        return sum(meter.unwanted for meter in self.nodes)

    @property
    def stalled_seconds(self) -> float:
        """The longest time that a source has had open records and settled none."""
        return max((meter.stalled_seconds for meter in self.nodes), default=0.0)


log = logging.getLogger("conduit_py")

LAG_SECONDS = 5.0


class LagWatch:
    """Updates the lag of one source in its meter. No task waits for it, and no error of `lag` ends a run.

    A sync `lag` runs in its own thread. If it never returns, only the lag goes stale.
    """

    def __init__(self, node: str, calls: PluginCaller, meter: Meter) -> None:
        self._node = node
        self._calls = calls
        self._meter = meter
        self._warned = False

    async def run(self) -> None:
        if self._calls.inherits("lag"):
            return
        while True:
            lag = None
            try:
                lag = await self._calls("lag")
            except Exception as error:  # plugin boundary: the next call may succeed
                self._log_error(describe(error), error)
            if lag is not None and not isinstance(lag, Lag):
                self._log_error(f"lag() must return a Lag or None, not {type(lag).__name__}")
                lag = None
            self._meter.lag = lag
            await trio.sleep(LAG_SECONDS)

    def _log_error(self, why: str, error: Exception | None = None) -> None:
        # One warning per run: a source that cannot report its lag would otherwise fill the log.
        level = logging.DEBUG if self._warned else logging.WARNING
        log.log(level, "%s: lag is not available: %s", self._node, why, exc_info=self._warned and error)
        self._warned = True


def blocked_on(meters: list[Meter]) -> str | None:
    """What limits the pipeline: the node furthest downstream that waits while a source may not read."""
    if not any(
        meter.kind == "source" and {WaitReason.WINDOW, WaitReason.CHANNEL} & {wait.reason for wait in meter.waits}
        for meter in meters
    ):
        return None
    for meter in reversed(meters):
        for wait in reversed(meter.waits):
            if wait.reason not in (WaitReason.CHANNEL, WaitReason.WINDOW, WaitReason.SOURCE):
                return f"{meter.node}: {wait}"
    return WaitReason.WINDOW.value
