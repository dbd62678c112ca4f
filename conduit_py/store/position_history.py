"""PositionHistory: where a source was and when, so that it can be set back to a moment of the past."""

from collections.abc import Iterator
from itertools import accumulate

import msgspec

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SPACINGS = ((2 * HOUR, MINUTE), (DAY, 10 * MINUTE), (7 * DAY, HOUR))
"""Up to which age points are kept, and how far apart."""
STARTS_MAX = 32
BYTES_MAX = 64 * 1024


class HistoryPoint(msgspec.Struct, frozen=True):
    """A position that was durable at a time. None is the beginning: nothing had been settled yet."""

    at: float
    position: bytes | None
    start: bool = False
    """Whether a run began here."""


class PositionHistory(msgspec.Struct, frozen=True):
    """The points of one source, the oldest first: few, and fewer the older they are.

    One a minute for the last hours, then one in ten minutes, then one an hour, for a week; and where the
    last runs began. However long positions are, it stays small.
    """

    points: list[HistoryPoint] = []

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    def due(self, now: float) -> bool:
        """Whether the last point is so long ago that another is wanted. A clock that was set back counts as well."""
        return not self.points or not 0 <= now - self.points[-1].at < MINUTE

    def with_points(self, *points: HistoryPoint) -> "PositionHistory":
        """Return the history with further points, without those too old at the time of the last one, or too many."""
        everything = sorted((*self.points, *points), key=lambda point: point.at)
        # Starts are limited by number, not by age: a run may last longer than any spacing.
        kept = [point for point in everything if point.start][-STARTS_MAX:]
        kept += _thin_out([point for point in everything if not point.start], now=points[-1].at)
        newest_first = sorted(kept, key=lambda point: point.at)[::-1]
        # Some sources have positions of many kilobytes, and the history is written with a commit.
        sizes = accumulate(32 + len(point.position or b"") for point in newest_first)
        fitting = max(1, sum(size <= BYTES_MAX for size in sizes))
        return PositionHistory(newest_first[:fitting][::-1])

    def at(self, moment: float) -> HistoryPoint | None:
        """The last point that is not after the moment: everything settled since then is read again from it."""
        return next((point for point in reversed(self.points) if point.at <= moment), None)


_ENCODER = msgspec.msgpack.Encoder()


def _thin_out(points: list[HistoryPoint], now: float) -> Iterator[HistoryPoint]:
    """The first point of each stretch of time, whose length goes by its age."""
    last = None
    for point in points:
        spacing = next((spacing for age, spacing in SPACINGS if now - point.at <= age), None)
        if spacing is None:
            continue
        stretch = (spacing, int(point.at // spacing))
        if stretch != last:
            yield point
        last = stretch
