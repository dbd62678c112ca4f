"""Handfuls: frames a few at a time, so that a thread is asked once for them."""

from conduit_py.errors import ConduitError
from conduit_py.journal.fault import JournalDamaged, JournalGap
from conduit_py.journal.frame import Frame
from conduit_py.journal.log import Reader

SIZE_MAX = 64


class Handfuls:
    """Reads with a reader, whose it becomes, up to an offset if there is one.

    What stands before damage is given first: the damage is reported by the next call, once, as the reader does.
    """

    def __init__(self, reader: Reader, end: int | None = None) -> None:
        self._reader = reader
        self._end = end
        self._fault: ConduitError | None = None

    @property
    def ended(self) -> bool:
        """Whether there is nothing more before the end."""
        return self._fault is None and self._end is not None and self._reader.offset >= self._end

    def read(self) -> list[Frame]:
        """The next frames; none when there are none now."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        frames: list[Frame] = []
        try:
            while len(frames) < SIZE_MAX and not self.ended and (frame := self._reader.read()) is not None:
                frames.append(frame)
        except ConduitError as fault:
            if self._lies_behind(fault):
                return frames
            if not frames:
                raise
            self._fault = fault
        return frames

    def _lies_behind(self, fault: ConduitError) -> bool:
        """Whether this is about what comes after the end."""
        if self._end is None or not isinstance(fault, JournalDamaged | JournalGap):
            return False
        return fault.begin >= self._end

    def close(self) -> None:
        self._reader.close()
