"""Pace: when a generated record is due."""

from pydantic import Field
from trio import current_time, sleep_until

from conduit_py.sdk import Options

# Below this a pause costs more than it gives: at high rates several records become due together.
_TICK_SECONDS = 0.001
# Time lost to back-pressure is made up for this much of it, so that the rate does not become a flood.
_CATCH_UP_SECONDS = 1.0


class Burst(Options):
    """Records for a while, then none for a while, again and again."""

    generate_seconds: float = Field(default=1.0, gt=0, description="how long records are generated")
    sleep_seconds: float = Field(gt=0, description="how long none are generated after that")


class Pace:
    """Lets records through at `rate` per second, 0 being without limit, and only during bursts if there are any."""

    def __init__(self, rate: float, burst: Burst | None) -> None:
        self._rate = rate
        self._burst = burst
        self._due = current_time()
        self._burst_ends = self._due + (burst.generate_seconds if burst else 0)

    async def wait(self, n: int) -> int:
        """Wait until a record is due; how many are by then, at most `n`."""
        while True:
            await self._wait_for_burst()
            if not self._rate:
                return n
            now = current_time()
            if self._due <= now:
                self._due = max(self._due, now - _CATCH_UP_SECONDS)
                due = min(n, int((now - self._due) * self._rate) + 1)
                self._due += due / self._rate
                return due
            await sleep_until(max(self._due, now + _TICK_SECONDS))

    async def _wait_for_burst(self) -> None:
        if self._burst is None or current_time() < self._burst_ends:
            return
        begins = self._burst_ends + self._burst.sleep_seconds
        await sleep_until(begins)
        begins = max(begins, current_time())
        self._burst_ends = begins + self._burst.generate_seconds
        self._due = max(self._due, begins)
