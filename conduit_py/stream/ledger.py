"""Ledger: the votes outstanding on every message of a source that is read and not yet settled."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from conduit_py.batch import Fate, Piece, Span
from conduit_py.dead_letter import DeadLetter
from conduit_py.user_errors import as_error


class SettledRange(NamedTuple):
    """Consecutive settled messages of one span: their positions, and the letters of the nacked ones."""

    span: Span
    start: int
    stop: int
    nacks: list[DeadLetter]

    @property
    def positions(self) -> Sequence[bytes]:
        return self.span.positions[self.start : self.stop]

    @property
    def records(self) -> int:
        """The number of records in the messages; 0 if it is progress without a record."""
        sizes = self.span.sizes
        return self.stop - self.start if sizes is None else sum(sizes[self.start : self.stop])

    def records_before(self, sequence: int) -> int:
        """Return the number of records in the messages before this one."""
        sizes, index = self.span.sizes, sequence - self.span.first
        return index - self.start if sizes is None else sum(sizes[self.start : index])


class Ledger:
    """The votes outstanding on the messages of one source.

    Every destination that a message can reach has one vote on each of its pieces: it acks or nacks.
    A node that ends a message early casts the votes of the destinations behind it. A message is settled when no vote is
    outstanding: nacked if any vote was a nack, otherwise acked (invariants 4 and 5). `settled_ranges` returns only the
    run of settled messages from the oldest one (invariants 2 and 3). Messages count against the window until they are
    released (invariant 6).

    A span has one counter of outstanding votes. Counts for single messages are computed only if it is settled in part.
    """

    def __init__(
        self,
        pipeline: str,
        source: str,
        voters: int,
        window: int,
        *,
        scope: str = "",
        atomic: bool = False,
        on_settled: Callable[[], None] = lambda: None,
        on_released: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a ledger. It calls `on_settled` when the oldest message may be settled, `on_released` when credit grows.

        `scope` names the work that several pipelines share. With `atomic` a span returns its credit when it is settled.
        """
        self._pipeline = pipeline
        self._source = source
        self._scope = scope
        self._voters = voters
        self._atomic = atomic
        self._joined: _Entry | None = None
        self.on_settled = on_settled
        self._on_released = on_released
        self.on_quiet: Callable[[], None] = lambda: None
        self.may_hold = False
        """True if messages may be held for the next transaction; then every vote calls `on_quiet`."""
        # Not a plain dict: finding its first key is linear in the number of keys deleted before it.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self.next_sequence = 0
        """The sequence of the next message to be registered."""
        self.is_closed = False
        """True if no more messages will be registered."""
        self._unsettled = 0
        self.progress = 0
        """The number of positions without a record that are registered and not released."""
        self.in_flight = 0
        self.credit = window
        """The number of messages that may be read now: the window without those in flight."""
        self.unwanted = 0
        """How many released messages no destination wanted: the conditions of all of them refused every piece."""

    @property
    def oldest_read_at(self) -> float | None:
        """The time at which the oldest unreleased message was read."""
        oldest = next((entry for entry in self._entries.values() if not entry.is_progress), None)
        return oldest.span.read_at if oldest is not None else None

    @property
    def only_progress(self) -> bool:
        """True if no message could be settled now, at most progress."""
        first = next((entry for entry in self._entries.values() if not entry.is_progress), None)
        return first is None or first.settle_stop(self._voters) <= first.released

    def has_before(self, sequence: int) -> bool:
        """Return True if a message with a lower sequence is not released yet."""
        return next(iter(self._entries), sequence) < sequence

    @property
    def quiet(self) -> bool:
        """True if every registered message is settled; `on_quiet` is called when this becomes true."""
        return self._unsettled == 0

    def quiet_but_for(self, held: Mapping[int, int]) -> bool:
        """Return True if only these votes are outstanding: `held` maps the first sequence of a span to its votes."""
        outstanding = (self._entries[first].outstanding == votes for first, votes in held.items())
        return self._unsettled == len(held) and all(outstanding)

    def admit(self, count: int) -> None:
        """Count messages against the window, as soon as they are read."""
        # Invariant 6: a read beyond the window is an error of ours, not a record to queue.
        assert 0 < count <= self.credit, f"{count} messages admitted with a credit of {self.credit}"
        self.in_flight += count
        self.credit -= count

    def register(self, positions: Sequence[bytes], read_at: float = 0.0) -> Span:
        """Give admitted messages their identities, in this order. Call this before they are sent."""
        span = Span(self._pipeline, self._source, self.next_sequence, positions, read_at, self._scope)
        self.next_sequence += (count := len(positions))
        self._entries[span.first] = _Entry(span, count * self._voters.bit_count(), count)
        self._unsettled += 1
        return span

    def register_progress(self, position: bytes, read_at: float = 0.0) -> None:
        """Register a position without a record. It is settled when everything registered before it is settled."""
        newest = next(reversed(self._entries.values()), None)
        if newest is not None and newest.is_progress and not newest.taken:
            # Invariant 6: only the newest counts, so a slow store does not let them fill the memory.
            newest.span.positions = (position,)
        else:
            # It has a sequence like a message, so it cannot overtake one. It stands for no record and needs no vote.
            first, self.next_sequence = self.next_sequence, self.next_sequence + 1
            span = Span(self._pipeline, self._source, first, (position,), read_at, self._scope, sizes=(0,))
            self._entries[first] = _Entry(span, 0, 1, is_progress=True)
            self.progress += 1
        if next(iter(self._entries.values())).is_progress:
            self.on_settled()

    def ack(self, span: Span, sequences: Sequence[int], voters: int, *, unwanted: bool = False) -> None:
        """Cast an ack of each of `voters` for the messages (or pieces: a sequence may repeat). Filtered is acked.

        With `unwanted` the voters are destinations whose conditions refuse the messages.
        """
        # Nothing to vote on, for example if a whole batch was refused: the span must not end a second time.
        if not (count := len(sequences)):
            return
        # As `_entry` does, without another call: this runs several times for every batch.
        entry = self._entries.get(span.first)
        assert entry is not None, f"a vote on messages of {self._source} that are already settled"
        votes = voters.bit_count()
        entry.outstanding -= count * votes
        # Invariant 4: a message with two answers from one destination would settle others too early.
        assert entry.outstanding >= 0, f"{self._source}: more votes than messages"
        entry.log.append((sequences, votes))
        entry.voted |= voters
        if unwanted:
            entry.unwanted.append((sequences, votes))
        if span.fate_handlers:
            self._call_fate_handlers(entry, sequences)
        if entry.outstanding == 0:
            self._unsettled -= 1
            if self._atomic:
                self._return_credit(entry)
            if self._unsettled == 0:
                self.on_quiet()
        if self.may_hold:
            self.on_quiet()
        oldest = next(iter(self._entries.values()))
        # None behind an open message is settled. With half of the window in flight, what is settled waits no more.
        must = entry is oldest or oldest.is_progress or (oldest.outstanding == 0 and self.credit <= self.in_flight)
        if must and (entry.outstanding == 0 or entry.voted == self._voters):
            self.on_settled()

    def nack(self, span: Span, letter: DeadLetter, voters: int) -> None:
        """Cast a nack of each of `voters`. Later failures of a message are added to its first letter."""
        sequence, which = letter.message.sequence, (letter.record_index, letter.message.piece)
        letters = self._entry(span).nacks.setdefault(sequence, {})
        # Invariant 5: several destinations may nack a message, and it becomes one dead letter.
        if which in letters:
            letters[which].join(letter)
        else:
            letters[which] = letter
        # The letter is what makes it a nack. It must be there first: this vote may settle the message.
        self.ack(span, (sequence,), voters)

    def split(self, span: Span, sequence: int, extra: int, voters: int) -> None:
        """Expect `voters` to vote on `extra` more pieces of a message. Call this before those votes."""
        assert extra > 0
        entry, votes = self._entry(span), extra * voters.bit_count()
        entry.outstanding += votes
        entry.log.append(((sequence,), -votes))
        entry.extra[sequence] = entry.extra.get(sequence, 0) + votes

    def settled_ranges(self) -> list[SettledRange]:
        """Return the longest run of settled messages that begins at the oldest unreleased one."""
        ranges = []
        for entry in self._entries.values():
            stop = entry.settle_stop(self._voters)
            if stop > entry.released:
                letters = entry.letters_until(stop) if entry.nacks else []
                ranges.append(SettledRange(entry.span, entry.released, stop, letters))
                entry.taken = True
            # Invariants 2 and 3: an open message holds back every later one, settled or not.
            if stop < entry.count:
                break
        return ranges

    def release(self, count: int) -> None:
        """Remove the oldest `count` messages, which must be settled, and return their credit."""
        while count:
            entry = next(iter(self._entries.values()))
            taken = min(count, entry.count - entry.released)
            # Invariant 2: an open message that is released would be skipped after a crash.
            assert not entry.outstanding or entry.settle_stop(self._voters) >= entry.released + taken
            entry.released += taken
            count -= taken
            if not entry.is_progress and not self._atomic:
                self.in_flight -= taken
                self.credit += taken
            if entry.released == entry.count:
                if entry.unwanted:
                    self.unwanted += entry.count_unwanted(self._voters.bit_count())
                del self._entries[entry.span.first]
                self.progress -= entry.is_progress
        self._on_released()
        # This entry may have been settled while an older one was open. No call was made then, so make it now.
        oldest = next(iter(self._entries.values()), None)
        if oldest is not None and oldest.settle_stop(self._voters) > oldest.released:
            self.on_settled()

    def _return_credit(self, entry: "_Entry") -> None:
        """Return the credit of a settled span, and keep only its last position, joined with the settled span before it.

        If the window had to hold a whole group, a large one would never end. Letters of nacks stay until the commit.
        """
        span, before = entry.span, self._joined
        self.in_flight -= len(span)
        self.credit += len(span)
        self._on_released()
        if entry.nacks or entry.released:
            return
        records = SettledRange(span, 0, len(span), []).records
        self.unwanted += entry.count_unwanted(self._voters.bit_count())
        if before is not None and before.stop == span.first and not before.taken:
            del self._entries[span.first]
            entry, records = before, records + sum(before.span.sizes or ())
        # Another Span: destinations may still hold the batch and ask for its positions.
        entry.span = msgspec.structs.replace(entry.span, positions=span.positions[-1:], sizes=(records,))
        entry.count, entry.stop, entry.log, entry.unwanted = 1, span.first + len(span), [], []
        self._joined = entry

    def _call_fate_handlers(self, entry: "_Entry", sequences: Sequence[int]) -> None:
        """Call every handler of the messages that this vote settled, the last registered first."""
        counts = entry.outstanding_each()
        errors = []
        for sequence in dict.fromkeys(sequences):
            if counts[sequence - entry.span.first]:
                continue
            fate = Fate.NACKED if sequence in entry.nacks else Fate.ACKED
            for message, handler in reversed(entry.span.fate_handlers.pop(sequence, ())):
                try:
                    handler(message, fate)
                except BaseException as error:  # plugin boundary: the handler is the user's
                    errors.append(as_error(error))
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("several fate handlers failed", errors)

    def _entry(self, span: Span) -> "_Entry":
        entry = self._entries.get(span.first)
        # Invariant 4: a settled message has its fate for ever.
        assert entry is not None, f"a vote on messages of {self._source} that are already settled"
        return entry


class _Entry(msgspec.Struct, eq=False):
    """One span and the votes outstanding on it.

    Votes are kept in a log. `outstanding_each` turns the log into one count per message, on demand.
    """

    span: Span
    outstanding: int
    count: int
    """The number of its positions."""
    voted: int = 0
    released: int = 0
    nacks: dict[int, dict[tuple[int, Piece], DeadLetter]] = {}
    """By sequence, then by record index and piece, the letters of nacked messages."""
    log: list[tuple[Sequence[int], int]] = []
    unwanted: list[tuple[Sequence[int], int]] = []
    """The votes of destinations whose conditions refused messages."""
    extra: dict[int, int] = {}
    """By sequence, the votes on the further pieces of a split message."""
    counts: list[int] | None = None
    settled: int = 0
    is_progress: bool = False
    """True for a position without a record."""
    taken: bool = False
    """True once `settled_ranges` has returned messages of it: they may be durable, so it must not change."""
    stop: int = -1
    """The sequence after its last message, if only its last position is left."""

    def settle_stop(self, voters: int) -> int:
        """Return the index of the first message that is not settled."""
        if self.outstanding == 0:
            return self.count
        if self.voted != voters:
            return 0
        counts = self.outstanding_each()
        while counts[self.settled] == 0:
            self.settled += 1
        return self.settled

    def outstanding_each(self) -> list[int]:
        """Return the votes outstanding on each message, and empty the log."""
        if self.counts is None:
            # At first every message of a span has the same number of votes, so one division gives it.
            cast = sum(len(sequences) * fewer for sequences, fewer in self.log)
            self.counts = [(self.outstanding + cast) // self.count] * self.count
        counts, first = self.counts, self.span.first
        for sequences, fewer in self.log:
            for sequence in sequences:
                counts[sequence - first] -= fewer
        self.log.clear()
        return counts

    def count_unwanted(self, voters: int) -> int:
        """Return the number of messages for which every vote was that of a condition."""
        if not self.unwanted:
            return 0
        votes: Counter[int] = Counter()
        for sequences, each in self.unwanted:
            for sequence in sequences:
                votes[sequence] += each
        return sum(count == voters + self.extra.get(sequence, 0) for sequence, count in votes.items())

    def letters_until(self, stop: int) -> list[DeadLetter]:
        """Return the letters of the unreleased messages before this index, in order."""
        first, nacks = self.span.first, self.nacks
        indices = [sequence for sequence in sorted(nacks) if self.released <= sequence - first < stop]
        return [nacks[sequence][which] for sequence in indices for which in sorted(nacks[sequence])]
