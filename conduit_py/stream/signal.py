"""Signal, Pace, Throttle and IdleBackoff: how tasks wake each other, and how often they commit, read or poll."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import trio

TURN_SECONDS = 0.001
"""How long a task may go from one quick call to the next without letting other tasks run."""
PROGRESS_SECONDS = 1.0
"""The shortest interval between two commits of progress without a record."""


class Signal:
    """Wakes the one waiting task. A signal that is set while no task waits is not lost."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._is_set = False

    def set(self) -> None:
        # Set several times for every batch, and mostly nobody waits.
        if not self._is_set:
            self._is_set = True
            self._event.set()

    async def wait(self) -> None:
        """Return once the signal has been set since the last return."""
        await self._event.wait()
        # Replaced before the caller goes on: what is set from here on wakes the next wait.
        self._event = trio.Event()
        self._is_set = False


class Pace:
    """Starts the first step at once, and spaces later ones by `seconds` plus ten times their duration.

    A single record has no delay. Under load one fsync or commit serves many batches, more so if it is
    slow. A light step serves only a few records, so there is nothing to gain by waiting for more: it is followed
    as soon as it leaves most of the time to others. No step is delayed by more than `SECONDS_MAX`,
    or `seconds` if that is more.
    """

    SECONDS_MAX = 0.1
    LIGHT_SHARE = 3
    """A light step is followed after this many times its duration."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.due_at = float("-inf")

    @contextmanager
    def step(self, *, light: bool = False) -> Iterator[None]:
        """Measure a step, which is the block."""
        started = trio.current_time()
        yield
        # Counted from the end of the step. Counted from its start, a slow step would be due again at once.
        ended = trio.current_time()
        seconds = self.LIGHT_SHARE * (ended - started) if light else self._seconds + 10 * (ended - started)
        self.due_at = ended + min(seconds, max(self.SECONDS_MAX, self._seconds))


class Throttle:
    """When the next record may pass, so that no more than so many records and bytes pass in a second on average."""

    CATCH_UP_SECONDS = 1.0
    """What was not used in so long a time may be used later."""

    def __init__(self, records_per_second: float | None, bytes_per_second: float | None) -> None:
        self._rates = (records_per_second or math.inf, bytes_per_second or math.inf)
        self._due_at = trio.current_time()

    @property
    def wait_seconds(self) -> float:
        """How long to wait from now on."""
        return max(0.0, self._due_at - trio.current_time())

    def count(self, records: int, size: int) -> None:
        """Count what passes now."""
        start = max(self._due_at, trio.current_time() - self.CATCH_UP_SECONDS)
        self._due_at = start + max(records / self._rates[0], size / self._rates[1])

    def most(self, seconds: float) -> int:
        """Return how many records may pass in so many seconds, at least one."""
        return max(1, int(min(self._rates[0] * seconds, sys.maxsize)))


class IdleBackoff:
    """The wait before an empty source is read again: doubled each time, up to `SECONDS_MAX`."""

    SECONDS = 0.01
    SECONDS_MAX = 0.5

    def __init__(self) -> None:
        self._seconds = self.SECONDS

    def next(self) -> float:
        """Return the seconds to wait now."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self.SECONDS_MAX)
        return seconds
