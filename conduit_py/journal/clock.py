"""Clock: the time of a producer, which never stands still and never goes back."""

import time

TICK = 160
"""One microsecond. A producer of a million messages a second stays with the wall clock; a faster one runs ahead."""

HUNDRED_NANOSECONDS = 16
"""The clock counts 100 ns units in its upper 60 bits; the lower four are a counter, as in RFC 4122."""

MAX = 2**64 - 1

_EPOCH = 122_192_928_000_000_000
"""From 1582-10-15, where the time of RFC 4122 begins, to 1970, in units of 100 ns."""


def clock_at(unix_nanoseconds: int) -> int:
    """The clock value of an instant, its counter at zero."""
    return (unix_nanoseconds // 100 + _EPOCH) * HUNDRED_NANOSECONDS


def unix_seconds(clock: int) -> float:
    """The instant of a clock value."""
    return (clock // HUNDRED_NANOSECONDS - _EPOCH) / 10_000_000


class Clock:
    """Strictly increasing values of 64 bits. Readers only compare them."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def update(self, unix_nanoseconds: int) -> None:
        """Go forward to an instant; one that has passed changes nothing."""
        self.value = max(self.value, clock_at(unix_nanoseconds))

    def update_to_now(self) -> None:
        """Go forward to the wall clock."""
        self.update(time.time_ns())

    def tick(self, count: int = 1) -> int:
        """The next value; with `count` the first of that many, one tick apart, all of them taken."""
        first = self.value + TICK
        self.value += TICK * count
        return first
