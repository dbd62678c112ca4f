"""Transaction: how much an exactly-once pipeline makes durable at once."""

from pydantic import Field, model_validator

from conduit_py.sdk.options import Options


class Transaction(Options):
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
    def _in_order(self) -> "Transaction":
        if self.min_seconds > self.max_seconds:
            raise ValueError("min_seconds must not be above max_seconds")
        return self
