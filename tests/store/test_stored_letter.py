"""What a dead letter becomes: by whom it is refused still, what was delivered, and how causes are distinguished."""

import pytest

from conduit_py.batch import MessageId, Piece
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.record import Record
from conduit_py.store.stored_letter import (
    HISTORY_MAX,
    LetterState,
    StoredLetter,
    cause_of,
    letter_id,
    remaining_letters,
)


def refused(*nodes: str, piece: Piece = (), error: str = "no", at: float = 1.0) -> DeadLetter:
    """A letter about the first record of source `web`; at each node the record says where it stood."""
    letters = [
        DeadLetter("p", MessageId("web", 0, piece), b"0", Record.of({"at": node}), [Failure(node, error)], at)
        for node in nodes
    ]
    for later in letters[1:]:
        letters[0].join(later)
    return letters[0]


def queued(*nodes: str, to: tuple[str, ...] = (), piece: Piece = ()) -> StoredLetter:
    return StoredLetter.of(refused(*nodes, piece=piece)).for_replay(to or nodes)


def where(letter: StoredLetter) -> dict[str, str]:
    return {node: record.payload["at"] for node, record in letter.records.items()}


def test_a_letter_keeps_the_record_as_it_stood_at_each_node_that_refused_it() -> None:
    letter = StoredLetter.of(refused("lake", "mart"))

    assert where(letter) == {"lake": "lake", "mart": "mart"}
    assert (letter.node, letter.error, letter.attempts) == ("lake", "no", 1)


def test_its_id_depends_on_who_it_is_and_on_nothing_else() -> None:
    ids = {
        StoredLetter.of(refused("lake")).id,
        StoredLetter.of(refused("mart", error="other", at=9)).id,
        letter_id("p", "web", b"0", ()),
    }
    others = {letter_id("p", "web", b"0", (0,)), letter_id("pw", "eb", b"0", ()), letter_id("p", "web", b"1", ())}

    assert len(ids) == 1
    assert len(ids | others) == 4


def test_nothing_is_left_of_a_letter_that_everyone_took() -> None:
    assert remaining_letters(queued("lake", "mart"), []) == []


def test_what_was_not_sent_to_a_node_is_still_refused_by_it() -> None:
    (left,) = remaining_letters(queued("lake", "mart", to=("lake",)), [])

    assert where(left) == {"mart": "mart"}
    assert left.state is LetterState.KEPT
    assert left.queued_for == []


def test_refused_again_it_is_the_same_letter_with_one_more_refusal() -> None:
    letter = queued("clean")
    (left,) = remaining_letters(letter, [refused("clean", error="still no", at=5.0)])

    assert left.id == letter.id
    assert left.attempts == 2
    assert [(each.error, each.attempt, each.at) for each in left.history] == [("no", 1, 1.0), ("still no", 2, 5.0)]
    assert (left.error, left.first_at, left.last_at) == ("still no", 1.0, 5.0)


def test_the_record_that_was_sent_counts_not_what_the_node_made_of_it() -> None:
    letter = queued("clean")
    again = refused("clean")
    again.record.payload["at"] = "half-way"
    (left,) = remaining_letters(letter, [again])

    assert where(left) == {"clean": "clean"}


def test_a_letter_that_gets_further_enters_further_down_the_next_time() -> None:
    (left,) = remaining_letters(queued("clean"), [refused("lake")])

    assert where(left) == {"lake": "lake"}
    assert [each.node for each in left.history] == ["clean", "lake"]


def test_only_the_pieces_that_were_refused_are_left() -> None:
    letter = queued("split", piece=(3,))
    left = remaining_letters(letter, [refused("lake", piece=(3, 0)), refused("lake", piece=(3, 2))])

    assert [each.piece for each in left] == [(3, 0), (3, 2)]
    assert letter.id not in {each.id for each in left}
    assert all(each.attempts == 2 and each.first_at == 1.0 for each in left)


def test_a_refusal_of_a_node_joins_those_that_were_not_asked() -> None:
    (left,) = remaining_letters(queued("lake", "mart", to=("lake",)), [refused("lake", error="full")])

    assert where(left) == {"mart": "mart", "lake": "lake"}
    assert {each.node: each.error for each in left.refusals} == {"mart": "no", "lake": "full"}


def test_history_is_bounded_and_keeps_what_the_present_nodes_said() -> None:
    letter = queued("lake", "mart", to=("lake",))
    for number in range(100):
        (left,) = remaining_letters(letter, [refused("lake", error=f"no {number}")])
        letter = left.for_replay(["lake"])

    assert len(left.history) <= HISTORY_MAX + 2
    assert {each.node: each.error for each in left.refusals} == {"mart": "no", "lake": "no 99"}
    assert left.attempts == 101


def test_an_edit_keeps_the_original_and_a_second_edit_too() -> None:
    letter = StoredLetter.of(refused("lake"))
    edited = letter.with_records({"lake": Record.of({"at": "mended"})}).with_records(
        {"lake": Record.of({"at": "mended more"})}
    )

    assert where(edited) == {"lake": "mended more"}
    assert edited.originals["lake"].payload["at"] == "lake"


def test_what_a_person_did_survives_that_the_message_is_refused_again_after_a_crash() -> None:
    edited = StoredLetter.of(refused("lake")).with_records({"lake": Record.of({"at": "mended"})})
    waiting = queued("lake")
    fresh = StoredLetter.of(refused("lake", error="no again", at=7))

    assert where(edited.merge(fresh)) == {"lake": "mended"}
    assert waiting.merge(fresh).state is LetterState.QUEUED
    assert StoredLetter.of(refused("lake")).merge(fresh) == fresh


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("row 17: bad price", "row 18: bad price"),
        ("could not convert string to float: '1,5'", "could not convert string to float: 'a b'"),
        ("order 123e4567-e89b-12d3-a456-426614174000 is gone", "order 00000000-0000-4000-8000-000000000000 is gone"),
        ("<Thing at 0x7f0011> broke", "<Thing at 0x7faabb> broke"),
        ("late: 2026-01-02T03:04:05Z", "late: 2025-12-31 23:59:59.123+02:00"),
        ("sum is -3.5e10", "sum is 12"),
    ],
)
def test_errors_that_differ_in_a_value_have_one_cause(one: str, other: str) -> None:
    assert cause_of(one) == cause_of(other)


@pytest.mark.parametrize(
    ("one", "other"), [("KeyError: 'price'", "KeyError: 'name'"), ("column x1 is empty", "column x2 is empty")]
)
def test_errors_about_different_things_have_different_causes(one: str, other: str) -> None:
    assert cause_of(one) != cause_of(other)
