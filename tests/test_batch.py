"""Batches: identities that nothing changes, and keys that survive restarts."""

from hypothesis import given
from hypothesis import strategies as st

from conduit_py import Batch, MessageId, Record
from conduit_py.batch import Span


def batch(count: int, *, first: int = 0, pipeline: str = "p", source: str = "s") -> Batch:
    span = Span(pipeline, source, first, [b"%d" % number for number in range(first, first + count)])
    return Batch.whole(span, [Record.of({"n": number}) for number in range(first, first + count)])


@given(st.integers(1, 20), st.data())
def test_a_selection_keeps_identities_and_values(count: int, data: st.DataObject) -> None:
    whole = batch(count, first=100)
    indices = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    chosen = whole.select(indices)

    assert chosen.ids == [MessageId("s", 100 + index) for index in indices]
    assert list(chosen) == [whole[index] for index in indices]
    assert [chosen.delivery_key(i) for i in range(len(chosen))] == [whole.delivery_key(index) for index in indices]


def test_the_delivery_key_does_not_depend_on_sequences_or_batches() -> None:
    """After a restart the same record comes with another sequence and in another batch."""
    once = batch(10)
    again = Batch.whole(Span("p", "s", 0, [b"7", b"8"]), [Record(), Record()])

    assert again.delivery_key(0) == once.delivery_key(7)


def test_the_delivery_key_is_pinned() -> None:
    """It is stored by destinations: a change would make every record look new."""
    assert batch(1).delivery_key(0).hex() == "ce1c50ae489d9872d51c4de689265cc6"


def test_pieces_pipelines_and_sources_have_keys_of_their_own() -> None:
    span = Span("p", "s", 0, [b"0"])
    pieces = [Batch(span, [Record()], [0], [piece]).delivery_key(0) for piece in [(), (0,), (1,), (1, 0), (10,)]]
    others = [batch(1, pipeline="ps", source="").delivery_key(0), batch(1, source="t").delivery_key(0)]

    assert len({*pieces, *others}) == 7


def test_positions_are_those_of_each_message_whatever_became_of_the_batch() -> None:
    span = Span("p", "s", 5, [b"5", b"6", b"7"])
    pieces = Batch(span, [Record()] * 4, [5, 5, 6, 7], [(0,), (1, 10), (), (2,)])
    whole = Batch.whole(span, [Record()] * 3)

    assert whole.positions is span.positions
    assert whole.select([0, 2]).positions == [b"5", b"7"]
    assert pieces.positions == [b"5", b"5", b"6", b"7"]


def test_the_owner_of_positions_is_the_scope_of_shared_work() -> None:
    shared = batch(2)
    shared.span.scope = "work"

    assert (batch(2, pipeline="p", source="s").owner, shared.owner) == (("p", "s"), ("", "work"))


def test_messages_have_their_records_and_identities() -> None:
    chosen = batch(3, first=5).select([0, 2])

    assert [(message.index, message.record.payload["n"], message.id) for message in chosen.messages()] == [
        (0, 5, MessageId("s", 5)),
        (1, 7, MessageId("s", 7)),
    ]
    assert [message.delivery_key for message in chosen.messages()] == [chosen.delivery_key(0), chosen.delivery_key(1)]
