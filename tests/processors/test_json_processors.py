"""json.decode and json.encode."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from conduit_processors import json
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Payload, Record, RecordRefused

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]
BIG = 10**30

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES), st.sampled_from([".Key", ".Payload.Before", ".Payload.After"]))
def test_decoding_undoes_encoding_of_a_whole(data: dict[str, Any], field: str) -> None:
    encode, decode = json.Encode(field=field), json.Decode(field=field)
    encode.open()
    decode.open()
    record = Record(key=data, payload=Payload(data, data))

    encoded = encode.process(record.copy())

    assert encoded != record
    assert decode.process(encoded) == record


@given(VALUES)
def test_decoding_undoes_encoding_of_a_field(value: Any) -> None:
    encode, decode = json.Encode(field="a.b"), json.Decode(field="a.b")
    encode.open()
    decode.open()

    encoded = encode.process(Record.of({"a": {"b": value}}))

    assert isinstance(encoded.payload["a"]["b"], str) or value is None
    assert decode.process(encoded).payload["a"]["b"] == value


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        (".Payload.After", b'{"n": 1}', {"n": 1}),
        (".Payload.After", b"null", None),
        (".Payload.After", None, None),
        (".Payload.After", {"n": 1}, {"n": 1}),
        ("doc", {"doc": '{"n": 1}'}, {"doc": {"n": 1}}),
        ("doc", {"doc": b"[1, 2]"}, {"doc": [1, 2]}),
        ("doc", {"doc": '"text"'}, {"doc": "text"}),
        ("doc", {"doc": f"{BIG}"}, {"doc": BIG}),
        ("doc", {"doc": None}, {"doc": None}),
        ("doc", {"doc": {"n": 1}}, {"doc": {"n": 1}}),
    ],
)
def test_decode_replaces_text_by_its_value(run: Run, field: str, before: Any, after: Any) -> None:
    record = Record.of(before)

    assert run(json.Decode(field=field), record) is record
    assert record.payload.after == after


@pytest.mark.parametrize(
    ("field", "before", "message"),
    [
        (
            ".Payload.After",
            b"{nope",
            ".Payload.After: not valid JSON: JSON is malformed: object keys must be strings (byte 1)",
        ),
        (".Payload.After", b"", ".Payload.After: not valid JSON: Input data was truncated"),
        (".Payload.After", b"[1]", ".Payload.After: its JSON is a list and not an object"),
        (".Payload.After", b'"text"', ".Payload.After: its JSON is text and not an object"),
        ("doc", {"doc": "NaN"}, ".Payload.After.doc: not valid JSON: JSON is malformed: invalid character (byte 0)"),
        ("doc", {"doc": 5}, ".Payload.After.doc: not JSON text: it is a number"),
        ("doc", {"doc": [1]}, ".Payload.After.doc: not JSON text: it is a list"),
        ("doc", {}, "the record has no .Payload.After.doc: .Payload.After has no field 'doc'"),
        ("doc", b"{}", "cannot read .Payload.After.doc: .Payload.After is raw bytes, so it has no fields"),
    ],
)
def test_decode_refuses_what_is_not_json(refusal: Refusal, field: str, before: Any, message: str) -> None:
    assert refusal(json.Decode(field=field), Record.of(before)).message == message


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        (".Payload.After", {"n": BIG}, b'{"n":%d}' % BIG),
        (".Payload.After", {}, b"{}"),
        (".Payload.After", None, None),
        ("doc", {"doc": {"n": [1, None]}}, {"doc": '{"n":[1,null]}'}),
        ("doc", {"doc": "text"}, {"doc": '"text"'}),
        ("doc", {"doc": None}, {"doc": None}),
        (
            "doc",
            {"doc": {"b": b"raw", "d": Decimal("1.50"), "t": dt.datetime(2026, 1, 31, tzinfo=dt.UTC)}},
            {"doc": '{"b":"cmF3","d":"1.50","t":"2026-01-31T00:00:00Z"}'},
        ),
    ],
)
def test_encode_replaces_a_value_by_its_text(run: Run, field: str, before: Any, after: Any) -> None:
    record = Record.of(before)

    assert run(json.Encode(field=field), record) is record
    assert record.payload.after == after


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ({"doc": {"n": float("nan")}}, ".Payload.After.doc: cannot be written as JSON: n is nan"),
        ({"doc": b"raw"}, ".Payload.After.doc: raw bytes have no JSON"),
        (
            {"doc": object()},
            ".Payload.After.doc: cannot be written as JSON: Encoding objects of type object is unsupported",
        ),
        ({}, "the record has no .Payload.After.doc: .Payload.After has no field 'doc'"),
    ],
)
def test_encode_refuses_what_json_cannot_say(run: Run, before: Any, message: str) -> None:
    with pytest.raises(RecordRefused) as caught:
        run(json.Encode(field="doc"), Record.of(before))

    assert caught.value.message == message


@pytest.mark.parametrize("field", [".Payload", ".Metadata.x", ".Position", "."])
def test_only_key_and_payload_hold_json(field: str) -> None:
    [problem] = json.Decode(field=field).problems

    assert problem.path == "field"
    assert problem.message == (
        "must be a field path such as .Payload.After.name "
        f"(it must be in .Key, .Payload.Before or .Payload.After), not '{field}'"
    )
