"""base64.decode and base64.encode."""

from collections.abc import Callable
from typing import Any

import pytest
from conduit_processors import base64
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Payload, Record, RecordRefused

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]


@given(st.binary(), st.sampled_from([".Key", ".Payload.Before", ".Payload.After"]))
def test_decoding_undoes_encoding_of_a_whole(raw: bytes, field: str) -> None:
    encode, decode = base64.Encode(field=field), base64.Decode(field=field)
    encode.open()
    decode.open()
    record = Record(key=raw, payload=Payload(raw, raw))

    assert decode.process(encode.process(record.copy())) == record


@given(st.binary() | st.text())
def test_decoding_undoes_encoding_of_a_field(value: bytes | str) -> None:
    encode = base64.Encode(field="x")
    decode = base64.Decode(field="x", type="bytes" if isinstance(value, bytes) else "string")
    encode.open()
    decode.open()

    encoded = encode.process(Record.of({"x": value}))

    assert isinstance(encoded.payload["x"], str)
    assert decode.process(encoded).payload.after == {"x": value}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("hello", "aGVsbG8="),
        (b"\xff\x00", "/wA="),
        ("", ""),
        (12, "MTI="),
        (2.0, "Mg=="),
        (True, "dHJ1ZQ=="),
        (None, None),
    ],
)
def test_encode_gives_text_for_a_field(run: Run, value: Any, encoded: Any) -> None:
    assert run(base64.Encode(field="x"), Record.of({"x": value})).payload.after == {"x": encoded}


def test_encode_gives_raw_bytes_for_a_whole_and_text_for_metadata(run: Run) -> None:
    record = Record(metadata={"m": "hello"}, key=b"hello")
    run(base64.Encode(field=".Key"), record)
    run(base64.Encode(field=".Metadata.m"), record)

    assert (record.key, record.metadata) == (b"aGVsbG8=", {"m": "aGVsbG8="})


@pytest.mark.parametrize(
    ("value", "options", "decoded"),
    [
        ("aGVsbG8=", {}, "hello"),
        (b"aGVs\r\nbG8=\n", {}, "hello"),
        ("/wA=", {"type": "bytes"}, b"\xff\x00"),
        ("", {}, ""),
        (None, {}, None),
    ],
)
def test_decode_gives_text_or_bytes(run: Run, value: Any, options: dict[str, Any], decoded: Any) -> None:
    assert run(base64.Decode(field="x", **options), Record.of({"x": value})).payload.after == {"x": decoded}


@pytest.mark.parametrize(
    ("processor", "value", "message"),
    [
        (base64.Decode, "aGVsbG8", ".Payload.After.x: not valid base64: Incorrect padding"),
        (base64.Decode, "aGVs bG8=", ".Payload.After.x: not valid base64: Only base64 data is allowed"),
        (base64.Decode, "é", ".Payload.After.x: not valid base64: Only base64 data is allowed"),
        (
            base64.Decode,
            "/wA=",
            ".Payload.After.x: what was decoded is not UTF-8 text: "
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        (base64.Decode, {"a": 1}, ".Payload.After.x: not base64 text: it is structured data"),
        (base64.Encode, {"a": 1}, ".Payload.After.x: cannot be written in base64: it is structured data"),
        (base64.Encode, [1], ".Payload.After.x: cannot be written in base64: it is a list"),
        (
            base64.Encode,
            "\ud800",
            ".Payload.After.x: the text is not valid Unicode: "
            "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
        ),
    ],
)
def test_what_has_no_such_form_is_refused(refusal: Refusal, processor: Any, value: Any, message: str) -> None:
    assert refusal(processor(field="x"), Record.of({"x": value})).message == message


@pytest.mark.parametrize("field", [".Position", ".Operation", ".Payload", ".Metadata", "."])
def test_only_what_holds_text_can_be_coded(field: str) -> None:
    [problem] = base64.Encode(field=field).problems

    assert problem.message == (
        "must be a field path such as .Payload.After.name "
        f"(it must be in .Key, .Payload.Before, .Payload.After or .Metadata), not '{field}'"
    )


def test_metadata_cannot_become_bytes() -> None:
    [problem] = base64.Decode(field=".Metadata.x", type="bytes").problems

    assert (problem.path, problem.message) == (
        "type",
        "must be 'string' for a field of the metadata, which holds text, not 'bytes'",
    )
