"""What a destination of Spark's has written is recognised when it comes again, however it was batched; loads halve."""

from collections.abc import Sequence

import pyarrow as pa
from conduit_connectors.spark.delivered_ids import DeliveredIds, ids_of
from conduit_connectors.spark.row_buffer import BufferedRows, Load
from hypothesis import given
from hypothesis import strategies as st

from conduit_py import Batch, Record
from conduit_py.batch import Piece as PieceName
from conduit_py.batch import Span

NAMES: list[list[PieceName]] = [[()], [(0,), (1,)], [(0,), (1, 0), (1, 1)], []]
"""How a record may arrive: whole, in pieces, or not at all."""


def batch_of(pieces_by_message: Sequence[Sequence[PieceName]], *, first: int = 0, source: str = "s") -> Batch:
    span = Span("p", source, first, [b"%d" % (first + index) for index in range(len(pieces_by_message))])
    messages = [(first + index, name) for index, names in enumerate(pieces_by_message) for name in names]
    pieces = [name for _, name in messages]
    return Batch(span, [Record()] * len(messages), [at for at, _ in messages], pieces if any(pieces) else None)


def key_of(batch: Batch, index: int) -> bytes:
    return batch.delivery_key(index)


@given(st.lists(st.sampled_from(NAMES), max_size=12), st.data())
def test_exactly_what_was_written_is_known(pieces_by_message: list[list[PieceName]], data: st.DataObject) -> None:
    """As by delivery keys, although batches are cut otherwise when records come again."""
    once = batch_of(pieces_by_message)
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(once))))) if len(once) else ())
    written = DeliveredIds()
    written.add(ids_of(once, kept))
    keys = {key_of(once, index) for index in kept}

    cut = data.draw(st.integers(0, len(pieces_by_message)))
    halves = [batch_of(pieces_by_message[:cut]), batch_of(pieces_by_message[cut:], first=cut)]
    for batch in [once, *halves, batch_of(pieces_by_message, source="other")]:
        assert written.among(batch) == {index for index in range(len(batch)) if key_of(batch, index) in keys}
    assert len(written) == len(kept)

    written.remove(ids_of(once, kept))
    assert (len(written), written.among(once)) == (0, set())


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), min_size=1, max_size=6))
def test_a_load_is_its_halves(kept: list[list[int]]) -> None:
    pieces = []
    for number, indices in enumerate(map(sorted, kept)):
        batch = batch_of([[()]] * 10, first=10 * number)
        rows = pa.RecordBatch.from_pydict({"n": [10 * number + index for index in indices]})
        pieces.append(BufferedRows(rows, batch, indices))
    load = Load.of(pieces)

    assert load.rows["n"].to_pylist() == [message.sequence for message in load.messages]
    parts = [load]
    while len(parts) < len(load):
        parts = [half for part in parts for half in (part.halves() if len(part) > 1 else (part,))]
    assert [part.rows["n"].to_pylist() for part in parts] == [[message.sequence] for message in load.messages]
    assert [message for part in parts for message in part.messages] == load.messages
    assert all(len(part) == sum(len(piece.rows) for piece in part.pieces) for part in parts)
