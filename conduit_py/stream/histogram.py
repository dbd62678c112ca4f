"""Histogram: how values are spread, in fixed buckets; what quantiles of durations and sizes are estimated from."""

from bisect import bisect_left
from collections.abc import Callable

import msgspec
import trio

DURATION_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""In seconds."""
SIZE_BOUNDS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""In records."""


class Histogram(msgspec.Struct):
    """Counts values by the smallest bound that is not below them; the last count is of those above every bound."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` as often as it occurred: the records of a batch have one duration."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def plus(self, other: "Histogram | None") -> "Histogram":
        """A new histogram with the values of both."""
        if other is None:
            return Histogram(self.bounds, self.counts.copy(), self.total)
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        return sum(self.counts)


class Stopwatch:
    """Observes how long a block takes. Not a generator, which would cost more than all other metering of a batch."""

    __slots__ = ("_histogram", "_started_at")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._started_at = 0.0

    def __enter__(self) -> None:
        self._started_at = trio.current_time()

    def __exit__(self, *error: object) -> None:
        self._histogram.observe(trio.current_time() - self._started_at)


def empty(bounds: tuple[float, ...]) -> Callable[[], Histogram]:
    """What makes empty histograms with these bounds."""
    return lambda: Histogram(bounds, [0] * (len(bounds) + 1))
