"""Sequencer: turns the messages of a journal, as they lie there, into those that are committed, each once.

Producers publish CONTINUE messages and an ACK that commits them; they crash, repeat themselves and leave
transactions open. For each producer the sequencer keeps how far it was acknowledged, and where its open
span of CONTINUE messages begins. It keeps recent frames in a bounded window. When an ACK commits a span
that has left the window, the caller must replay that part of the journal.

It decides about whole frames, which is the same as deciding about their messages one after another: the
messages of a frame have one producer, the same flags and growing clocks.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from conduit_py.errors import FatalError
from conduit_py.journal.frame import Frame
from conduit_py.journal.message_id import HUNDRED_NANOSECONDS, TICK, Flag, ProducerId

_CONTINUE, _ACK = int(Flag.CONTINUE), int(Flag.ACK)

NONE = -1
"""The `begin` of a producer without an open span."""
WINDOW = 8192
WINDOW_BYTES = 64 * 2**20
HORIZON = 24 * 3600 * 10_000_000
"""A day, in 100 ns: producers that were silent for so long are forgotten."""


class FrameOutcome(Enum):
    """What became of a queued frame. After one that commits, `step` until there is nothing left."""

    OUTSIDE_COMMIT = "outside-commit"
    OUTSIDE_ALREADY_ACKED = "outside-already-acked"
    CONTINUE_BEGIN = "continue-begin"
    CONTINUE_EXTEND = "continue-extend"
    CONTINUE_ALREADY_ACKED = "continue-already-acked"
    CONTINUE_DUPLICATE = "continue-duplicate-in-span"
    ACK_COMMIT_WINDOW = "ack-commit-window"
    ACK_COMMIT_REPLAY = "ack-commit-replay"
    """`replay` must be given the frames of `replay_range` before the first `step`."""
    ACK_EMPTY = "ack-empty"
    ACK_ROLLBACK = "ack-rollback"


class Slice(NamedTuple):
    """Committed messages: `frame.bodies[first:stop]`."""

    frame: Frame
    first: int
    stop: int


class ProducerState(NamedTuple):
    """The durable state of a producer: up to where it was acknowledged, and where its open span begins."""

    producer: ProducerId
    last_ack: int
    begin: int


class Checkpoint(NamedTuple):
    """Where a sequencer resumes. It then gives the same messages as one that never stopped."""

    offset: int = 0
    producers: tuple[ProducerState, ...] = ()


class ReplayInvalid(FatalError):
    """The frames given to `replay` are not those of `replay_range`."""

    code = "journal.replay_invalid"


class _Producer:
    __slots__ = ("begin", "last_ack", "max_clock", "span")

    def __init__(self, last_ack: int, begin: int = NONE) -> None:
        self.last_ack = last_ack
        self.max_clock = last_ack
        self.begin = begin
        # The frames of the open span that are still in the window: always its last ones.
        self.span: deque[Frame] = deque()


class Sequencer:
    """Reads one journal. `offset` is up to where it has been read: a run counts when it is drained.

    Invariant I9: while a run is drained, `last_ack` and `begin` follow slice by slice. So a checkpoint inside it
    resumes at the first slice after which `step` was not called again.
    """

    def __init__(
        self,
        journal: str,
        checkpoint: Checkpoint | None = None,
        *,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        checkpoint = checkpoint or Checkpoint()
        self.journal = journal
        self.offset = checkpoint.offset
        self._producers = {each.producer: _Producer(each.last_ack, each.begin) for each in checkpoint.producers}
        self._pending: set[ProducerId] = set()
        self._window = max(window, 1)
        self._window_bytes = window_bytes
        # Frames leave the window in the order they came, whatever has become of them.
        self._ring: deque[tuple[_Producer, Frame]] = deque()
        self._in_ring = self._bytes_in_ring = 0
        self._run: _Run | None = None

    @property
    def pending(self) -> bool:
        """Whether spans have begun since the last checkpoint that are still open."""
        return bool(self._pending)

    @property
    def draining(self) -> bool:
        return self._run is not None

    @property
    def replay_range(self) -> tuple[int, int] | None:
        """What `replay` has to be given, for a commit that needs it."""
        return self._run.replay_range if self._run is not None else None

    def queue(self, frame: Frame) -> FrameOutcome:
        """Take the next frame of the journal. The run of an earlier one must be drained."""
        assert self._run is None, "the run of the last frame is not drained"
        assert frame.journal == self.journal, f"a frame of {frame.journal}, not of {self.journal}"
        self._make_room(frame)
        id, clock, flags = frame.id
        if not clock:
            return self._commit(_Producer(NONE), frame, FrameOutcome.OUTSIDE_COMMIT)
        producer = self._producers.get(id)
        if producer is None:
            # Just below its first clock, so that everything from it on is new.
            producer = self._producers[id] = _Producer(clock - 1)
        if flags == _CONTINUE:
            return self._continue(producer, frame)
        return self._ack(producer, frame) if flags == _ACK else self._outside(producer, frame)

    def replay(self, frames: Iterable[Frame]) -> None:
        """Give the frames of `replay_range`, in order, before the first `step` of the run."""
        assert self._run is not None, "nothing asked for a replay"
        self._run.replay = iter(frames)

    def step(self) -> Slice | None:
        """The next messages of the run; None when it is drained. What was returned before counts as processed."""
        run = self._run
        if run is None:
            return None
        producer = run.producer
        if run.returned is not None:
            # Invariant I9: that `step` is called again shows that the last slice was processed.
            producer.last_ack = run.returned
            run.returned = None
        while (frame := run.next_frame()) is not None:
            clock, last_ack, max_clock = frame.id.clock, producer.last_ack, producer.max_clock
            if not clock:
                return Slice(frame, 0, frame.count)
            # Skip repetitions, from the replay or across a checkpoint, and what the ACK does not cover.
            first = 0 if clock > last_ack else (last_ack - clock) // TICK + 1
            stop = min(frame.count, (max_clock - clock) // TICK + 1)
            if first < stop:
                producer.begin = frame.begin
                run.returned = clock + TICK * (stop - 1)
                return Slice(frame, first, stop)
        self._end_run(run)
        return None

    def checkpoint(self, horizon: int | None = None) -> Checkpoint:
        """Where to go on from. Spans that are open now are no longer `pending`.

        With a `horizon`, in 100 ns, producers are forgotten whose last message is older than the newest
        acknowledged one by more than that. Their open spans are lost: an ACK that comes later commits nothing.
        """
        self._pending.clear()
        if horizon is not None and self._producers:
            newest = max(each.last_ack for each in self._producers.values())
            oldest = newest - horizon * HUNDRED_NANOSECONDS
            self._producers = {id: each for id, each in self._producers.items() if each.max_clock >= oldest}
        return Checkpoint(self.offset, self.producers())

    def producers(self) -> tuple[ProducerState, ...]:
        """The states as they are now."""
        return tuple(ProducerState(id, each.last_ack, each.begin) for id, each in self._producers.items())

    def _outside(self, producer: _Producer, frame: Frame) -> FrameOutcome:
        if frame.last_clock <= producer.last_ack:
            self.offset = frame.end
            return FrameOutcome.OUTSIDE_ALREADY_ACKED
        # An open transaction of this producer is dropped: only an ACK would have committed it.
        producer.span.clear()
        producer.begin = NONE
        producer.max_clock = frame.last_clock
        return self._commit(producer, frame, FrameOutcome.OUTSIDE_COMMIT)

    def _continue(self, producer: _Producer, frame: Frame) -> FrameOutcome:
        last = frame.last_clock
        self.offset = frame.end
        if last <= producer.last_ack:
            return FrameOutcome.CONTINUE_ALREADY_ACKED
        # A repetition within the open span: kept a second time, it would be delivered twice.
        if last <= producer.max_clock:
            return FrameOutcome.CONTINUE_DUPLICATE
        producer.max_clock = last
        self._retain(producer, frame)
        if producer.begin != NONE:
            return FrameOutcome.CONTINUE_EXTEND
        producer.begin = frame.begin
        self._pending.add(frame.id.producer)
        return FrameOutcome.CONTINUE_BEGIN

    def _ack(self, producer: _Producer, frame: Frame) -> FrameOutcome:
        clock = frame.id.clock
        if clock <= producer.last_ack:
            # The ACK is sent again after a crash: what its producer published after it was never acknowledged.
            producer.last_ack = producer.max_clock = clock
            producer.begin = NONE
            producer.span.clear()
            self._pending.discard(frame.id.producer)
            self.offset = frame.end
            return FrameOutcome.ACK_ROLLBACK
        producer.max_clock = clock
        if producer.begin == NONE:
            return self._commit(producer, frame, FrameOutcome.ACK_EMPTY)
        begin, in_window = producer.begin, producer.span[0].begin if producer.span else frame.begin
        if begin >= in_window:
            return self._commit(producer, frame, FrameOutcome.ACK_COMMIT_WINDOW)
        return self._commit(producer, frame, FrameOutcome.ACK_COMMIT_REPLAY, (begin, in_window))

    def _commit(
        self, producer: _Producer, frame: Frame, outcome: FrameOutcome, replay_range: tuple[int, int] | None = None
    ) -> FrameOutcome:
        self._retain(producer, frame)
        self._run = _Run(producer, frame, replay_range)
        return outcome

    def _end_run(self, run: "_Run") -> None:
        run.producer.begin = NONE
        run.producer.span.clear()
        self._pending.discard(run.frame.id.producer)
        self.offset = run.frame.end
        self._run = None

    def _retain(self, producer: _Producer, frame: Frame) -> None:
        producer.span.append(frame)
        self._ring.append((producer, frame))
        self._in_ring += frame.count
        self._bytes_in_ring += frame.size

    def _make_room(self, frame: Frame) -> None:
        """Make room for a frame, even for a repetition that is not kept: the decision comes later."""
        ring, count_max, bytes_max = self._ring, self._window - frame.count, self._window_bytes - frame.size
        while ring and (self._in_ring > count_max or self._bytes_in_ring > bytes_max):
            producer, oldest = ring.popleft()
            self._in_ring -= oldest.count
            self._bytes_in_ring -= oldest.size
            if producer.span and producer.span[0] is oldest:
                producer.span.popleft()


class _Run:
    """The committed messages of one producer that are being drained."""

    __slots__ = ("frame", "producer", "replay", "replay_range", "returned")

    def __init__(self, producer: _Producer, frame: Frame, replay_range: tuple[int, int] | None) -> None:
        self.producer = producer
        self.frame = frame
        self.replay_range = replay_range
        self.replay: Iterator[Frame] | None = None
        self.returned: int | None = None

    def next_frame(self) -> Frame | None:
        """The frames of the producer: first those of the replay, then those in the window."""
        if self.replay_range is not None:
            assert self.replay is not None, "this run needs a replay"
            for frame in self.replay:
                self._check(frame, *self.replay_range)
                if frame.id.producer == self.frame.id.producer:
                    return frame
            self.replay_range = None
        span = self.producer.span
        return span.popleft() if span else None

    def _check(self, frame: Frame, begin: int, end: int) -> None:
        if frame.journal != self.frame.journal:
            raise ReplayInvalid(f"the replay has a frame of journal {frame.journal!r}, not {self.frame.journal!r}")
        if frame.begin < begin:
            raise ReplayInvalid(f"the replay has a frame that begins at {frame.begin}, before {begin}")
        if frame.end > end:
            raise ReplayInvalid(f"the replay has a frame that ends at {frame.end}, past {end}")
