"""Log and LogReader: the interface of a journal, durable frames in order, with registers. Every call may block.

MemoryLog implements it in memory, for tests and to try things out.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias

import msgspec

from conduit_py.errors import ConduitError
from conduit_py.journal.errors import JournalDamaged, JournalGap, RegisterMismatch, WrongOffset
from conduit_py.journal.frame import HEADER_SIZE, Frame, pack_bodies
from conduit_py.journal.message_id import NO_ID, MessageUuid
from conduit_py.journal.registers import Labels, Registers, Selector, apply_changes, holds

HEAD = -1
"""As an offset: the end of the journal, so that only what comes from now on is read."""

SyncPolicy: TypeAlias = Literal["never", "batch", "always"]
"""When appends reach the disk. `always`: each before it returns. `batch`: all of them before a `barrier`
returns. `never`: when the system writes them, so they survive the process and not a power cut."""


class Append(msgspec.Struct, frozen=True):
    """Something to append. Without bodies it is a barrier."""

    bodies: Sequence[bytes] = ()
    id: MessageUuid = NO_ID
    """Of the first body; each further one is a tick later."""
    check: Selector | None = None
    union: Labels = {}
    subtract: Labels = {}
    at: int | None = None
    """The offset that the head must have."""

    def __post_init__(self) -> None:
        if not self.bodies and (self.union or self.subtract):
            raise ValueError("registers can be changed only together with an append of at least one body")


class Commit(NamedTuple):
    """Where an append lies, and the registers right after it. A barrier's `begin` is its `end`: the head."""

    begin: int
    end: int
    registers: Registers


class LogReader(ABC):
    """Reads frames from an offset on, while others append."""

    offset: int
    """Up to where has been read."""

    @abstractmethod
    def read(self) -> Frame | None:
        """The next frame; None when there is none yet.

        Raises JournalDamaged or JournalGap where something is damaged or missing: once for each such place, the
        next call goes on behind it.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files."""

    def __iter__(self) -> Iterator[Frame]:
        """The frames that are there now."""
        while (frame := self.read()) is not None:
            yield frame


class Log(ABC):
    """Appends are all-or-nothing, in the order given, and never change. Offsets only grow.

    A failed append may still have been applied, unless it failed with RegisterMismatch, WrongOffset or
    JournalFull. Any number of logs, in any number of processes, may share the files of one journal.
    """

    name: str
    instant: bool
    """Whether calls return at once, so that they need no thread."""

    def append(
        self,
        bodies: Sequence[bytes],
        *,
        id: MessageUuid = NO_ID,
        check: Selector | None = None,
        union: Labels | None = None,
        subtract: Labels | None = None,
        at: int | None = None,
    ) -> Commit:
        """Append bodies as one frame and change the registers, in one step, if the check passes.

        Raises RegisterMismatch, which is Fenced, when it does not; WrongOffset when the head is not `at`.
        """
        (answer,) = self.append_all([Append(bodies, id, check, union or {}, subtract or {}, at)])
        if isinstance(answer, ConduitError):
            raise answer
        return answer

    def barrier(self) -> Commit:
        """Wait until every earlier append is as durable as the policy makes it; return the head and the registers."""
        return self.append(())

    @abstractmethod
    def append_all(self, appends: Sequence[Append]) -> list[Commit | ConduitError]:
        """Make appends one after another, with one write and at most one fsync.

        The result of an append that is refused is its error. An error that is raised concerns all of them.
        """

    @abstractmethod
    def reader(self, offset: int = 0) -> LogReader:
        """Read from a frame on; 0 is the oldest one there is, HEAD the next to come."""

    @abstractmethod
    def backward(self) -> Iterator[Frame]:
        """The frames that are there now, the newest first."""

    @abstractmethod
    def prune(self, before: int) -> int:
        """Delete whole segments before an offset. Returns the offset of the oldest frame that is left."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def registers_for(journal: str, append: Append, head: int, registers: Registers) -> Registers:
    """The registers after an append, or the reason why it cannot be made."""
    # Before the offset: a fenced writer must not take a moved head for a reason to try again.
    if append.check is not None and not holds(registers, append.check):
        raise RegisterMismatch(journal, append.check, registers)
    if append.at is not None and append.at != head:
        raise WrongOffset(journal, append.at, head)
    if append.union or append.subtract:
        return apply_changes(registers, append.union, append.subtract)
    return registers


BATCH_SIZE_MAX = 64


class FrameBatchReader:
    """Reads batches of frames, up to an offset if there is one. It owns the reader and closes it.

    The frames before damage are returned first: the next call raises the error, once, as the reader does.
    """

    def __init__(self, reader: LogReader, end: int | None = None) -> None:
        self._reader = reader
        self._end = end
        self._error: ConduitError | None = None

    @property
    def ended(self) -> bool:
        """Whether everything before the end was read."""
        return self._error is None and self._end is not None and self._reader.offset >= self._end

    def read(self) -> list[Frame]:
        """The next frames; none when there are none now."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        frames: list[Frame] = []
        try:
            while len(frames) < BATCH_SIZE_MAX and not self.ended and (frame := self._reader.read()) is not None:
                frames.append(frame)
        except ConduitError as error:
            if self._is_past_end(error):
                return frames
            if not frames:
                raise
            self._error = error
        return frames

    def _is_past_end(self, error: ConduitError) -> bool:
        """Whether this is about what comes after the end."""
        if self._end is None or not isinstance(error, JournalDamaged | JournalGap):
            return False
        return error.begin >= self._end

    def close(self) -> None:
        self._reader.close()


class MemoryLog(Log):
    """Keeps every promise of a log except durability. Prunes frame by frame."""

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
