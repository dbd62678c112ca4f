"""RowBuffer: rows that a destination was given and that no Spark job has yet, and when a job is due."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
from pydantic import Field

from conduit_connectors.policy_options import (
    DEPRECATED,
    OLD_SPELLING,
    OnNewField,
    OnType,
    PolicyArguments,
    PolicyOptions,
)
from conduit_connectors.spark.rows import Drift
from conduit_py.sdk import Batch, MessageId
from conduit_py.sdk.spark import SparkArguments, SparkOptions

QUIET = 0.1
"""The part of `delay_seconds` after which a job starts if nothing more comes."""


class BufferOptions(SparkOptions, PolicyOptions):
    """How records become rows, and how many of them make a Spark job."""

    impossible = {  # noqa: RUF012 - a ClassVar of the base
        ("on_new_field", "add"): "a Spark destination does not alter what it writes to: its columns stay as they are",
        ("on_type", "widen"): "a Spark destination does not alter what it writes to: its types stay as they are",
    }

    payload: Literal["fields", "envelope"] = Field(
        default="fields", description='"fields": those of payload.after are the columns; "envelope": whole records'
    )
    columns: str | None = Field(
        default=None, description='as in SQL: "id BIGINT, name STRING"; None: the first records decide'
    )
    on_new_field: OnNewField = Field(
        default="refuse",
        description='a field that has no column: "refuse" the record, or "ignore" the field. "add" is not possible',
    )
    on_type: OnType = Field(
        default="refuse",
        description='a value that its column does not hold: "refuse" the record, or "text": a column of text gets it as'
        ' text, others refuse the record. "widen" is not possible',
    )
    drift: Drift | None = Field(
        default=None,
        description=f'{OLD_SPELLING}. "stop" ends the run at a record that does not fit',
        json_schema_extra=DEPRECATED,
    )
    rows_max: int = Field(default=16_384, ge=1, description="a job begins when so many records are gathered")
    bytes_max: int = Field(default=32 << 20, ge=1, description="or so many bytes")
    delay_seconds: float = Field(
        default=5.0, gt=0, description="or so long after the first; a tenth of it if nothing more comes"
    )

    @property
    def old_spelling(self) -> str | None:
        return self.drift


class BufferArguments(SparkArguments, PolicyArguments, total=False):
    """BufferOptions as a caller writes them, for editors and type checkers."""

    payload: Literal["fields", "envelope"]
    columns: str | None
    drift: Drift | None
    rows_max: int
    bytes_max: int
    delay_seconds: float


class BufferedRows(NamedTuple):
    """Rows of one batch, and the indices in it of the messages that they are made of."""

    rows: pa.RecordBatch
    batch: Batch
    kept: Sequence[int]
    repeated: bool = False
    """Whether other messages of the batch were written before, so that they are handled already."""


class Load(msgspec.Struct, frozen=True):
    """Rows for one Spark job, at least one, and the pieces that they are put together from."""

    rows: pa.RecordBatch
    pieces: Sequence[BufferedRows]

    @classmethod
    def of(cls, pieces: Sequence[BufferedRows]) -> "Load":
        [rows] = pa.Table.from_batches([piece.rows for piece in pieces]).combine_chunks().to_batches()
        return cls(rows, pieces)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def messages(self) -> list[MessageId]:
        """The message of each row."""
        return [piece.batch.id(index) for piece in self.pieces for index in piece.kept]

    def halves(self) -> tuple["Load", "Load"]:
        """The same in two parts, if there are two rows."""
        middle = len(self) // 2
        return self._part(0, middle), self._part(middle, len(self))

    def _part(self, start: int, stop: int) -> "Load":
        pieces, at = [], 0
        for piece in self.pieces:
            begin, end = max(start - at, 0), min(stop - at, len(piece.kept))
            if begin < end:
                rows = piece.rows.slice(begin, end - begin)
                pieces.append(piece._replace(rows=rows, kept=piece.kept[begin:end]))
            at += len(piece.kept)
        return Load(self.rows.slice(start, stop - start), pieces)


class RowBuffer:
    """Rows in the order they came. Not locked: a destination that shares it between threads holds a lock."""

    def __init__(self, options: BufferOptions) -> None:
        self._options = options
        self._clear()

    def add(self, piece: BufferedRows, now: float) -> None:
        if not self._pieces:
            self._first_at = now
        self._last_at = now
        self._pieces.append(piece)
        self.rows += len(piece.kept)
        self._bytes += piece.rows.nbytes

    @property
    def full(self) -> bool:
        return self.rows >= self._options.rows_max or self._bytes >= self._options.bytes_max

    def due_at(self) -> float | None:
        """When a job is due if nothing more comes; None when the buffer is empty."""
        if not self._pieces:
            return None
        if self.full:
            return float("-inf")
        # A source whose window is smaller than a batch sends nothing more until it is acked.
        delay = self._options.delay_seconds
        return min(self._first_at + delay, self._last_at + QUIET * delay)

    def take(self) -> list[BufferedRows]:
        """Remove and return everything."""
        pieces = self._pieces
        self._clear()
        return pieces

    def _clear(self) -> None:
        self._pieces: list[BufferedRows] = []
        self._first_at = self._last_at = 0.0
        self.rows = self._bytes = 0
