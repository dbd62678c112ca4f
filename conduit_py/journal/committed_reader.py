"""CommittedReader: the messages of a journal that are committed, each once, in the order of their commits."""

from collections.abc import Iterator
from typing import Protocol

from conduit_py.journal.frame import Frame
from conduit_py.journal.log import LogReader
from conduit_py.journal.message_id import Flag
from conduit_py.journal.sequencer import WINDOW, Checkpoint, Sequencer, Slice


class Readable(Protocol):
    """A journal to read from: a log, or only the files of one."""

    @property
    def name(self) -> str: ...

    def reader(self, offset: int = 0) -> LogReader: ...


def read_uncommitted(log: Readable, begin: int = 0, end: int | None = None) -> Iterator[Slice]:
    """Every message that is there now, as it lies in the journal, in `[begin, end)`."""
    for frame in frames_between(log, begin, end):
        yield Slice(frame, 0, frame.count)


def frames_between(log: Readable, begin: int, end: int | None = None) -> Iterator[Frame]:
    """The frames in `[begin, end)` that are there now."""
    reader = log.reader(begin)
    try:
        while end is None or reader.offset < end:
            frame = reader.read()
            if frame is None or (end is not None and frame.begin >= end):
                return
            yield frame
    finally:
        reader.close()


class CommittedReader:
    """Reads on from a checkpoint. ACKs are not returned: they only commit other messages."""

    def __init__(self, log: Readable, checkpoint: Checkpoint | None = None, *, window: int = WINDOW) -> None:
        self.log = log
        self.sequencer = Sequencer(log.name, checkpoint, window=window)
        self._reader = log.reader(self.sequencer.offset)
        self._ahead: Slice | None = None

    @property
    def offset(self) -> int:
        """Up to where the journal was read, even if nothing there is committed yet."""
        return self._reader.offset

    def read(self) -> Slice | None:
        """The next committed messages; None when there are none yet.

        The messages returned before count as processed. Raises what reading the journal raises: see LogReader.
        """
        found, self._ahead = self._ahead or self._step(), None
        while found is None:
            frame = self._reader.read()
            if frame is None:
                return None
            self.sequencer.queue(frame)
            # The span is longer than the window: its first frames must be read again.
            if self.sequencer.replay_range is not None:
                self.sequencer.replay(frames_between(self.log, *self.sequencer.replay_range))
            found = self._step()
        return found

    def at_end_of_run(self) -> bool:
        """Whether `read` returned the last messages of their run: then the sequencer's checkpoint is past the run.

        This looks ahead, so what was returned counts as processed from here on.
        """
        if self._ahead is None:
            self._ahead = self._step()
        return self._ahead is None

    def _step(self) -> Slice | None:
        while (found := self.sequencer.step()) is not None:
            if found.frame.id.flags != _ACK:
                return found
        return None

    def close(self) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[Slice]:
        """What is committed now."""
        while (found := self.read()) is not None:
            yield found


_ACK = int(Flag.ACK)
