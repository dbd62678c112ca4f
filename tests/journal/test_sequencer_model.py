"""GZ-S12: whatever the window and wherever it is restarted, a sequencer delivers what was committed, once, in order."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.journal.frame import Frame, pack_bodies
from conduit_py.journal.message_id import TICK, Flag, MessageUuid, ProducerId
from conduit_py.journal.sequencer import Sequencer

JOURNAL = "model"
PRODUCERS = [ProducerId(b"\x01prod" + letter) for letter in (b"A", b"B", b"C")]


@dataclass
class Writer:
    """A producer that keeps the rules: clocks grow, a retry repeats whole appends, an ACK commits or rolls back."""

    last_ack: int | None = None
    clock: int = 0
    open: list[tuple[int, int]] = field(default_factory=list)
    """The appends of the open transaction: first clock and count."""

    def take(self, count: int) -> int:
        first = self.clock + TICK
        self.clock += TICK * count
        return first


@dataclass
class Log:
    """A well-formed journal, and what a reader of it must see."""

    frames: list[Frame] = field(default_factory=list)
    committed: list[tuple[bytes, int]] = field(default_factory=list)

    def append(self, producer: ProducerId, first: int, count: int, flag: Flag) -> None:
        begin = 100 * len(self.frames)
        self.frames.append(Frame(JOURNAL, begin, begin + 100, MessageUuid(producer, first, flag), count, bodies(count)))

    def commit(self, producer: bytes, first: int, count: int) -> None:
        self.committed += [(producer, first + TICK * i) for i in range(count)]


def bodies(count: int) -> bytes:
    return pack_bodies([b"x"] * count)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log, writers = Log(), [Writer() for _ in PRODUCERS]
    actions = st.sampled_from(["continue"] * 5 + ["retry", "ack", "ack", "ack again", "outside", "outside again"])
    for _ in range(draw(st.integers(0, 40))):
        index = draw(st.integers(0, len(PRODUCERS) - 1))
        act(log, PRODUCERS[index], writers[index], draw(actions), draw(st.integers(1, 4)))
    return log


def act(log: Log, producer: ProducerId, writer: Writer, action: str, count: int) -> None:
    if action == "continue":
        first = writer.take(count)
        writer.open.append((first, count))
        log.append(producer, first, count, Flag.CONTINUE)
    elif action == "retry":
        # A writer that does not know what of its last appends arrived repeats them from one on.
        for first, size in writer.open[-count:]:
            log.append(producer, first, size, Flag.CONTINUE)
    elif action == "ack":
        first = writer.take(1)
        for opened in writer.open:
            log.commit(producer, *opened)
        log.commit(producer, first, 1)
        log.append(producer, first, 1, Flag.ACK)
        writer.open, writer.last_ack = [], first
    elif action == "ack again" and writer.last_ack is not None:
        log.append(producer, writer.last_ack, 1, Flag.ACK)
        writer.open = []
    elif action == "outside" and not writer.open:
        first = writer.take(count)
        log.commit(producer, first, count)
        log.append(producer, first, count, Flag.OUTSIDE)
        writer.last_ack = writer.clock
        if not count % 2:
            log.append(producer, first, count, Flag.OUTSIDE)


@settings(max_examples=300, deadline=None)
@given(logs(), st.integers(0, 12), st.sets(st.integers(0, 200)))
def test_gz_s12_window_and_restarts_change_nothing(log: Log, window: int, restarts: set[int]) -> None:
    assert read(log, window, restarts) == log.committed


def read(log: Log, window: int, restarts: set[int]) -> list[tuple[bytes, int]]:
    """Read the log, throwing the sequencer away for its checkpoint at every `restarts`th event."""
    sequencer, seen, event = Sequencer(JOURNAL, window=window), list[tuple[bytes, int]](), 0
    while frame := next((each for each in log.frames if each.begin >= sequencer.offset), None):
        sequencer.queue(frame)
        if sequencer.replay_range is not None:
            begin, end = sequencer.replay_range
            sequencer.replay([each for each in log.frames if begin <= each.begin and each.end <= end])
        processed: list[tuple[bytes, int]] = []
        while (found := sequencer.step()) is not None:
            # Stepping past the last slice is what counts it as processed.
            seen += processed
            processed = [
                (found.frame.id.producer, found.frame.id.later(i).clock) for i in range(found.first, found.stop)
            ]
            event += 1
            if event in restarts:
                break
        else:
            seen += processed
            event += 1
        if event in restarts:
            sequencer = Sequencer(JOURNAL, sequencer.checkpoint(), window=window)
    return seen
