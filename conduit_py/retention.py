"""Retention: for how long dead letters are kept."""

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field


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
