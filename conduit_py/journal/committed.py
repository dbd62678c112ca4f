"""CommittedReader: the messages of a journal that are committed, each once, in the order of their commits."""

from collections.abc import Iterator

from conduit_py.journal.frame import Frame
from conduit_py.journal.log import Log
from conduit_py.journal.message_id import Flag
from conduit_py.journal.sequencer import WINDOW, Checkpoint, Sequencer, Slice


def read_uncommitted(log: Log, begin: int = 0, end: int | None = None) -> Iterator[Slice]:
    """Every message that is there now, as it lies in the journal, in `[begin, end)`."""
    for frame in frames_between(log, begin, end):
        yield Slice(frame, 0, frame.count)


def frames_between(log: Log, begin: int, end: int | None = None) -> Iterator[Frame]:
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
    """Reads on from a checkpoint. ACKs are not shown: they say that something is committed, and are nothing else."""

    def __init__(self, log: Log, checkpoint: Checkpoint | None = None, *, window: int = WINDOW) -> None:
        self.log = log
        self.sequencer = Sequencer(log.name, checkpoint, window=window)
        self._reader = log.reader(self.sequencer.offset)

    def read(self) -> Slice | None:
        """The next committed messages; None when there are none yet.

        The messages returned before count as processed. Raises what reading the journal raises: see Reader.
        """
        sequencer = self.sequencer
        while True:
            while (found := sequencer.step()) is not None:
                if found.frame.id.flags != _ACK:
                    return found
            frame = self._reader.read()
            if frame is None:
                return None
            sequencer.queue(frame)
            if sequencer.replay_range is not None:
                sequencer.replay(frames_between(self.log, *sequencer.replay_range))

    @property
    def ended(self) -> bool:
        """Whether nothing is left of the run that is being read: what follows is of other transactions."""
        return not self.sequencer.draining

    def close(self) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[Slice]:
        """What is committed now."""
        while (found := self.read()) is not None:
            yield found


_ACK = int(Flag.ACK)
