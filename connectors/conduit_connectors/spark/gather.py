"""Gathered: what a destination was given and Spark not yet, and when it is time to hand it over."""

from typing import Literal, NamedTuple

import pyarrow as pa
from pydantic import Field

from conduit_connectors.spark.options import SparkOptions
from conduit_connectors.spark.schema import Drift
from conduit_py.sdk import MessageId

QUIET = 0.1
"""The part of `delay_seconds` after which, with nothing more coming, there is nothing to wait for."""


class GatherOptions(SparkOptions):
    """How records become rows, and how many of them make a Spark job."""

    payload: Literal["fields", "envelope"] = Field(
        default="fields", description='"fields": those of payload.after are the columns; "envelope": whole records'
    )
    columns: str | None = Field(
        default=None, description='as in SQL: "id BIGINT, name STRING"; None: the first records decide'
    )
    drift: Drift = Field(
        default="refuse",
        description='a record that does not fit: "refuse" it, "ignore" its unknown fields, or "stop" the run',
    )
    rows_max: int = Field(default=16_384, ge=1, description="a job begins when so many records are gathered")
    bytes_max: int = Field(default=32 << 20, ge=1, description="or so many bytes")
    delay_seconds: float = Field(
        default=5.0, gt=0, description="or so long after the first; a tenth of it if nothing more comes"
    )


class Piece(NamedTuple):
    """Rows that came together, with the messages they are made of and what names those for ever."""

    rows: pa.RecordBatch
    messages: list[MessageId]
    keys: list[bytes]


class Gathered:
    """Pieces in the order they came. Plain state: whoever shares it between threads holds a lock."""

    def __init__(self, options: GatherOptions) -> None:
        self._options = options
        self._clear()

    def add(self, piece: Piece, now: float) -> None:
        if not self._pieces:
            self._first_at = now
        self._last_at = now
        self._pieces.append(piece)
        self.rows += len(piece.messages)
        self._bytes += piece.rows.nbytes

    @property
    def full(self) -> bool:
        return self.rows >= self._options.rows_max or self._bytes >= self._options.bytes_max

    def due_at(self) -> float | None:
        """When what is here must be handed over if nothing more comes; None when there is nothing."""
        if not self._pieces:
            return None
        if self.full:
            return float("-inf")
        # A source whose window is smaller than a batch sends nothing more until it is acked.
        delay = self._options.delay_seconds
        return min(self._first_at + delay, self._last_at + QUIET * delay)

    def take(self) -> list[Piece]:
        """Everything, which is here no more."""
        pieces = self._pieces
        self._clear()
        return pieces

    def _clear(self) -> None:
        self._pieces: list[Piece] = []
        self._first_at = self._last_at = 0.0
        self.rows = self._bytes = 0


def joined(pieces: list[Piece]) -> Piece:
    """Several pieces as one; at least one must be given."""
    table = pa.Table.from_batches([piece.rows for piece in pieces]).combine_chunks()
    [rows] = table.to_batches()
    return Piece(
        rows,
        [message for piece in pieces for message in piece.messages],
        [key for piece in pieces for key in piece.keys],
    )
