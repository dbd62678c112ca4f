"""Avro data: exact both ways, equal to what fastavro reads and writes, and safe whatever bytes and schema are."""

import datetime as dt
import io
import json
import tracemalloc
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from avro_schemas import TEXT, UTC_TIMES, records_with_values
from conduit_processors.avro.codec import AvroCodec, parse
from conduit_processors.avro.inference import infer_schema
from conduit_processors.registry.client import SchemaUnusable
from hypothesis import assume, given
from hypothesis import strategies as st

from conduit_py.sdk import RecordRefused

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
INTS = {"type": "array", "items": "int"}
HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
LIST = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "node"]}],
}


def codec(schema: Any) -> AvroCodec:
    return AvroCodec(parse(json.dumps(schema)))


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def types_in(value: Any) -> Any:
    """Equal only if the values have the same types: to Python, 1 is 1.0 and True."""
    if isinstance(value, dict):
        return {key: types_in(item) for key, item in value.items()}
    return [types_in(item) for item in value] if isinstance(value, list) else type(value)


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(RecordRefused) as caught:
        call(*args)
    return caught.value.message


@given(records_with_values())
def test_decoding_undoes_encoding_exactly_and_fastavro_agrees(drawn: tuple[Any, Any]) -> None:
    schema, value = drawn
    avro = codec(schema)

    encoded = avro.encode(value)

    decoded = avro.decode(encoded, 0)
    assert decoded == value
    assert types_in(decoded) == types_in(value)
    assert fastavro.schemaless_reader(io.BytesIO(encoded), parse(json.dumps(schema)).root, None) == value
    written = io.BytesIO()
    fastavro.schemaless_writer(written, parse(json.dumps(schema)).root, value)
    assert avro.decode(written.getvalue(), 0) == value


@given(records_with_values(), st.data())
def test_any_other_bytes_are_refused_or_are_a_value_that_fits(drawn: tuple[Any, Any], data: st.DataObject) -> None:
    schema, value = drawn
    avro = codec(schema)
    encoded = avro.encode(value)
    start = data.draw(st.integers(0, len(encoded)))
    damaged = encoded[:start] + data.draw(st.binary(max_size=12))
    damaged += encoded[data.draw(st.integers(start, len(encoded))) :]

    try:
        decoded = avro.decode(damaged, 0)
    except RecordRefused:
        return
    assert avro.decode(avro.encode(decoded), 0) == decoded or "nan" in repr(decoded)


@given(records_with_values(), st.binary(min_size=1, max_size=4))
def test_data_that_is_cut_or_has_bytes_after_its_end_is_refused(drawn: tuple[Any, Any], more: bytes) -> None:
    schema, value = drawn
    avro = codec(schema)
    encoded = avro.encode(value)

    assert refusal(avro.decode, encoded + more, 0) == f"has {len(more)} bytes after the end of the value"
    for end in range(len(encoded)):
        refusal(avro.decode, encoded[:end], 0)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("string", b"\x14ab", "says that it has 10 bytes, and 2 are left"),
        ("string", b"\x05ab", "says that it has -3 bytes, and 2 are left"),
        ("bytes", HUGE + b"ab", "says that it has 4611686018427387903 bytes, and 2 are left"),
        ("string", b"\x04\xff\xff", "is text that is not UTF-8"),
        ("long", b"\xff" * 20 + b"\x01", "is an integer of more than 64 bits"),
        ("int", b"\x80\x80\x80\x80\x80\x80\x01", "is an integer of more than 32 bits"),
        ("boolean", b"\x07", "is 0x07, which is no boolean"),
        (["null", "string"], b"\x01\x04ab", "is of type -1 of a union of 2"),
        (["null", "string"], b"\x08", "is of type 4 of a union of 2"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, b"\x01", "is symbol -1 of an enum of 2"),
        (INTS, HUGE + b"\x02", "says that it has 4611686018427387903 values, and 1 bytes are left"),
        ({"type": "array", "items": "int"}, b"\x01\xc8\x01\x02\x00", "says that it has 100 bytes, and 2 are left"),
        ({"type": "map", "values": "int"}, b"\x04\x02k\x02\x02k\x04\x00", "has the key 'k' twice"),
        ({"type": "fixed", "name": "f", "size": 8}, b"ab", "is cut: it has 2 of 8 bytes"),
        (DECIMAL, b"\x08\x7f\xff\xff\xff", "is a decimal of more than 4 digits"),
        (DECIMAL, b"\x00", "is a decimal of 0 bytes"),
        (MILLIS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "is a time outside of the years 1 to 9999"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "is no time of a day"),
        ({"type": "string", "logicalType": "uuid"}, b"\x04ab", "badly formed hexadecimal UUID string"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value_are_refused_with_the_field_and_the_reason(
    kind: Any, data: bytes, message: str
) -> None:
    avro = codec(record(("outer", {"type": "record", "name": "inner", "fields": [{"name": "x", "type": kind}]})))

    assert refusal(avro.decode, data, 0) == f"the field 'outer.x' {message}"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", 2**31, "is an integer of more than 32 bits"),
        ("long", -(2**63) - 1, "is an integer of more than 64 bits"),
        ("long", True, "is a boolean and not an integer"),
        ("long", 1.0, "is a number (float) and not an integer"),
        ("double", 2**53 + 1, "is an integer that no float is equal to"),
        ("double", Decimal("0.1"), "is a number (Decimal) and not a float"),
        ("float", 1e300, "is beyond the range of a float of 32 bits"),
        ("boolean", 1, "is a number (int) and not a boolean"),
        ("string", b"x", "is raw bytes and not text"),
        ("string", "\ud800", "is text that is not valid Unicode: surrogates not allowed"),
        ("bytes", "x", "is text and not bytes"),
        (DECIMAL, Decimal("1.234"), "has more than 2 digits after the point"),
        (DECIMAL, Decimal("123"), "has more than 2 digits before the point"),
        (DECIMAL, Decimal("1E+999999"), "has more than 2 digits before the point"),
        (DECIMAL, Decimal("1E-999999"), "has more than 2 digits after the point"),
        (DECIMAL, Decimal("NaN"), "is a number (Decimal) and not a decimal number"),
        (MILLIS, dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC), "has a finer time than its type"),
        (MILLIS, dt.datetime(2026, 1, 1), "is a time (datetime) and not a datetime with a zone"),  # noqa: DTZ001
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "C", "is not one of the symbols A, B"),
        ({"type": "fixed", "name": "f", "size": 2}, b"abc", "is raw bytes and not 2 bytes"),
        (["null", "long"], "x", "is text and not one of null, long"),
        (["null", "int"], 2**40, "is an integer of more than 32 bits"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_the_field_and_the_reason(
    kind: Any, value: Any, message: str
) -> None:
    avro = codec(record(("id", "int"), ("x", kind)))

    assert refusal(avro.encode, {"id": 1, "x": value}) == f"the field 'x' {message}"


def test_a_field_too_many_or_too_few_is_refused_and_a_default_is_written() -> None:
    schema = record(("id", "int"), ("tags", {"type": "array", "items": record(("t", "string")) | {"name": "tag"}}))
    schema["fields"].append({"name": "n", "type": "long", "default": 7})
    avro = codec(schema)

    assert avro.decode(avro.encode({"id": 1, "tags": []}), 0) == {"id": 1, "tags": [], "n": 7}
    assert refusal(avro.encode, {"id": 1}) == "the field 'tags' is missing"
    assert refusal(avro.encode, {"id": 1, "tags": [], "more": 1}) == "the field 'more' is not in the schema"
    assert refusal(avro.encode, {"id": 1, "tags": [{"t": "a"}, {"t": 1}]}) == (
        "the field 'tags.1.t' is a number (int) and not text"
    )


@pytest.mark.parametrize(
    ("value", "index"),
    [(5, 1), (2**40, 2), (0.1, 4), ("x", 5), (Decimal("1.5"), 6), (None, 0), (UUID(int=7), 5), (b"x", 6)],
)
def test_a_union_takes_the_type_that_the_value_has(value: Any, index: int) -> None:
    plain = ["null", "int", "long", "float", "double", "string", "bytes"]
    logical = ["null", "int", "long", "float", "double", {"type": "string", "logicalType": "uuid"}, DECIMAL]
    avro = codec(logical if isinstance(value, UUID | Decimal) else plain)

    encoded = avro.encode(value)

    assert encoded[0] == 2 * index
    assert avro.decode(encoded, 0) == value


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(("r", "r")), "contains itself without end"),
        ({"type": "array", "items": "null"}, "of which a few bytes could hold millions"),
        ({"type": "array", "items": record(("b", "boolean"), *[(f"n{i}", "null") for i in range(100)])}, "millions"),
        ({"type": "map", "values": record(*[(f"n{i}", "null") for i in range(100)])}, "millions"),
        (record(*[(f"n{i}", "null") for i in range(2000)]), "thousands of values"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 0}, "a precision of 1000000000"),
        ([], "no Avro schema"),
        ({"type": "fixed", "name": "f", "size": -1}, "has no size"),
        ("nobody", "no Avro schema"),
    ],
)
def test_a_schema_that_is_a_trap_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaUnusable, match=message):
        codec(schema)


def test_a_schema_that_doubles_at_every_level_is_refused_at_once() -> None:
    inner: Any = record(("n", "null")) | {"name": "r0"}
    for level in range(1, 60):
        inner = record(("a", inner), ("b", f"r{level - 1}")) | {"name": f"r{level}"}

    with pytest.raises(SchemaUnusable, match="thousands of values"):
        codec(inner)


def test_data_that_is_nested_without_end_is_refused() -> None:
    avro = codec(LIST)
    value: Any = None
    for n in range(50):
        value = {"n": n, "next": value}

    assert avro.decode(avro.encode(value), 0) == value
    assert "is nested more than 100 deep" in refusal(avro.decode, b"\x02\x02" * 100_000, 0)


def test_a_length_that_lies_takes_no_memory() -> None:
    avro = codec(record(("xs", {"type": "array", "items": "string"})))
    tracemalloc.start()
    refusal(avro.decode, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x00" * 1000, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


def test_data_is_read_with_the_schema_of_the_reader() -> None:
    writer = record(("id", "int"), ("gone", "string"))
    reader = record(("id", "long")) | {"name": "r"}
    reader["fields"].append({"name": "new", "type": "string", "default": "?"})
    written = codec(writer).encode({"id": 7, "gone": "x"})
    avro = AvroCodec(parse(json.dumps(writer)), parse(json.dumps(reader)))

    assert avro.decode(written, 0) == {"id": 7, "new": "?"}
    misfit = AvroCodec(parse(json.dumps(writer)), parse(json.dumps(record(("id", "string")))))
    assert refusal(misfit.decode, written, 0).startswith("does not match the reader's schema: ")


NAMES = st.from_regex("[a-z]{1,3}", fullmatch=True)
LEAVES: list[Any] = [st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT]
LEAVES += [st.binary(max_size=4), st.dates(), UTC_TIMES, st.uuids(), st.decimals(-1000, 1000, places=2)]
PLAIN = st.recursive(
    st.one_of(LEAVES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex("[A-Za-z_]{1,3}", fullmatch=True), PLAIN, max_size=4))
def test_a_record_fits_the_schema_that_is_inferred_from_it(value: dict[str, Any]) -> None:
    try:
        text = infer_schema(value, "record")
    except RecordRefused:
        assume("[" in repr(value))  # a list of values for which a union has no types
        return

    avro = AvroCodec(parse(text))
    assert avro.decode(avro.encode(value), 0) == value


def test_equal_records_have_equal_inferred_schemas_and_odd_names_are_refused() -> None:
    assert infer_schema({"a": 1, "b": 2}, "record") == infer_schema({"b": 2**50, "a": -1}, "record")
    assert "'odd key', which Avro does not allow" in refusal(infer_schema, {"a": {"odd key": 1}}, "record")
    assert (
        refusal(infer_schema, {"a": [object()]}, "record")
        == "the field 'a.item' is a value of type object, for which Avro has no type"
    )
