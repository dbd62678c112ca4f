"""Ledger: per source, who still has to say what about every message read and not yet settled."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from conduit_py.batch import Batch, Fate, Piece, Span
from conduit_py.dead_letter import DeadLetter


class SettledRange(NamedTuple):
    """Consecutive settled messages of one span: their positions, and letters for those that were nacked."""

    span: Span
    start: int
    stop: int
    nacks: list[DeadLetter]

    @property
    def positions(self) -> Sequence[bytes]:
        return self.span.positions[self.start : self.stop]

    @property
    def records(self) -> int:
        """How many records the messages stand for."""
        sizes = self.span.sizes
        return self.stop - self.start if sizes is None else sum(sizes[self.start : self.stop])

    def records_before(self, sequence: int) -> int:
        """How many records the messages before this one stand for."""
        sizes, index = self.span.sizes, sequence - self.span.first
        return index - self.start if sizes is None else sum(sizes[self.start : index])


class Ledger:
    """The votes outstanding on the messages of one source.

    Every destination that a message can reach has one vote on each of its pieces: it acks or nacks.
    A node that ends a message before its destinations casts their votes. A message is settled when
    no vote is outstanding: nacked if any vote was a nack, else acked (invariants 4 and 5). `settled_ranges`
    gives only the run of settled messages that begins at the oldest one (invariants 2 and 3), and
    messages count against the window until they are released (invariant 6).

    Messages that travel together are voted on together: a span is one countdown, and what each message
    still waits for is worked out only when a span is settled in part.
    """

    def __init__(
        self,
        pipeline: str,
        source: str,
        voters: int,
        window: int,
        *,
        scope: str = "",
        on_settled: Callable[[], None] = lambda: None,
        on_released: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_settled` is called when the oldest message may be settled, `on_released` when there is more credit.

        `scope` names the work of a source that shares it with other pipelines.
        """
        self._pipeline = pipeline
        self._source = source
        self._scope = scope
        self._voters = voters
        self._window = window
        self.on_settled = on_settled
        self._on_released = on_released
        self.on_quiet: Callable[[], None] = lambda: None
        self.may_hold = False
        """Whether some messages may be held for the next transaction: then `on_quiet` is called for every vote."""
        # Not a plain dict: looking for the oldest entry there passes over every one that was released before it.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._next_sequence = 0
        self._unsettled = 0
        self.in_flight = 0

    @property
    def credit(self) -> int:
        """How many more messages may be read now."""
        return self._window - self.in_flight

    @property
    def oldest_read_at(self) -> float | None:
        """When the oldest message that is not released was read."""
        oldest = next(iter(self._entries.values()), None)
        return oldest.span.read_at if oldest is not None else None

    @property
    def next_sequence(self) -> int:
        """The sequence of the message that will set out next."""
        return self._next_sequence

    def has_before(self, sequence: int) -> bool:
        """Whether a message that set out before this one is not released yet."""
        return next(iter(self._entries), sequence) < sequence

    @property
    def quiet(self) -> bool:
        """Whether everything that has set out is settled; when it becomes so, `on_quiet` is called."""
        return self._unsettled == 0

    def quiet_but_for(self, held: Mapping[int, int]) -> bool:
        """Whether nothing is outstanding but so many votes on these spans, each given by its first message."""
        outstanding = (self._entries[first].outstanding == votes for first, votes in held.items())
        return self._unsettled == len(held) and all(outstanding)

    def admit(self, count: int) -> None:
        """Count messages that have been read, before they set out."""
        # Invariant 6: this is the only place where messages enter, and they leave when they are settled.
        assert 0 < count <= self.credit, f"{count} messages admitted with a credit of {self.credit}"
        self.in_flight += count

    def register(self, positions: Sequence[bytes], read_at: float = 0.0) -> Span:
        """Give admitted messages their identities: they set out now, in this order."""
        span = Span(self._pipeline, self._source, self._next_sequence, positions, read_at)
        span.scope = self._scope
        self._next_sequence += len(positions)
        self._entries[span.first] = _Entry(span, len(positions) * self._voters.bit_count())
        self._unsettled += 1
        return span

    def ack(self, batch: Batch, voters: int) -> None:
        """Cast an ack of each of `voters` for every message of the batch. Filtered is acked."""
        self._vote(batch.span, batch.sequences, voters)

    def ack_some(self, span: Span, sequences: Sequence[int], voters: int) -> None:
        """As `ack`, for the messages (or pieces: a sequence may repeat) with these sequences."""
        if sequences:
            self._vote(span, sequences, voters)

    def nack(self, span: Span, letter: DeadLetter, voters: int) -> None:
        """Cast a nack of each of `voters`. The first letter about a message is kept, later failures join it."""
        sequence, which = letter.message.sequence, (letter.record_index, letter.message.piece)
        letters = self._entry(span).nacks.setdefault(sequence, {})
        # Invariant 5: several destinations may nack a message, and it becomes one dead letter.
        if which in letters:
            letters[which].join(letter)
        else:
            letters[which] = letter
        self._vote(span, (sequence,), voters)

    def split(self, span: Span, sequence: int, extra: int, voters: int) -> None:
        """Expect `voters` to vote on `extra` more pieces of a message. Must precede their votes."""
        assert extra > 0
        self._entry(span).expect((sequence,), -extra * voters.bit_count())

    def settled_ranges(self) -> list[SettledRange]:
        """The longest run of settled messages from the oldest unreleased one on."""
        ranges = []
        for entry in self._entries.values():
            stop = entry.settle_stop(self._voters)
            if stop > entry.released:
                ranges.append(entry.settled_range(stop))
            # Invariants 2 and 3: nothing behind an unsettled message, or its ack would skip that one.
            if stop < len(entry.span):
                break
        return ranges

    def release(self, count: int) -> None:
        """Forget the oldest `count` messages, which must be settled: their credit may be used again."""
        self.in_flight -= count
        while count:
            entry = next(iter(self._entries.values()))
            taken = min(count, len(entry.span) - entry.released)
            assert entry.settle_stop(self._voters) >= entry.released + taken
            entry.released += taken
            count -= taken
            if entry.released == len(entry.span):
                del self._entries[entry.span.first]
        self._on_released()
        # The entry that is now the oldest may have been settled while it was not, and nobody was told.
        oldest = next(iter(self._entries.values()), None)
        if oldest is not None and oldest.may_settle(self._voters):
            self.on_settled()

    def _vote(self, span: Span, sequences: Sequence[int], voters: int) -> None:
        entry = self._entry(span)
        entry.expect(sequences, voters.bit_count())
        entry.voted |= voters
        if span.fate_handlers:
            self._tell(entry, sequences)
        # A writer that refused a whole batch acks the rest of it, which is nothing: that is no second end.
        if entry.outstanding == 0 and sequences:
            self._unsettled -= 1
            if self._unsettled == 0:
                self.on_quiet()
        if self.may_hold:
            self.on_quiet()
        if entry.may_settle(self._voters) and entry is next(iter(self._entries.values())):
            self.on_settled()

    def _tell(self, entry: "_Entry", sequences: Sequence[int]) -> None:
        """Run the handlers of messages that this vote settled, last registered first, each of them."""
        counts = entry.outstanding_each()
        errors = []
        for sequence in dict.fromkeys(sequences):
            if counts[sequence - entry.span.first]:
                continue
            fate = Fate.NACKED if sequence in entry.nacks else Fate.ACKED
            for message, handler in reversed(entry.span.fate_handlers.pop(sequence, ())):
                try:
                    handler(message, fate)
                except Exception as error:  # a border: the handler is the user's
                    errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several fate handlers failed", errors)

    def _entry(self, span: Span) -> "_Entry":
        entry = self._entries.get(span.first)
        # Invariant 4: a message that has its fate is never voted on again.
        assert entry is not None, f"a vote on messages of {self._source} that are already settled"
        return entry


class _Entry:
    """One span and the votes outstanding on it.

    The votes are kept as they came until somebody must know about single messages; from then on as a
    count for each.
    """

    __slots__ = ("_counts", "_log", "_settled", "nacks", "outstanding", "released", "span", "voted")

    def __init__(self, span: Span, outstanding: int) -> None:
        self.span = span
        self.outstanding = outstanding
        self.voted = 0
        self.released = 0
        self.nacks: dict[int, dict[tuple[int, Piece], DeadLetter]] = {}
        """By message, a letter for each record that it stands for and each piece of that."""
        self._log: list[tuple[Sequence[int], int]] = []
        self._counts: list[int] | None = None
        self._settled = 0

    def expect(self, sequences: Sequence[int], fewer: int) -> None:
        """Expect so many votes fewer (or, if negative, more) on each of these messages."""
        self.outstanding -= len(sequences) * fewer
        assert self.outstanding >= 0, f"{self.span.source}: more votes than messages"
        self._log.append((sequences, fewer))

    def may_settle(self, voters: int) -> bool:
        """False while some destination has not voted on any message, so none can be settled."""
        return self.outstanding == 0 or self.voted == voters

    def settle_stop(self, voters: int) -> int:
        """The index of the first message that is not settled."""
        if self.outstanding == 0:
            return len(self.span)
        if self.voted != voters:
            return 0
        counts = self.outstanding_each()
        while counts[self._settled] == 0:
            self._settled += 1
        return self._settled

    def outstanding_each(self) -> list[int]:
        """The votes outstanding on each message; every vote since the last call is counted now."""
        if self._counts is None:
            said = sum(len(sequences) * fewer for sequences, fewer in self._log)
            self._counts = [(self.outstanding + said) // len(self.span)] * len(self.span)
        counts, first = self._counts, self.span.first
        for sequences, fewer in self._log:
            for sequence in sequences:
                counts[sequence - first] -= fewer
        self._log.clear()
        return counts

    def settled_range(self, stop: int) -> SettledRange:
        first = self.span.first
        nacks: list[DeadLetter] = []
        if self.nacks:
            for sequence in sorted(self.nacks):
                if self.released <= sequence - first < stop:
                    letters = self.nacks[sequence]
                    nacks.extend(letters[which] for which in sorted(letters))
        return SettledRange(self.span, self.released, stop, nacks)
