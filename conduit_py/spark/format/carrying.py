"""Carrying: a stream of a source that only one can read: the driver does, and records go along with the tasks."""

import time
from collections import deque
from typing import Any, NamedTuple

import msgspec

from conduit_py import sdk
from conduit_py.errors import FatalError
from conduit_py.sdk.source import EndOfSource
from conduit_py.spark.format.envelope import Row, row_of
from conduit_py.spark.format.feed import Feed
from conduit_py.spark.format.offset import BEGINNING, Offset
from conduit_py.spark.format.resume import position_after
from conduit_py.spark.pump import Drawn

ROWS = 10_000
"""In a batch, unless the user says otherwise."""
STEP = 1024
WAIT_SECONDS = 0.2
"""For the first record of a batch."""
LINGER_SECONDS = 0.05
"""For any further one."""
AGAIN_SECONDS = 60.0
"""For a record that is known to be there, when a batch is run again."""


class Held(NamedTuple):
    """What was read between two offsets. It is held until the next one is read."""

    start: Offset
    end: Offset
    part: bytes


class Carrying:
    """One partition, in the order of the source. Only the batch in progress is held, in this process.

    After a crash the source is opened where the checkpoint is, and the batch that was in progress is read again:
    as many records, up to the same position. A source that gives others is an error, never a guess.
    """

    def __init__(self, source: sdk.Source[Any]) -> None:
        self._source = source
        self._feed: Feed | None = None
        self._at: Offset | None = None
        self._held: Held | None = None
        self._unacked: deque[tuple[Offset, list[bytes]]] = deque()

    def latest(self, start: Offset, rows_max: int, size_max: int, wait_seconds: float) -> Offset:
        """Read what follows `start`, once, and return where that ends; `start` when there is nothing now."""
        if self._held is not None and self._held.start == start:
            return self._held.end
        taken = self._gathered(self._feed_at(start), rows_max, size_max, wait_seconds)
        return self._hold(start, taken) if taken.rows else start

    def part(self, start: Offset, end: Offset) -> bytes:
        """What was read between the two; if that was in a former run, it is read again."""
        if self._held is None or (self._held.start, self._held.end) != (start, end):
            self._hold(start, self._again(start, end))
        assert self._held is not None
        return self._held.part

    def commit(self, end: Offset) -> None:
        """Ack every batch up to `end`. One of a former run is not known, and the source was opened after it."""
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

    def _feed_at(self, start: Offset) -> Feed:
        if self._feed is None or self._at != start:
            self.close()
            self._unacked.clear()
            position = position_after(self._source, start)
            self._feed = Feed(self._source.fresh(), "open", position, created=position is None)
            self._at = start
        return self._feed

    def _hold(self, start: Offset, taken: "Taken") -> Offset:
        end = Offset.after_record(taken.rows[-1][0], len(taken.rows))
        assert self._feed is not None
        if self._feed.hears_acks:
            self._unacked.append((end, [row[0] for row in taken.rows]))
        self._held = Held(start, end, msgspec.msgpack.encode(taken.rows))
        self._at = end
        return end

    def _gathered(self, feed: Feed, rows_max: int, size_max: int, wait_seconds: float) -> "Taken":
        taken = Taken()
        try:
            while (room := rows_max - len(taken.rows)) > 0 and taken.size < size_max:
                if not taken.add(feed.take(min(room, STEP), LINGER_SECONDS if taken.rows else wait_seconds)):
                    break
        except EndOfSource:
            pass  # It says so again, once all is taken.
        return taken

    def _again(self, start: Offset, end: Offset) -> "Taken":
        feed = self._feed_at(start)
        taken = Taken()
        deadline = time.monotonic() + AGAIN_SECONDS
        try:
            while (room := end.rows - len(taken.rows)) > 0 and time.monotonic() < deadline:
                taken.add(feed.take(min(room, STEP), AGAIN_SECONDS))
        except EndOfSource:
            pass  # What is missing is told below.
        if len(taken.rows) != end.rows or taken.rows[-1][0] != end.position:
            raise _changed(start, end, taken.rows)
        return taken


class Taken:
    """Rows that were taken, and about how many bytes they are."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0

    def add(self, drawn: list[Drawn]) -> bool:
        """Whether there were any."""
        rows = [row_of(each.record, each.refused) for each in drawn]
        self.rows += rows
        self.size += sum(len(value or b"") for row in rows for value in (row[0], row[3], row[4], row[5]))
        return bool(rows)


def rows_of(part: bytes) -> list[Row]:
    return msgspec.msgpack.decode(part, type=list[Row])


def _changed(start: Offset, end: Offset, rows: list[Row]) -> FatalError:
    there = f"ending at {rows[-1][0]!r}" if rows else "nothing"
    after = "the beginning" if start == BEGINNING else repr(start.position)
    return FatalError(
        f"the source does not give the records of the last batch again: after {after} there were {end.rows} records up "
        f"to {end.position!r}, and now there are {len(rows)}, {there}",
        suggestion="restore what the source had; or give up what is missing and start with a new checkpointLocation",
    )
