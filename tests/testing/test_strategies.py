"""The strategies give what they promise, and reach the corners that matter."""

from typing import Any

from hypothesis import find, given
from hypothesis import strategies as st

from conduit_py.batch import Batch
from conduit_py.record import Record, decode_json, encode_json
from conduit_py.testing import strategies


@given(strategies.json_values())
def test_json_values_survive_json(value: Any) -> None:
    assert decode_json(encode_json(value)) == value


@given(strategies.records())
def test_records_survive_their_json_form(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record


@given(strategies.records(strategies.python_values()))
def test_records_of_any_python_values_can_be_copied(record: Record) -> None:
    copied = record.copy()

    assert copied == record
    assert copied.metadata is not record.metadata


def test_data_can_be_raw_structured_or_absent_and_empty_is_not_absent() -> None:
    for kind in (type(None), bytes, dict):
        find(strategies.data(), lambda value, kind=kind: type(value) is kind)  # type: ignore[misc]
    assert find(strategies.data(), lambda value: value is not None and not value) in (b"", {})


@given(strategies.batches())
def test_batches_hold_messages_of_their_span_in_order(batch: Batch) -> None:
    assert batch.ids == sorted(set(batch.ids))
    for index in range(len(batch)):
        assert batch.span.first <= batch.sequences[index] < batch.span.first + len(batch.span)
    assert len({batch.delivery_key(index) for index in range(len(batch))}) == len(batch)


def test_batches_can_be_empty_whole_or_split() -> None:
    assert len(find(strategies.batches(), lambda batch: not len(batch))) == 0
    assert find(strategies.batches(), lambda batch: len(batch) > 1 and batch.pieces is None)
    assert find(strategies.batches(), lambda batch: batch.pieces is not None and (0, 1) in batch.pieces)


@given(st.data())
def test_interleavings_keep_each_sequence_in_order(data: st.DataObject) -> None:
    merged = data.draw(strategies.interleavings("abc", "12", ""))

    assert [item for item in merged if item in "abc"] == ["a", "b", "c"]
    assert [item for item in merged if item in "12"] == ["1", "2"]
    assert len(merged) == 5


def test_interleavings_reach_every_order() -> None:
    for order in ("a12", "1a2", "12a"):
        assert find(strategies.interleavings("a", "12"), lambda merged, order=order: "".join(merged) == order)  # type: ignore[misc]
