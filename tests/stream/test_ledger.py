"""The ledger, against a model that counts every vote of every piece by itself."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.batch import Batch, Fate, MessageId, Piece, Span
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.record import Record
from conduit_py.stream.ledger import Ledger


def ledger(*, voters: int = 0b1, window: int = 10_000) -> Ledger:
    return Ledger("pipeline", "source", voters, window)


def register(books: Ledger, count: int) -> Batch:
    first = books.next_sequence
    books.admit(count)
    span = books.register([b"%d" % number for number in range(first, first + count)])
    return Batch.whole(span, [Record() for _ in range(count)])


def letter(message: MessageId, node: str = "node") -> DeadLetter:
    return DeadLetter("pipeline", message, b"", Record(), [Failure(node, "no")])


def settled_positions(books: Ledger) -> list[bytes]:
    return [position for settled in books.settled_ranges() for position in settled.positions]


def test_1000_messages_acked_in_random_order_are_settled_in_order() -> None:
    books = ledger()
    batches = [register(books, 1) for _ in range(1000)]
    released: list[bytes] = []
    for batch in random.Random(7).sample(batches, 1000):
        books.ack(batch.span, batch.sequences, 0b1)
        positions = settled_positions(books)
        released += positions
        if positions:
            books.release(len(positions))

    assert released == [b"%d" % number for number in range(1000)]
    assert books.in_flight == 0


def test_a_prefix_may_end_in_the_middle_of_a_batch() -> None:
    books = ledger()
    batch = register(books, 5)
    books.ack(batch.span, [0, 1, 3], 0b1)

    assert settled_positions(books) == [b"0", b"1"]
    books.release(2)
    assert settled_positions(books) == []
    books.ack(batch.span, [2, 4], 0b1)
    assert settled_positions(books) == [b"2", b"3", b"4"]


def test_nothing_is_settled_while_one_destination_has_not_voted() -> None:
    books = ledger(voters=0b111)
    batch = register(books, 3)
    books.ack(batch.span, batch.sequences, 0b001)
    books.ack(batch.span, batch.sequences, 0b100)

    assert settled_positions(books) == []
    books.ack(batch.span, batch.sequences, 0b010)
    assert settled_positions(books) == [b"0", b"1", b"2"]


def test_a_message_refused_by_two_destinations_has_one_letter_with_both_failures() -> None:
    books = ledger(voters=0b11)
    batch = register(books, 1)
    books.nack(batch.span, letter(batch.id(0), "lake"), 0b01)
    books.nack(batch.span, letter(batch.id(0), "bus"), 0b10)

    [settled] = books.settled_ranges()
    [only] = settled.nacks
    assert [failure.node for failure in only.failures] == ["lake", "bus"]


def test_a_split_record_is_settled_when_its_last_piece_is() -> None:
    books = ledger()
    batch = register(books, 1)
    books.split(batch.span, 0, 2, 0b1)
    books.ack(batch.span, [0, 0], 0b1)

    assert settled_positions(books) == []
    books.nack(batch.span, letter(MessageId("source", 0, (2,))), 0b1)
    [settled] = books.settled_ranges()
    assert [each.message.piece for each in settled.nacks] == [(2,)]


def test_a_vote_too_many_is_our_own_error() -> None:
    books = ledger()
    batch = register(books, 2)
    books.ack(batch.span, batch.sequences, 0b1)

    with pytest.raises(AssertionError):
        books.ack(batch.span, batch.sequences, 0b1)


def test_a_message_settled_while_it_was_not_the_oldest_is_announced_when_it_becomes_so() -> None:
    announced: list[int] = []
    books = Ledger("p", "source", 0b1, 10, on_settled=lambda: announced.append(1))
    first, second = register(books, 1), register(books, 1)
    books.ack(second.span, second.sequences, 0b1)
    assert announced == []
    books.ack(first.span, first.sequences, 0b1)
    assert announced == [1]
    books.release(1)

    assert announced == [1, 1]


def test_with_half_of_the_window_in_flight_votes_behind_the_oldest_are_announced_if_it_is_settled() -> None:
    """What is settled waits for more, so that one commit covers it all; but not until the window is full."""
    announced: list[int] = []
    books = Ledger("p", "source", 0b1, 10, on_settled=lambda: announced.append(books.in_flight))
    for _ in range(4):
        batch = register(books, 2)
        books.ack(batch.span, batch.sequences, 0b1)

    assert announced == [2, 6, 8]


class TestFateHandlers:
    """Handlers are called once, last registered first, when the last vote is in."""

    def test_they_run_in_reverse_order_of_registration(self) -> None:
        books = ledger(voters=0b11)
        batch = register(books, 2)
        told: list[tuple[str, int, Fate]] = []
        batch.on_fate(1, lambda message, fate: told.append(("first", message.sequence, fate)))
        batch.on_fate(1, lambda message, fate: told.append(("second", message.sequence, fate)))
        books.ack(batch.span, batch.sequences, 0b01)
        assert told == []
        books.ack(batch.span, batch.sequences, 0b10)

        assert told == [("second", 1, Fate.ACKED), ("first", 1, Fate.ACKED)]

    def test_any_nack_makes_the_fate_nacked(self) -> None:
        books = ledger(voters=0b11)
        batch = register(books, 1)
        told: list[Fate] = []
        batch.on_fate(0, lambda message, fate: told.append(fate))
        books.nack(batch.span, letter(batch.id(0)), 0b01)
        books.ack(batch.span, batch.sequences, 0b10)

        assert told == [Fate.NACKED]

    def test_an_error_is_raised_by_the_vote_after_all_handlers_have_run(self) -> None:
        books = ledger()
        batch = register(books, 1)
        told: list[str] = []

        def fail(message: MessageId, fate: Fate) -> None:
            told.append("failing")
            raise ValueError("no")

        batch.on_fate(0, lambda message, fate: told.append("other"))
        batch.on_fate(0, fail)

        with pytest.raises(ValueError, match="no"):
            books.ack(batch.span, batch.sequences, 0b1)
        assert told == ["failing", "other"]
        assert settled_positions(books) == [b"0"]


@dataclass
class Model:
    """One message: which pieces each destination still owes a vote on, and which were nacked."""

    owed: dict[int, list[Piece]]
    nacked: set[Piece] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        return not any(self.owed.values())


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 30))
def test_invariants_2_to_6_the_ledger_agrees_with_a_model_of_single_votes(
    seed: int, destinations: int, count: int
) -> None:
    """Safety: only the settled prefix, each message once, with its letters. Progress: all of it in the end."""
    rng = random.Random(seed)
    full = (1 << destinations) - 1
    books = ledger(voters=full, window=count)
    models: list[Model] = []
    spans: dict[int, Span] = {}
    released = 0
    while released < count:
        step = rng.random()
        open_votes = [(n, bit, piece) for n, m in enumerate(models) for bit in m.owed for piece in m.owed[bit]]
        if step < 0.3 and len(models) < count:
            batch = register(books, min(rng.randint(1, 5), count - len(models)))
            for sequence in batch.sequences:
                models.append(Model({bit: [()] for bit in range(destinations)}))
                spans[sequence] = batch.span
        elif step < 0.4 and (unvoted := [n for n, m in enumerate(models) if _untouched(m, destinations)]):
            _split(books, spans, models, rng.choice(unvoted), rng.randint(2, 3))
        elif step < 0.8 and open_votes:
            n, bit, piece = rng.choice(open_votes)
            models[n].owed[bit].remove(piece)
            if rng.random() < 0.2:
                models[n].nacked.add(piece)
                books.nack(spans[n], letter(MessageId("source", n, piece)), 1 << bit)
            else:
                books.ack(spans[n], [n], 1 << bit)
        else:
            released += _release(books, models, released, rng)
        assert books.in_flight == len(models) - released
    assert books.settled_ranges() == []


def _untouched(model: Model, destinations: int) -> bool:
    return all(model.owed[bit] == [()] for bit in range(destinations))


def _split(books: Ledger, spans: dict[int, Span], models: list[Model], n: int, pieces: int) -> None:
    books.split(spans[n], n, pieces - 1, (1 << len(models[n].owed)) - 1)
    for owed in models[n].owed.values():
        owed[:] = [(piece,) for piece in range(pieces)]


def _release(books: Ledger, models: list[Model], released: int, rng: random.Random) -> int:
    """Check the settled prefix against the model, then release some of it."""
    prefix = 0
    while released + prefix < len(models) and models[released + prefix].is_settled:
        prefix += 1
    ranges = books.settled_ranges()
    assert [p for each in ranges for p in each.positions] == [b"%d" % n for n in range(released, released + prefix)]
    expected = [(n, piece) for n in range(released, released + prefix) for piece in sorted(models[n].nacked)]
    letters = [each.message for settled in ranges for each in settled.nacks]
    assert [(message.sequence, message.piece) for message in letters] == expected
    taken = rng.randint(0, prefix)
    if taken:
        books.release(taken)
    return taken


def test_everything_is_quiet_when_all_that_set_out_is_settled_and_not_before() -> None:
    books = ledger(voters=0b11)
    told: list[bool] = []
    books.on_quiet = lambda: told.append(books.quiet)
    books.admit(3)
    first, second = books.register([b"1", b"2"]), books.register([b"3"])

    books.ack(first, (0, 1), 0b11)
    assert (books.quiet, told) == (False, [])
    books.ack(second, (2,), 0b01)
    assert (books.quiet, told) == (False, [])
    books.ack(second, (2,), 0b10)
    books.ack(second, [], 0b01)
    assert (books.quiet, told) == (True, [True])
