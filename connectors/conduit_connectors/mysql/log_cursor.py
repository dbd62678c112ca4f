"""LogCursor: where the stream is in the files of the binary log."""

from conduit_connectors.mysql.binlog_events import BinlogEvent, Gtid
from conduit_connectors.mysql.position import GtidState

LogPlace = tuple[int, int]
"""The number of a file and an offset in it: places are ordered as the log is."""

_WRAP = 2**32


class LogCursor:
    """Follows the events of a stream that begins after `start`.

    `place` is None until the stream has left the transactions that the server skips. From then on everything
    before `place` was in the stream, and nothing after it.
    """

    def __init__(self, start: GtidState) -> None:
        self.place: LogPlace | None = None
        self._start = start
        self._file = 0

    def enter_file(self, name: str, offset: int) -> None:
        self._file = parse_file_number(name)
        if self.place is not None:
            self.place = (self._file, offset)

    def pass_list(self, event: BinlogEvent, gtids: list[Gtid]) -> None:
        """A list of what is before this place in the log: if that is all that is skipped, the place is known."""
        if self.place is None and self._start.is_before(gtids):
            self.place = (self._file, event.end)

    def begin_group(self, event: BinlogEvent) -> LogPlace:
        """Return where the group begins that this event is the first of."""
        if self.place is None:
            self.place = (self._file, event.end - event.size)
        end = self._offset(event)
        return (self._file, end - event.size)

    def pass_event(self, event: BinlogEvent) -> None:
        if event.end and not event.artificial and self.place is not None:
            self.place = (self._file, self._offset(event))

    def _offset(self, event: BinlogEvent) -> int:
        # Events have 32 bits of it, and a file with one huge transaction is longer.
        assert self.place is not None
        file, before = self.place
        offset = event.end + before // _WRAP * _WRAP if file == self._file else event.end
        return offset + _WRAP if file == self._file and offset < before else offset


def parse_file_number(name: str) -> int:
    """Return the number in the name of a file of the log."""
    return int(name.rpartition(".")[2])
