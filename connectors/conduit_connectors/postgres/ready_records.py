"""ReadyRecords: the records that the next `read` of a source may return, each with its position."""

from collections import deque

import msgspec

from conduit_connectors.postgres.position import SourcePosition, TableProgress
from conduit_py.sdk import Reading, Record


class _Given(msgspec.Struct, gc=False):
    """A record that `read` may return. `ends` is False if more of its transaction follows."""

    record: Record
    ends: bool


class ReadyRecords:
    """A queue of records in the order of the log. The last one of a transaction is held back until its end is here."""

    def __init__(self) -> None:
        self._queue: deque[_Given] = deque()
        self._held: tuple[Record, SourcePosition] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, record: Record, at: SourcePosition, *, ends: bool = True) -> None:
        """Add a record with its position. It `ends` its transaction, or is a row of a snapshot."""
        record.position = at.encode()
        self._queue.append(_Given(record, ends))

    def hold(self, record: Record, within: SourcePosition) -> None:
        """Hold a record back until it is certain whether it is the last one of its transaction."""
        self.release()
        self._held = record, within

    def release(self, end: SourcePosition | None = None) -> bool:
        """Add the held record, if there is one. With `end` it is the last one, and that is its position."""
        if self._held is None:
            return False
        record, within = self._held
        self.append(record, end or within, ends=end is not None)
        self._held = None
        return True

    def take(self, n: int) -> Reading:
        """Remove and return at most `n` records: whole transactions, or a part of one and nothing else."""
        given = [self._queue.popleft() for _ in range(min(n, len(self._queue)))]
        whole = next((count for count in range(len(given), 0, -1) if given[count - 1].ends), len(given))
        self._queue.extendleft(reversed(given[whole:]))
        del given[whole:]
        return Reading([each.record for each in given], continues=not given[-1].ends)

    def add_request(self, request: TableProgress) -> None:
        """Add a request to the position of every record, so that it is in the next one that is stored."""
        for each in self._queue:
            each.record.position = SourcePosition.decode(each.record.position).with_request(request).encode()
        if self._held is not None:
            self._held = self._held[0], self._held[1].with_request(request)
