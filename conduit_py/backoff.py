"""How long to wait before trying again: exponential, bounded, with jitter."""

import random
from collections import deque

from pydantic import BaseModel, ConfigDict, Field

from conduit_py.errors import RunElsewhere, TransientError


class Backoff(BaseModel):
    """Delays that grow by `factor` from `delay_seconds` to `delay_max_seconds`, each shortened by up to half."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    delay_seconds: float = Field(default=1.0, gt=0)
    delay_max_seconds: float = Field(default=600.0, gt=0)
    factor: float = Field(default=2.0, ge=1)

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 1."""
        # The exponent is capped: a power of floats raises OverflowError for a node that fails for days.
        grown = self.delay_seconds * self.factor ** min(attempt - 1, 64)
        # With jitter, so that nodes that failed together do not all try again together.
        return min(grown, self.delay_max_seconds) * (1 - rng.random() / 2)


RETRY_AFTER_SECONDS_MAX = 3600.0
"""No other system, broken or hostile, can hold up a pipeline for longer."""


def delay_after(error: object, delay: float) -> float:
    """Return the delay, or the `retry_after` of a transient error if that is longer."""
    asked_for = error.retry_after if isinstance(error, TransientError) else None
    # Negative or not a number: the comparison is then false, and the delay stays.
    return min(asked_for, RETRY_AFTER_SECONDS_MAX) if asked_for is not None and asked_for > delay else delay


class Retry(Backoff):
    """How often a node repeats a failed call: at most `attempts` calls in all."""

    attempts: int = Field(default=3, ge=1)
    delay_seconds: float = Field(default=0.1, gt=0)
    delay_max_seconds: float = Field(default=5.0, gt=0)


class Recovery(Backoff):
    """How often a failed pipeline restarts: at most `retries` times in any `window_seconds`; None is no limit."""

    retries: int | None = Field(default=None, ge=0)
    window_seconds: float = Field(default=300.0, gt=0)


class Failures:
    """The failures of a pipeline, and whether it may restart after another one."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._times: deque[float] = deque()
        self.in_a_row = 0

    def add(self, error: object, now: float, run_began_at: float) -> bool:
        """Count a failure. Returns True if there are at most `retries` within any `window_seconds`.

        While another server runs the pipeline, a look at it is no retry, and only makes the delay grow.
        """
        recovery = self._recovery
        # Not the failures in the window: delays may grow beyond it, and would then start from the smallest again.
        lasted = now - run_began_at >= recovery.window_seconds
        self.in_a_row = 1 if lasted else self.in_a_row + 1
        while self._times and self._times[0] <= now - recovery.window_seconds:
            self._times.popleft()
        if isinstance(error, RunElsewhere):
            return recovery.retries != 0
        self._times.append(now)
        return recovery.retries is None or len(self._times) <= recovery.retries

    def delay(self, error: object, rng: random.Random) -> float:
        """Return the seconds to wait after the last failure, which had this error."""
        return delay_after(error, self._recovery.delay(self.in_a_row, rng))
