"""How long to wait before trying again: exponential, bounded, with jitter."""

import random

from pydantic import BaseModel, ConfigDict, Field


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


class Retry(Backoff):
    """How often a node repeats a failed call: at most `attempts` calls in all."""

    attempts: int = Field(default=3, ge=1)
    delay_seconds: float = Field(default=0.1, gt=0)
    delay_max_seconds: float = Field(default=5.0, gt=0)


class Recovery(Backoff):
    """How often a failed pipeline restarts: at most `retries` times in any `window_seconds`; None is no limit."""

    retries: int | None = Field(default=None, ge=0)
    window_seconds: float = Field(default=300.0, gt=0)
