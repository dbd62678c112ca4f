"""Records: typed values, the payload's short form, and Conduit's JSON form both ways."""

import datetime
import decimal
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py import Operation, Payload, Record, RecordRefused
from conduit_py.record import decode_json, encode_json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
structured = st.dictionaries(st.text(), json_values, max_size=5)
data = st.none() | st.binary() | structured
records = st.builds(
    Record,
    position=st.binary(),
    operation=st.sampled_from(Operation),
    metadata=st.dictionaries(st.text(), st.text(), max_size=3),
    key=data,
    payload=st.builds(Payload, before=data, after=data),
)


@given(records)
def test_the_json_form_reads_back_as_the_same_record(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record
    assert Record.from_map(record.to_map()) == record


@given(records)
def test_the_json_form_is_the_map_form_in_json(record: Record) -> None:
    assert json.loads(record.to_json()) == json.loads(encode_json(record.to_map()))


def test_the_json_form_is_the_one_conduit_writes() -> None:
    record = Record(b"pos", Operation.UPDATE, {"opencdc.collection": "t"}, b"key", Payload(None, {"a": 1}))

    assert record.to_json() == (
        b'{"position":"cG9z","operation":"update","metadata":{"opencdc.collection":"t"},'
        b'"key":"a2V5","payload":{"before":null,"after":{"a":1}}}'
    )


def test_absent_is_not_empty() -> None:
    record = Record.from_json(b'{"key":"","payload":{"before":{},"after":null}}')

    assert record.key == b""
    assert record.payload == Payload(before={}, after=None)


def test_values_of_python_are_not_touched_by_copies() -> None:
    values: dict[str, Any] = {
        "big": 10**40,
        "exact": decimal.Decimal("0.10"),
        "when": datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC),
        "raw": b"\x00",
        "deep": [{"x": 1}],
    }
    copy = Record.of(values).copy()

    assert copy.payload.after == values
    copy.payload["deep"][0]["x"] = 2
    assert values["deep"] == [{"x": 1}]


def test_the_payload_reads_and_writes_after() -> None:
    record = Record.of({"a": 1})
    record.payload["b"] = record.payload["a"] + 1
    del record.payload["a"]

    assert record.payload.after == {"b": 2}
    assert "b" in record.payload
    assert list(record.payload) == ["b"]
    assert record.payload.get("a", "none") == "none"
    with pytest.raises(KeyError):
        record.payload["a"]


@pytest.mark.parametrize(("after", "said"), [(None, "absent"), (b"raw", "raw bytes")])
def test_fields_of_what_has_none_are_refused_with_the_reason(after: bytes | None, said: str) -> None:
    record = Record.of(after)

    with pytest.raises(RecordRefused, match=said):
        record.payload["x"]
    with pytest.raises(RecordRefused, match=said):
        record.payload["x"] = 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda v: {"a": [None, {"b": v}]}, lambda v: {"a": (1, {"b": v})}])
def test_invariant_12_numbers_that_json_cannot_carry_are_refused_by_name(wrap: Any, value: float) -> None:
    with pytest.raises(RecordRefused, match=r"payload\.after\.a\[1\]\.b is"):
        Record.of(wrap(value)).to_json()


@pytest.mark.parametrize("others", [None, {"a": None}, {"null": "null"}], ids=["absent", "null", "named null"])
@pytest.mark.parametrize("part", ["key", "payload.before", "payload.after"])
def test_invariant_12_no_other_part_of_a_record_hides_such_a_number(part: str, others: Any) -> None:
    parts = dict.fromkeys(["key", "payload.before", "payload.after"], others) | {part: {"n": math.nan}}
    key, before, after = parts.values()

    with pytest.raises(RecordRefused, match=rf"{part}\.n is nan"):
        Record(key=key, payload=Payload(before, after)).to_json()


def test_invariant_12_null_itself_is_no_error() -> None:
    assert encode_json({"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'


def test_invariant_12_values_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(RecordRefused, match="cannot be written as JSON"):
        Record.of({"x": object()}).to_json()


def test_integers_of_any_size_stay_exact() -> None:
    assert decode_json(encode_json({"n": 123456789012345678901234567890}))["n"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "record must be an object, not list"),
        (b"{", "not valid JSON"),
        (b'"\xff"', "not valid JSON"),
        (b'{"operation":"upsert"}', "operation must be one of create, update, delete, snapshot, not 'upsert'"),
        (b'{"operation":["create"]}', "operation must be one of"),
        (b'{"position":"!"}', "position is not base64"),
        (b'{"position":1}', "position must be base64 text, not int"),
        (b'{"key":[1]}', "key must be base64 text, not list"),
        (b'{"metadata":{"a":1}}', "metadata must map text to text"),
        (b'{"payload":{"now":1}}', "payload has unknown fields: 'now'"),
        (b'{"pos":""}', "record has unknown fields: 'pos'"),
    ],
)
def test_a_text_that_is_no_record_is_refused_naming_the_field(text: bytes, said: str) -> None:
    with pytest.raises(RecordRefused) as refused:
        Record.from_json(text)

    assert said in refused.value.message
