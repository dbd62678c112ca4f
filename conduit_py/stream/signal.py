"""Signal and Pace: how tasks wake each other, and how often they may do costly things."""

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
    """Lets the first step through at once and keeps later ones `seconds` apart.

    A lone record pays no delay, and under load one fsync or commit serves many batches.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    @property
    def due_at(self) -> float:
        return self._next

    def step(self) -> None:
        """Note that a step is taken now."""
        self._next = trio.current_time() + self._seconds
