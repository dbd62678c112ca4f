"""Splitting: a stream of a source that can be split: the driver says where to read, and executors do."""

from typing import Any

from conduit_py.sdk.source import EndOfSource, NothingYet
from conduit_py.sdk.splittable import SplittableSource
from conduit_py.spark.format.offset import Offset
from conduit_py.spark.format.open_source import OpenSource
from conduit_py.spark.format.resume import position_after

PART_SIZE = 4 * 1024 * 1024
"""Bytes of input in a task: enough to be worth its some milliseconds."""


class Splitting:
    """A partition for each part. Nothing but the parts of a batch is held, and those are in its offset."""

    def __init__(self, source: SplittableSource[Any]) -> None:
        self._source = source
        self._open: OpenSource | None = None
        self._at: Offset | None = None
        self._last: tuple[Offset, Offset] | None = None

    def latest(self, start: Offset, size_max: int) -> Offset:
        """Split about `size_max` bytes of what follows `start`; `start` when there is nothing now."""
        if self._last is not None and self._last[0] == start:
            return self._last[1]
        opened = self._open_at(start)
        parts: list[bytes] = []
        size = min(PART_SIZE, size_max)
        try:
            while len(parts) * size < size_max:
                parts.append(opened.call("split", size))
        except (EndOfSource, NothingYet):
            pass  # It says so again when it is asked for more.
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
