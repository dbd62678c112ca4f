"""The ledger with progress between records, and with groups larger than its window: any order of votes."""

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.batch import Span
from conduit_py.stream.ledger import Ledger, SettledRange

VOTERS = 0b11


class Model:
    """What was registered, in order: records with their outstanding votes, and progress."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.log: list[tuple[bytes, int | None]] = []
        """Every position in order; None for progress, else the index of the record."""
        self.votes: list[int] = []
        self.open: list[tuple[Span, int, int]] = []
        """Votes to come: the span, the sequence, the voter."""
        self.handled: list[bytes] = []

    def read(self, count: int) -> None:
        count = min(count, self.ledger.credit)
        if not count:
            return
        positions = [b"r%d" % (len(self.votes) + index) for index in range(count)]
        self.ledger.admit(count)
        span = self.ledger.register(positions)
        for index, position in enumerate(positions):
            self.log.append((position, len(self.votes)))
            self.votes.append(2)
            self.open += [(span, span.first + index, 1), (span, span.first + index, 2)]

    def advance(self) -> None:
        position = b"p%d" % len(self.log)
        self.ledger.register_progress(position)
        self.log.append((position, None))

    def vote(self, rng: random.Random) -> None:
        if self.open:
            span, sequence, voter = self.open.pop(rng.randrange(len(self.open)))
            record = int(span.position(sequence)[1:])
            self.votes[record] -= 1
            self.ledger.ack(span, (sequence,), voter)

    def settled(self) -> list[bytes]:
        """Return the positions that may be durable: everything before the first open record."""
        positions = []
        for position, record in self.log:
            if record is not None and self.votes[record]:
                break
            positions.append(position)
        return positions

    def settle(self, ranges: list[SettledRange]) -> None:
        positions = [position for each in ranges for position in each.positions]
        self.handled += positions
        self.check()
        self.ledger.release(sum(each.stop - each.start for each in ranges))

    def check(self) -> None:
        # Invariants 2 and 3: in order, once each, and nothing behind an open record.
        order = [position for position, _ in self.log]
        indices = [order.index(position) for position in self.handled]
        assert indices == sorted(set(indices))
        assert set(self.handled) <= set(self.settled())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("advance"), st.just(0)),
        st.tuples(st.just("vote"), st.integers(1, 8)),
        st.tuples(st.just("settle"), st.just(0)),
        st.tuples(st.just("begin settle"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps=steps, seed=st.integers(0, 10**6), window=st.integers(1, 12))
def test_invariants_2_and_3_progress_never_overtakes_a_record_and_is_never_lost(
    steps: list[tuple[str, int]], seed: int, window: int
) -> None:
    rng, woken = random.Random(seed), [0]
    ledger = Ledger("p", "s", VOTERS, window)

    def wake() -> None:
        woken[0] += 1

    def take() -> list[SettledRange]:
        # As the settler: it waits for a call, then looks. A call during its commit is not lost.
        woken[0] = 0
        return ledger.settled_ranges()

    ledger.on_settled = wake
    model, taken = Model(ledger), deque[list[SettledRange]]()
    for step, count in steps:
        match step:
            case "read":
                model.read(count)
            case "advance":
                model.advance()
            case "vote":
                for _ in range(count):
                    model.vote(rng)
            case "begin settle" if not taken:
                # Until it is released, more is read and voted on, as during a commit.
                taken.append(take())
            case _:
                ranges = taken.popleft() if taken else take()
                if ranges:
                    model.settle(ranges)
        # Invariant 6: the window bounds messages, and there is at most one progress behind each and two more.
        assert ledger.in_flight <= window
        assert len(ledger._entries) <= 2 * ledger.in_flight + 2
    while model.open:
        model.vote(rng)
    while taken or ledger.has_before(ledger.next_sequence):
        assert woken[0] or taken, "a settler that waits would never wake"
        model.settle(taken.popleft() if taken else take())
    # Every record, and the last progress of each run of them.
    last = [position for index, (position, _) in enumerate(model.log) if index + 1 == len(model.log)]
    assert model.handled[-1:] == last
    assert [each for each in model.handled if each.startswith(b"r")] == [b"r%d" % n for n in range(len(model.votes))]
    assert ledger.in_flight == 0
    assert ledger.credit == window


@settings(max_examples=200, deadline=None)
@given(steps=steps, seed=st.integers(0, 10**6), window=st.integers(1, 6))
def test_invariant_6_a_group_larger_than_the_window_is_read_on_in_bounded_memory(
    steps: list[tuple[str, int]], seed: int, window: int
) -> None:
    rng = random.Random(seed)
    ledger = Ledger("p", "s", VOTERS, window, atomic=True)
    model = Model(ledger)
    for step, count in steps:
        match step:
            case "read":
                model.read(count)
            case "vote":
                for _ in range(count):
                    model.vote(rng)
            case "settle" if ledger.quiet:
                if ranges := ledger.settled_ranges():
                    assert sum(each.records for each in ranges) == len(model.votes) - _count(model.handled)
                    model.handled += [each.positions[-1] for each in ranges]
                    ledger.release(sum(each.stop - each.start for each in ranges))
            case _:
                pass
        # Credit counts what is not settled: whatever is settled never keeps the source from being read.
        unsettled = sum(1 for entry in ledger._entries.values() if entry.outstanding)
        assert (ledger.credit == window) == (unsettled == 0)
        assert 0 <= ledger.credit <= window
    while model.open:
        model.vote(rng)
    assert ledger.credit == window
    ranges = ledger.settled_ranges()
    if ranges:
        assert ranges[-1].positions[-1] == b"r%d" % (len(model.votes) - 1)
        ledger.release(sum(each.stop - each.start for each in ranges))
    assert not ledger.has_before(ledger.next_sequence)
    assert (ledger.in_flight, ledger.credit) == (0, window)


def _count(handled: list[bytes]) -> int:
    """Return how many records are handled, if these are the last positions of runs of records."""
    return int(handled[-1][1:]) + 1 if handled else 0


def test_a_group_of_a_million_records_keeps_one_position() -> None:
    ledger = Ledger("p", "s", 1, window=1000, atomic=True)
    for batch in range(1000):
        ledger.admit(1000)
        span = ledger.register([b"%d" % (batch * 1000 + index) for index in range(1000)])
        ledger.ack(span, range(span.first, span.first + 1000), 1)

    [settled] = ledger.settled_ranges()
    assert settled.records == 1_000_000
    assert list(settled.positions) == [b"999999"]
    assert len(ledger._entries) == 1


def test_a_run_of_settled_spans_does_not_grow_while_it_is_committed() -> None:
    ledger = Ledger("p", "s", 1, window=10, atomic=True)
    ledger.admit(1)
    ledger.ack(ledger.register([b"1"]), (0,), 1)
    [committed] = ledger.settled_ranges()
    ledger.admit(1)
    ledger.ack(ledger.register([b"2"]), (1,), 1)

    assert list(committed.positions) == [b"1"]
    ledger.release(1)
    assert [list(each.positions) for each in ledger.settled_ranges()] == [[b"2"]]
