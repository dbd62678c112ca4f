"""MemoryLog: a journal that lives as long as the process. For tests, and to try things out."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from conduit_py.errors import ConduitError
from conduit_py.journal.errors import JournalGap
from conduit_py.journal.frame import HEADER_SIZE, Frame, pack_bodies
from conduit_py.journal.log import HEAD, Append, Commit, Log, LogReader, registers_for
from conduit_py.journal.registers import Registers


class MemoryLog(Log):
    """Keeps every promise of a log but to survive. Prunes frame by frame."""

    instant = True

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.frames: list[Frame] = []
        self._head = self._oldest = 0
        self._registers: Registers = {}

    def append_all(self, appends: Sequence[Append]) -> list[Commit | ConduitError]:
        return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Commit | ConduitError:
        begin = self._head
        try:
            self._registers = registers_for(self.name, append, begin, self._registers)
        except ConduitError as refusal:
            return refusal
        if append.bodies:
            packed = pack_bodies(append.bodies)
            self._head += HEADER_SIZE + len(packed)
            self.frames.append(Frame(self.name, begin, self._head, append.id, len(append.bodies), packed))
        return Commit(begin, self._head, self._registers)

    def reader(self, offset: int = 0) -> "MemoryReader":
        return MemoryReader(self, self._head if offset == HEAD else offset)

    def backward(self) -> Iterator[Frame]:
        return iter(self.frames[::-1])

    def prune(self, before: int) -> int:
        kept = [frame for frame in self.frames if frame.end > before]
        self._oldest = kept[0].begin if kept else self._head
        self.frames[:] = kept
        return self._oldest

    @property
    def oldest(self) -> int:
        return self._oldest

    def close(self) -> None:
        """Keep everything, so that the same log can be used again."""


class MemoryReader(LogReader):
    """Reads a journal in memory."""

    def __init__(self, log: MemoryLog, offset: int) -> None:
        self.offset = offset
        self._log = log

    def read(self) -> Frame | None:
        log, begin = self._log, self.offset
        if begin < log.oldest:
            self.offset = log.oldest
            if begin:
                raise JournalGap(log.name, begin, log.oldest, "are not there any more: they were pruned")
        index = bisect_left(log.frames, self.offset, key=lambda frame: frame.begin)
        if index == len(log.frames):
            return None
        frame = log.frames[index]
        self.offset = frame.end
        return frame

    def close(self) -> None:
        """Nothing to release."""
