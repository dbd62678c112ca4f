"""How tasks wake each other, and how often they commit, read or poll.

`Signal` wakes, `Pace` spaces commits and flushes, `Throttle` and `Allowance` limit a rate, `FairShare` limits the
batches of many pipelines, `IdleBackoff` spaces polls.
"""

import math
import sys
from collections import deque

import trio

from conduit_py.pipeline_settings import RateLimit

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
        # Set several times for every batch, and mostly no task waits.
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

    The duration is the shortest of the last `RECENT_STEPS`. A slow disk makes all of them long. A single long one
    waited for a core or for a neighbour's write, and would delay every record by ten times as much.
    """

    SECONDS_MAX = 0.1
    RECENT_STEPS = 4
    LIGHT_SHARE = 3
    """A light step is followed after this many times its duration."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._recent: deque[float] = deque(maxlen=self.RECENT_STEPS)
        self.due_at = float("-inf")

    def end_step(self, started: float, *, light: bool = False) -> None:
        """Note that a step ends now which began at this time. A step that failed is not noted: it ends the run."""
        # Counted from the end of the step. Counted from its start, a slow step would be due again at once.
        ended = trio.current_time()
        self._recent.append(ended - started)
        duration = min(self._recent)
        seconds = self.LIGHT_SHARE * duration if light else self._seconds + 10 * duration
        self.due_at = ended + min(seconds, max(self.SECONDS_MAX, self._seconds))


class Throttle:
    """When the next record may pass, so that no more than so many records and bytes pass in a second on average."""

    CATCH_UP_SECONDS = 1.0
    """What was not used in so long a time may be used later, if the limit has no `burst`."""

    def __init__(self, rate: RateLimit) -> None:
        self._rates = (rate.records_per_second or math.inf, rate.bytes_per_second or math.inf)
        self._burst = rate.burst
        self._due_at = trio.current_time()

    @property
    def wait_seconds(self) -> float:
        """How long to wait from now on."""
        return max(0.0, self._due_at - trio.current_time())

    def count(self, records: int, size: int) -> None:
        """Count what passes now, at most what `most` returned."""
        # These records are part of the burst that an earlier pause allows.
        unused = self.CATCH_UP_SECONDS if self._burst is None else (self._burst - records) / self._rates[0]
        start = max(self._due_at, trio.current_time() - unused)
        self._due_at = start + max(records / self._rates[0], size / self._rates[1])

    def most(self, seconds: float) -> int:
        """Return how many records may pass in so many seconds, at least one."""
        return max(1, int(min(self._rates[0] * seconds, self._burst or sys.maxsize)))


class Allowance:
    """How often something may be done: so many times at once, and so many in a second after that."""

    def __init__(self, at_once: int, per_second: float) -> None:
        self._seconds, self._burst_seconds = 1 / per_second, at_once / per_second
        self._used_until = -math.inf

    def take(self, now: float) -> bool:
        """Return whether it may be done now, and count it then."""
        used_until = max(self._used_until, now - self._burst_seconds) + self._seconds
        if used_until > now:
            return False
        self._used_until = used_until
        return True


class FairShare:
    """How many records a batch may have so that a round, in which every task has a turn, does not take long.

    With many pipelines at work, whole batches make long rounds, and a request to the API needs several of them.
    """

    ROUND_SECONDS = 0.1
    RECORDS_MIN = 128
    """With fewer, what a batch costs would be more than what its records cost."""

    LONG_ROUNDS, SHORT_ROUNDS = 4, 8
    """So many in a row let it shrink, or grow. One alone may be a start, or the machine ran others; and of a long round
    a task sees only a part, which may be short."""

    def __init__(self) -> None:
        self.records = sys.maxsize
        self._long = self._short = 0

    def note_round(self, seconds: float, batch_size: int) -> bool:
        """Note how long a round took in which a batch had up to so many records; return True if the share changed."""
        self._long = self._long + 1 if seconds > self.ROUND_SECONDS else 0
        self._short = self._short + 1 if seconds < self.ROUND_SECONDS / 4 else 0
        before = self.records
        if self._long == self.LONG_ROUNDS:
            self.records, self._long = max(min(before, batch_size) // 2, self.RECORDS_MIN), 0
        elif self._short >= self.SHORT_ROUNDS and before < sys.maxsize:
            # Beyond what a batch may have, it is no limit any more.
            self.records, self._short = 2 * before if before <= batch_size else sys.maxsize, 0
        return self.records != before


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
