"""jsonschema.encode and jsonschema.decode against a real registry."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from conduit_processors import avro, jsonschema
from conduit_processors.jsonschema.codec import JsonSchemaCodec
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from hypothesis import given
from hypothesis import strategies as st
from registry_calls import ask, framed, id_of, new_subject, process, register

from conduit_py.sdk import Record, RecordRefused, encode_json
from conduit_py.testing.services import RegistryServer

ORDER = {
    "title": "shop.Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "at": {"type": "string"}, "to": {"$ref": "address.json"}},
    "required": ["id"],
    "additionalProperties": False,
}
ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def codec(schema: Any, **types: Any) -> JsonSchemaCodec:
    used = tuple((name, json.dumps(each)) for name, each in types.items())
    return JsonSchemaCodec(RegisteredSchema(1, "JSON", json.dumps(schema), used))


async def test_json_goes_there_and_back_with_a_schema_that_uses_another(
    registry_server: RegistryServer, tmp_path: Path
) -> None:
    url, subject = registry_server.url, new_subject()
    register(url, f"{subject}-address", ADDRESS, schemaType="JSON")
    reference: dict[str, str | int] = {"name": "address.json", "subject": f"{subject}-address", "version": 1}
    path = tmp_path / "order.json"
    path.write_text(json.dumps(ORDER))
    encode = jsonschema.Encode(
        url=url, subject=subject, strategy="autoRegister", schema_file=path, references=[reference]
    )
    value = {"id": 10**30, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "to": {"city": "Bern"}}

    results = await process(encode, value, {"id": "7"}, {"id": 1, "to": {}}, None, {"id": 1, "x": 2})
    data = results[0].payload.after
    decoded = await process(jsonschema.Decode(url=url), data, framed(id_of(data), b'{"id": 1'), data + b"}", data[:5])

    assert data == framed(ask(f"{url}/subjects/{subject}/versions/1")["id"], encode_json(value))
    assert decoded[0].payload.after == {**value, "at": "2026-01-01T00:00:00Z"}
    assert results[3].payload.after is None
    messages = [each.message for each in [*results[1:3], results[4], *decoded[1:]]]
    assert messages == [
        ".Payload.After: does not fit its schema: the field 'id': '7' is not of type 'integer'",
        ".Payload.After: does not fit its schema: the field 'to': 'city' is a required property",
        ".Payload.After: does not fit its schema: it: has the field 'x', which is not in the schema",
        *messages[3:],
    ]
    assert all(message.startswith(".Payload.After: not valid JSON") for message in messages[3:])


async def test_a_schema_is_inferred_and_the_formats_are_kept_apart(registry_server: RegistryServer) -> None:
    url, subject = registry_server.url, new_subject()
    encode = jsonschema.Encode(url=url, subject=subject, strategy="autoRegister")

    [first, raw] = await process(encode, {"n": 1, "tags": ["a"]}, b'{"n": 2, "tags": ["b"]}')
    [decoded] = await process(jsonschema.Decode(url=url), Record.of(first.payload.after))
    [refused] = await process(avro.Decode(url=url), Record.of(first.payload.after))

    assert id_of(raw.payload.after) == id_of(first.payload.after)
    assert decoded.payload.after == {"n": 1, "tags": ["a"]}
    assert isinstance(refused, RecordRefused)
    assert "is of the type JSON, not AVRO" in refused.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3))
def test_decoding_undoes_encoding_with_the_schema_that_is_inferred(value: Any) -> None:
    text = jsonschema.Encode(url="http://localhost", subject="s", strategy="autoRegister").infer(value, "record")
    json_codec = JsonSchemaCodec(RegisteredSchema(1, "JSON", text))

    assert json_codec.decode(b"12345" + json_codec.encode(value), 5) == value


@given(st.binary(max_size=20))
def test_any_bytes_are_a_value_that_fits_or_are_refused(data: bytes) -> None:
    json_codec = codec({"type": ["object", "integer"]})
    try:
        value = json_codec.decode(data, 0)
    except RecordRefused:
        return

    assert isinstance(value, dict | int | float)


@pytest.mark.parametrize(
    "schema", ["{nope", '{"type": 7}', '{"pattern": "(?<=x)"}', '{"properties": []}', "[" * 500, '"text"']
)
def test_a_schema_that_is_none_cannot_be_used(schema: str) -> None:
    with pytest.raises(SchemaUnusable):
        JsonSchemaCodec(RegisteredSchema(1, "JSON", schema))
