"""The two ways to stream a source: the driver reads it (DriverStream), or executors read splits of it (SplitStream).

An Offset is the place of a stream, as JSON that Spark keeps in its checkpoint.
"""

import time
from base64 import b64decode, b64encode
from collections import deque
from typing import Any, NamedTuple, TypeAlias

import msgspec

from conduit_py import sdk
from conduit_py.errors import FatalError
from conduit_py.sdk.source import EndOfSource, NothingYet, SplittableSource
from conduit_py.spark.datasource.open_source import OpenSource, ReadAheadSource, read_all
from conduit_py.spark.datasource.rows import Row, row_of
from conduit_py.spark.engine.read_ahead import ReadRecord

Json: TypeAlias = dict[str, Any]


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """After the record at `after`, with `rows` records in the batch that it ends; or after the last of `parts`.

    A batch that is run again must have the same records, even if limits or the number of cores have changed. So the
    offset that ends it has the number of its records, or the parts that it was split into.
    """

    after: str = ""
    rows: int = 0
    parts: tuple[str, ...] = ()

    @classmethod
    def after_record(cls, position: bytes, rows: int) -> "Offset":
        return cls(after=b64encode(position).decode(), rows=rows)

    @classmethod
    def after_parts(cls, parts: list[bytes]) -> "Offset":
        return cls(parts=tuple(b64encode(part).decode() for part in parts))

    @property
    def position(self) -> bytes | None:
        """The position of the last record; None at the beginning."""
        return b64decode(self.after) if self.after else None

    @property
    def split(self) -> list[bytes]:
        return [b64decode(part) for part in self.parts]

    @classmethod
    def parse(cls, value: Json) -> "Offset":
        return msgspec.convert(value, cls)

    def to_json(self) -> Json:
        encoded: Json = msgspec.to_builtins(self)
        return encoded


BEGINNING = Offset()


def position_after(source: sdk.SourceConnector[Any], offset: Offset) -> bytes | None:
    """The position of the last record before the offset; None at the beginning.

    Only reading the last part shows where it ends. That is done when a query starts again.
    """
    if offset == BEGINNING or offset.after:
        return offset.position
    for part in reversed(offset.split):
        position = None
        for each in read_all(source.fresh(), part):
            position = each.record.position
        if position is not None:
            return position
    raise FatalError(
        "the end of the last batch is unknown: its parts have no record",
        suggestion="start with a new checkpointLocation",
    )


ROWS = 10_000
"""The default number of rows in a batch."""
STEP = 1024
WAIT_SECONDS = 0.2
"""How long to wait for the first record of a batch."""
LINGER_SECONDS = 0.05
"""How long to wait for each further record."""
AGAIN_SECONDS = 60.0
"""How long to wait for a record that must be there, when a batch is run again."""


class HeldBatch(NamedTuple):
    """What was read between two offsets, held until the next batch is read."""

    start: Offset
    end: Offset
    part: bytes


class DriverStream:
    """One partition, in the order of the source. Only the batch in progress is held, in this process.

    After a crash the source is opened where the checkpoint is, and the batch that was in progress is read again:
    as many records, up to the same position. A source that gives others is an error, never a guess.
    """

    def __init__(self, source: sdk.SourceConnector[Any]) -> None:
        self._source = source
        self._feed: ReadAheadSource | None = None
        self._at: Offset | None = None
        self._held: HeldBatch | None = None
        self._unacked: deque[tuple[Offset, list[bytes]]] = deque()

    def latest(self, start: Offset, rows_max: int, size_max: int, wait_seconds: float) -> Offset:
        """Read what follows `start`, once, and return where that ends; `start` if there is nothing now."""
        # Spark may call twice: to read again could end elsewhere, and one batch would have two ends.
        if self._held is not None and self._held.start == start:
            return self._held.end
        taken = self._collect(self._feed_at(start), rows_max, size_max, wait_seconds)
        return self._hold(start, taken) if taken.rows else start

    def part(self, start: Offset, end: Offset) -> bytes:
        """What was read between the two offsets; if that was in an earlier run, it is read again."""
        if self._held is None or (self._held.start, self._held.end) != (start, end):
            self._hold(start, self._read_again(start, end))
        assert self._held is not None
        return self._held.part

    def commit(self, end: Offset) -> None:
        """Ack every batch up to `end`."""
        # A batch of an earlier run is unknown here and needs no ack: the source was opened after it.
        if all(offset != end for offset, _ in self._unacked):
            return
        offset = None
        while offset != end:
            offset, positions = self._unacked.popleft()
            assert self._feed is not None
            self._feed.ack(positions)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _feed_at(self, start: Offset) -> ReadAheadSource:
        if self._feed is None or self._at != start:
            self.close()
            self._unacked.clear()
            position = position_after(self._source, start)
            self._feed = ReadAheadSource(self._source.fresh(), "open", position, created=position is None)
            self._at = start
        return self._feed

    def _hold(self, start: Offset, taken: "RowBatch") -> Offset:
        end = Offset.after_record(taken.rows[-1][0], len(taken.rows))
        assert self._feed is not None
        if self._feed.hears_acks:
            self._unacked.append((end, [row[0] for row in taken.rows]))
        self._held = HeldBatch(start, end, msgspec.msgpack.encode(taken.rows))
        self._at = end
        return end

    def _collect(self, feed: ReadAheadSource, rows_max: int, size_max: int, wait_seconds: float) -> "RowBatch":
        taken = RowBatch()
        try:
            while (room := rows_max - len(taken.rows)) > 0 and taken.size < size_max:
                if not taken.add(feed.take(min(room, STEP), LINGER_SECONDS if taken.rows else wait_seconds)):
                    break
        except EndOfSource:
            pass  # It is raised again, once all is taken.
        return taken

    def _read_again(self, start: Offset, end: Offset) -> "RowBatch":
        feed = self._feed_at(start)
        taken = RowBatch()
        deadline = time.monotonic() + AGAIN_SECONDS
        try:
            while (room := end.rows - len(taken.rows)) > 0 and time.monotonic() < deadline:
                taken.add(feed.take(min(room, STEP), AGAIN_SECONDS))
        except EndOfSource:
            pass  # Missing records are reported below.
        # Other records under the same offset would be lost or repeated in silence.
        if len(taken.rows) != end.rows or taken.rows[-1][0] != end.position:
            raise _changed_source_error(start, end, taken.rows)
        return taken


class RowBatch:
    """Rows that were taken, and roughly their size in bytes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0

    def add(self, records: list[ReadRecord]) -> bool:
        """Add records; False if there were none."""
        rows = [row_of(each.record, each.refused) for each in records]
        self.rows += rows
        self.size += sum(len(value or b"") for row in rows for value in (row[0], row[3], row[4], row[5]))
        return bool(rows)


def decode_rows(part: bytes) -> list[Row]:
    return msgspec.msgpack.decode(part, type=list[Row])


def _changed_source_error(start: Offset, end: Offset, rows: list[Row]) -> FatalError:
    there = f"ending at {rows[-1][0]!r}" if rows else "nothing"
    after = "the beginning" if start == BEGINNING else repr(start.position)
    return FatalError(
        f"the source no longer has the records of the last batch: after {after} there were {end.rows} records up "
        f"to {end.position!r}, and now there are {len(rows)}, {there}",
        suggestion="restore the records of the source, or start with a new checkpointLocation, without these",
    )


STREAM_PART_SIZE = 4 * 1024 * 1024
"""Bytes of input in a task: enough to be worth the milliseconds that a task costs."""


class SplitStream:
    """A partition for each part. Only the parts of a batch are held, and those are in its offset."""

    def __init__(self, source: SplittableSource[Any]) -> None:
        self._source = source
        self._open: OpenSource | None = None
        self._at: Offset | None = None
        self._last: tuple[Offset, Offset] | None = None

    def latest(self, start: Offset, size_max: int) -> Offset:
        """Split about `size_max` bytes of what follows `start`; `start` when there is nothing now."""
        # Spark may call twice: to split again could end elsewhere, and one batch would have two ends.
        if self._last is not None and self._last[0] == start:
            return self._last[1]
        opened = self._open_at(start)
        parts: list[bytes] = []
        size = min(STREAM_PART_SIZE, size_max)
        try:
            while len(parts) * size < size_max:
                parts.append(opened.call("split", size))
        except (EndOfSource, NothingYet):
            pass  # It is raised again by the next call.
        if not parts:
            return start
        self._at = Offset.after_parts(parts)
        self._last = start, self._at
        return self._at

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _open_at(self, start: Offset) -> OpenSource:
        if self._open is None or self._at != start:
            self.close()
            position = position_after(self._source, start)
            self._open = OpenSource(self._source.fresh(), "open", position, created=position is None)
            self._at = start
        return self._open
