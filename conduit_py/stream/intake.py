"""Intake: the records read from a source that have not set out yet."""

from collections.abc import Mapping

import trio

from conduit_py.record import Record
from conduit_py.stream.signal import Signal


class Intake:
    """Holds at most one batch between the reader, who adds, and the dispatcher, who takes all at once.

    While the pipeline is busy a source that yields single records fills a batch by itself; while it is
    idle a single record goes through at once.
    """

    def __init__(self, batch_size: int, taken: Signal) -> None:
        self.batch_size = batch_size
        self._taken = taken
        self._filled = Signal()
        self._closed = False
        self._records: list[Record] = []
        self._refused: dict[int, str] = {}
        self._read_at = 0.0

    @property
    def room(self) -> int:
        return self.batch_size - len(self._records)

    def put(self, records: list[Record], refused: Mapping[int, str]) -> None:
        """Add records, at most `room`; `refused` maps indices among them to reasons."""
        assert len(records) <= self.room
        if not self._records:
            self._read_at = trio.current_time()
        offset = len(self._records)
        # Copied into a list of our own: the source may use the one it returned again.
        self._records += records
        self._refused.update((offset + index, reason) for index, reason in refused.items())
        self._filled.set()

    def close(self) -> None:
        """No more records will be added."""
        self._closed = True
        self._filled.set()

    async def take(self) -> tuple[list[Record], dict[int, str], float] | None:
        """Wait for records and take all of them, with the time the first was read; None when closed and empty."""
        while not self._records:
            if self._closed:
                return None
            await self._filled.wait()
        taken = self._records, self._refused, self._read_at
        self._records, self._refused = [], {}
        self._taken.set()
        return taken
