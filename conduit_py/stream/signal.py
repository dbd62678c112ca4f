"""Signal, Pace and IdleBackoff: how tasks wake each other, and how often they may do costly or useless things."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Signal:
    """Wakes the one task that waits; a signal given while nobody waits is not lost."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Return once the signal has been given since the last return."""
        await self._event.wait()
        self._event = trio.Event()


class Pace:
    """Lets the first step through at once and keeps later ones apart: by `seconds`, and by ten times their cost.

    A lone record pays no delay, and under load one fsync or commit serves many batches, the more the
    longer it takes. Nothing is put off by more than `SECONDS_MAX`.
    """

    SECONDS_MAX = 0.1

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.due_at = float("-inf")

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take a step, which lasts as long as the block does."""
        started = trio.current_time()
        yield
        # Counted from the end of a step, or a slow one would be due again at once.
        ended = trio.current_time()
        self.due_at = ended + min(self._seconds + 10 * (ended - started), self.SECONDS_MAX)


class IdleBackoff:
    """How long to wait before a source that had nothing is read again: twice as long each time, up to a bound."""

    SECONDS = 0.01
    SECONDS_MAX = 0.5

    def __init__(self) -> None:
        self._seconds = self.SECONDS

    def next(self) -> float:
        """The seconds to wait now."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self.SECONDS_MAX)
        return seconds

    def reset(self) -> None:
        """The source had something."""
        self._seconds = self.SECONDS
