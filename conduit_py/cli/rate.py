"""Rate: how many records per second, over the last seconds rather than since the start."""

from collections import deque


class Rate:
    """Fed with a growing count now and then, says how fast it grows at the moment."""

    def __init__(self, window_seconds: float = 5.0) -> None:
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> float:
        """Take a sample and return the rate between it and the oldest within the window."""
        self._samples.append((now, count))
        # The last one outside the window stays: between rare samples the window would hold one only.
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_seconds:
            self._samples.popleft()
        then, before = self._samples[0]
        return (count - before) / (now - then) if now > then else 0.0
