"""Limits of transactions and of kept dead letters, as a user sets them."""

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, model_validator

from conduit_py.sdk.options import Options


class TransactionLimits(Options):
    """When a transaction of an exactly-once pipeline closes.

    It closes when the sources have nothing more at the moment, but not before `min_seconds`; and at the
    latest after `max_seconds`, or with `max_records` or `max_bytes`. Larger ones cost less per record, and
    readers of the destinations wait longer.
    """

    min_seconds: float = Field(default=0.0, ge=0, description="the shortest time that a transaction stays open")
    max_seconds: float = Field(default=1.0, gt=0, description="the longest time that a transaction stays open")
    max_records: int = Field(default=4096, ge=1, description="the most records in one transaction")
    max_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1, description="about how many bytes of records one transaction may have"
    )

    @model_validator(mode="after")
    def _in_order(self) -> "TransactionLimits":
        if self.min_seconds > self.max_seconds:
            raise ValueError("min_seconds must not be above max_seconds")
        return self


class Retention(BaseModel):
    """When kept letters of a pipeline are forgotten: once they are older than `age`, or above `count_max`.

    Without either they are kept until somebody replays or discards them. Letters that are about to be sent
    again are never forgotten.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    age: timedelta | None = Field(default=None, gt=timedelta(0), description="since a letter was last refused")
    count_max: int | None = Field(default=None, ge=1, description="the oldest above this number go first")

    def since(self, now: float) -> float | None:
        """The time, in seconds since 1970, before which letters are too old."""
        return None if self.age is None else now - self.age.total_seconds()
