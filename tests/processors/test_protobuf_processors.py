"""protobuf.encode and protobuf.decode: exact both ways, safe whatever the bytes are, and against a real registry."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conduit_processors import protobuf
from conduit_processors.protobuf.codec import ProtobufCodec
from conduit_processors.protobuf.compiler import compile_files
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from conduit_processors.registry.wire_format import (
    HEADER_SIZE,
    decode_indexes,
    encode_indexes,
    header,
    read_schema_id,
)
from hypothesis import given
from hypothesis import strategies as st
from registry_calls import ask, framed, id_of, new_subject, process, register

from conduit_py.sdk import FatalError, Record, RecordRefused
from conduit_py.testing.services import RegistryServer

ALL = """
syntax = "proto3";
package shop;
message Order {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8;
  sfixed32 i = 9; sfixed64 j = 10; float k = 11; double l = 12; bool m = 13; string n = 14; bytes o = 15;
  optional int32 p = 16;
  repeated int64 q = 17;
  map<string, Line> r = 18;
  map<int32, string> s = 19;
  map<bool, bytes> t = 20;
  Colour u = 21;
  oneof choice { string v = 22; Line w = 23; }
  repeated Line x = 24;
  Order y = 25;
  message Line { string sku = 1; int32 count = 2; }
}
enum Colour { NONE = 0; RED = 1; }
message Other { message Inner { string s = 1; } string t = 1; }
"""


def _integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
LINES = st.fixed_dictionaries({"sku": TEXT, "count": _integers(32, signed=True)})
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys("aei", _integers(32, signed=True)),
    **dict.fromkeys("bfj", _integers(64, signed=True)),
    **dict.fromkeys("cg", _integers(32, signed=False)),
    **dict.fromkeys("dh", _integers(64, signed=False)),
    "k": st.floats(width=32, allow_nan=False),
    "l": st.floats(allow_nan=False),
    "m": st.booleans(),
    "n": TEXT,
    "o": st.binary(max_size=4),
    "p": st.none() | _integers(32, signed=True),
    "q": st.lists(_integers(64, signed=True), max_size=3),
    "r": st.dictionaries(TEXT, LINES, max_size=2),
    "s": st.dictionaries(_integers(32, signed=True).map(str), TEXT, max_size=2),
    "t": st.dictionaries(st.sampled_from(["true", "false"]), st.binary(max_size=2), max_size=2),
    "u": st.sampled_from(["NONE", "RED", 7]),
    "v": st.none() | TEXT,
    "w": st.none(),
    "x": st.lists(LINES, max_size=2),
    "y": st.none(),
}
ORDERS = st.fixed_dictionaries(FIELDS)


@cache
def descriptors() -> bytes:
    return compile_files(RegisteredSchema(1, "PROTOBUF", ALL))


def codec(message: str | None = None) -> ProtobufCodec:
    return ProtobufCodec(descriptors(), message)


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(RecordRefused) as caught:
        call(*args)
    return caught.value.message


@given(ORDERS, ORDERS, LINES)
def test_decoding_undoes_encoding_exactly(order: Any, inner: Any, line: Any) -> None:
    value = {**order, "v": None, "w": line, "y": inner}

    decoded = codec().decode(codec().encode(value), 0)

    assert decoded == value
    assert {name: type(each) for name, each in decoded.items()} == {name: type(each) for name, each in value.items()}


@given(ORDERS, st.data())
def test_any_other_bytes_are_refused_or_are_a_message(order: Any, data: st.DataObject) -> None:
    encoded = codec().encode(order)
    start = data.draw(st.integers(0, len(encoded)))
    damaged = (
        encoded[:start] + data.draw(st.binary(max_size=8)) + encoded[data.draw(st.integers(start, len(encoded))) :]
    )
    try:
        decoded = codec().decode(damaged, 0)
    except RecordRefused:
        return

    assert isinstance(decoded, dict)


@given(st.binary(max_size=20) | st.lists(st.integers(0, 9), max_size=20).map(bytes))
def test_any_bytes_are_refused_or_begin_with_a_schema_id_and_indexes(data: bytes) -> None:
    try:
        schema_id = read_schema_id(data)
        indexes, end = decode_indexes(data, HEADER_SIZE)
    except RecordRefused:
        return

    assert data[:HEADER_SIZE] == header(schema_id)
    assert indexes
    assert min(indexes) >= 0
    assert HEADER_SIZE < end <= len(data)
    assert decode_indexes(encode_indexes(indexes), 0)[0] == indexes


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=10).map(tuple))
def test_indexes_go_there_and_back_and_the_first_message_is_one_zero(indexes: tuple[int, ...]) -> None:
    assert decode_indexes(b"12345" + encode_indexes(indexes), 5) == (indexes, 5 + len(encode_indexes(indexes)))
    assert encode_indexes((0,)) == b"\x00"
    assert encode_indexes((1, 0)) == b"\x04\x02\x00"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 2**31}, "the field 'a' is an integer that 32 bits do not hold"),
        ({"d": -1}, "the field 'd' is an integer that 64 bits do not hold"),
        ({"a": True}, "the field 'a' is a boolean (bool) and not an integer"),
        ({"a": 1.0}, "the field 'a' is a number (float) and not an integer"),
        ({"a": None}, "the field 'a' is null, and cannot be absent"),
        ({"k": 1e300}, "the field 'k' is beyond the range of a float of 32 bits"),
        ({"l": 2**53 + 1}, "the field 'l' is an integer that no float is equal to"),
        ({"m": 1}, "the field 'm' is a number (int) and not a boolean"),
        ({"n": b"x"}, "the field 'n' is raw bytes (bytes) and not text"),
        ({"n": "\ud800"}, "the field 'n' is text that is not valid Unicode"),
        ({"o": "x"}, "the field 'o' is text (str) and not bytes"),
        ({"q": 1}, "the field 'q' is a number (int) and not a list"),
        ({"q": [1, "x"]}, "the field 'q.1' is text (str) and not an integer"),
        ({"r": {"k": {"sku": 1}}}, "the field 'r.k.sku' is a number (int) and not text"),
        ({"s": {"x": "y"}}, "the field 's.x' is text (str) and not a whole number"),
        ({"u": "BLUE"}, "the field 'u' is text (str) and not one of NONE, RED"),
        ({"v": "x", "w": {}}, "the fields 'v' and 'w' exclude each other"),
        ({"nope": 1}, "the field 'nope' is not in the schema"),
        ([], "it is a list (list) and not a message"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_field(value: Any, message: str) -> None:
    assert refusal(codec().encode, value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is cut within the message indexes"),
        (b"\x01", "has a negative message index"),
        (b"\xff\xff\xff\xff\xff\x01", "has a message index of more than 5 bytes"),
        (b"\xfe\xff\x03", "has 32767 message indexes: at most 64 are read"),
        (b"\x02\x12", "is message 9 of a schema that does not have it"),
        (b"\x00\x72\xff\xff\xff\xff\x07x", "is no message of shop.Order"),
        (b"\x00\xfa\x3f\x01x", "has fields that shop.Order does not have"),
        (b"\x00" + b"\xca\x01\x02" * 3, "is no message of shop.Order"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_the_reason(data: bytes, message: str) -> None:
    assert message in refusal(codec().decode, data, 0)


def test_data_that_is_nested_without_end_is_refused() -> None:
    nested = b""
    for _ in range(3000):
        size = len(nested)
        nested = b"\xca\x01" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + nested

    assert "is no message of shop.Order" in refusal(codec().decode, b"\x00" + nested, 0)


@pytest.mark.parametrize(
    ("text", "types", "message"),
    [
        ("nope", (), "it is no Protobuf schema"),
        ('syntax = "proto3"; message A { B b = 1; }', (), "it is no Protobuf schema"),
        ('syntax = "proto3"; import "/etc/passwd"; message A {}', (), "it is no Protobuf schema"),
        ('syntax = "proto3";', (("../outside.proto", ""),), "no path of a schema"),
        ('syntax = "proto3";', (("/tmp/outside.proto", ""),), "no path of a schema"),
    ],
)
def test_a_schema_that_cannot_be_compiled_is_refused(text: str, types: Any, message: str) -> None:
    with pytest.raises(SchemaUnusable, match=message):
        compile_files(RegisteredSchema(1, "PROTOBUF", text, types))


async def test_messages_go_there_and_back_with_imports_and_nested_messages(
    registry_server: RegistryServer, tmp_path: Path
) -> None:
    url, subject = registry_server.url, new_subject()
    common = 'syntax = "proto3"; package common; message City { string name = 1; }'
    register(url, f"{subject}-common", common, schemaType="PROTOBUF")
    path = tmp_path / "person.proto"
    path.write_text(
        'syntax = "proto3"; package p; import "common/city.proto"; import "google/protobuf/timestamp.proto"; '
        "message First { string s = 1; } "
        "message Person { message Home { common.City city = 1; google.protobuf.Timestamp since = 2; } }"
    )
    reference: dict[str, str | int] = {"name": "common/city.proto", "subject": f"{subject}-common", "version": 1}
    encode = protobuf.Encode(
        url=url,
        subject_strategy="record",
        record_name="p.Person.Home",
        strategy="autoRegister",
        schema_file=path,
        references=[reference],
    )
    value = {"city": {"name": "Bern"}, "since": {"seconds": 7, "nanos": 1}}

    [encoded, refused, tombstone] = await process(encode, value, {"city": "Bern"}, None)
    data = encoded.payload.after
    [decoded, cut] = await process(protobuf.Decode(url=url), Record.of(data), Record.of(data[:-1]))

    assert data[:8] == framed(ask(f"{url}/subjects/p.Person.Home/versions/latest")["id"], b"\x04\x02\x00")
    assert decoded.payload.after == value
    assert refused.message == ".Payload.After: the field 'city' is text (str) and not a message"
    assert tombstone.payload.after is None
    assert ".Payload.After: is no message of p.Person.Home" in cut.message
    assert id_of(data) > 0


def test_a_schema_cannot_be_inferred_and_a_subject_of_a_record_needs_its_name(tmp_path: Path) -> None:
    path = tmp_path / "all.proto"
    path.write_text(ALL)

    with pytest.raises(FatalError, match="cannot be inferred"):
        protobuf.Encode(url="http://localhost", subject="s", strategy="autoRegister").open()
    with pytest.raises(FatalError, match="give record_name"):
        protobuf.Encode(url="http://localhost", subject_strategy="record", schema_file=path).open()
