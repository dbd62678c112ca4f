"""How long to wait before trying again: exponential, bounded, with jitter."""

import random

from pydantic import BaseModel, ConfigDict, Field


class Backoff(BaseModel):
    """Delays that grow by `factor` from `delay_seconds` to `delay_max_seconds`, each shortened at random.

    The jitter takes up to half a delay away, so that many nodes that failed together do not all
    come back together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    delay_seconds: float = Field(default=1.0, gt=0)
    delay_max_seconds: float = Field(default=600.0, gt=0)
    factor: float = Field(default=2.0, ge=1)

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after failed attempt number `attempt`, counted from 1."""
        # The exponent is capped: a float power overflows long before anyone has waited that often.
        grown = self.delay_seconds * self.factor ** min(attempt - 1, 64)
        return min(grown, self.delay_max_seconds) * (1 - rng.random() / 2)


class Retry(Backoff):
    """How often a node tries a call again before its error counts: at most `attempts` calls in all."""

    attempts: int = Field(default=3, ge=1)
    delay_seconds: float = Field(default=0.1, gt=0)
    delay_max_seconds: float = Field(default=5.0, gt=0)


class Recovery(Backoff):
    """How a failed pipeline starts again: at most `retries` times in any `window_seconds`; None is without end."""

    retries: int | None = Field(default=None, ge=0)
    window_seconds: float = Field(default=300.0, gt=0)
