"""avro.encode and avro.decode against a real registry; the examples of Conduit give the results that it publishes."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from conduit_processors import avro
from registry_calls import ask, framed, id_of, new_subject, process, register, require_compatibility

from conduit_py.config.conduit_settings import translate
from conduit_py.config.translation import Setting
from conduit_py.sdk import FatalError, Operation, Payload, Record, RecordRefused
from conduit_py.testing.services import RegistryServer

RECORD = {
    "type": "record",
    "name": "record",
    "fields": [{"name": "myString", "type": "string"}, {"name": "myInt", "type": "int"}],
}
ADDRESS = {"type": "record", "name": "a.b.Address", "fields": [{"name": "city", "type": "string"}]}
PERSON = {"type": "record", "name": "a.b.Person", "fields": [{"name": "home", "type": "a.b.Address"}]}


@pytest.fixture
def subject() -> str:
    return new_subject()


def in_conduit(plugin: str, settings: dict[str, str]) -> Any:
    """The processor that Conduit's settings stand for."""
    kind: Any = {"avro.encode": avro.Encode, "avro.decode": avro.Decode}[plugin]
    texts = {name: Setting(text) for name, text in settings.items()}
    translation = translate("processor", plugin, texts, kind.options_model)
    assert translation.problems == translation.warnings == []
    return kind(**translation.options)


def example(**parts: Any) -> Record:
    return Record(position=b"test-position", operation=Operation.CREATE, metadata={"key1": "val1"}, **parts)


class TestExamplesOfConduit:
    """The id of a schema is 1 in Conduit's examples, whose registry is empty; here it is what the registry gives."""

    async def test_encode_and_register_the_schema(self, registry_server: RegistryServer, subject: str) -> None:
        url = registry_server.url
        settings = {"url": url, "schema.strategy": "autoRegister", "schema.autoRegister.subject": subject}
        data = {
            "myString": "bar",
            "myInt": 1,
            "myFloat": 2.3,
            "myMap": {"foo": True, "bar": 2.2},
            "myStruct": {"foo": 1, "bar": False},
        }

        [result] = await process(in_conduit("avro.encode", settings), example(payload=Payload(after=data)))

        published = [
            102,
            102,
            102,
            102,
            102,
            102,
            2,
            64,
            2,
            154,
            153,
            153,
            153,
            153,
            153,
            1,
            64,
            1,
            6,
            98,
            97,
            114,
            0,
            2,
        ]
        number = ask(f"{url}/subjects/{subject}/versions/1")["id"]
        wanted = b"\x00" + number.to_bytes(4, "big") + bytes(published)
        assert result == example(payload=Payload(after=wanted))

    async def test_encode_with_a_registered_schema(self, registry_server: RegistryServer, subject: str) -> None:
        url = registry_server.url
        number = register(url, subject, RECORD)
        settings = {"url": url, "field": ".Key", "schema.strategy": "preRegistered"}
        settings |= {"schema.preRegistered.subject": subject, "schema.preRegistered.version": "1"}

        [result] = await process(in_conduit("avro.encode", settings), example(key={"myString": "bar", "myInt": 1}))

        assert result == example(key=framed(number, bytes([6, 98, 97, 114, 2])))

    async def test_decode(self, registry_server: RegistryServer, subject: str) -> None:
        number = register(registry_server.url, subject, RECORD)
        data = framed(number, bytes([6, 98, 97, 114, 2]))

        settings = {"url": registry_server.url, "field": ".Key"}
        [result] = await process(in_conduit("avro.decode", settings), example(key=data))

        assert result == example(key={"myString": "bar", "myInt": 1})


def test_settings_of_conduit_become_options_and_problems_name_the_setting() -> None:
    settings = {"url": "https://registry", "auth.basic.username": "ada", "auth.basic.password": "hunter22"}
    settings |= {"tls.ca.cert": "ca.pem", "tls.client.cert": "c.pem", "tls.client.key": "k.pem"}
    options = in_conduit("avro.decode", settings).options
    texts = {"schema.strategy": Setting("autoRegister"), "schema.preRegistered.version": Setting("1")}
    problems = translate("processor", "avro.encode", texts, avro.Encode.options_model).problems

    assert (options.username, options.password.get_secret_value()) == ("ada", "hunter22")
    assert (options.ca_file, options.cert_file, options.key_file) == (Path("ca.pem"), Path("c.pem"), Path("k.pem"))
    assert [(each.setting, each.message) for each in problems] == [("url", "this setting is required")]
    wrong = {"url": Setting("http://registry"), "schema.strategy": Setting("auto")}
    [problem] = translate("processor", "avro.encode", wrong, avro.Encode.options_model).problems
    assert problem.setting == "schema.strategy"


async def test_every_record_of_a_batch_has_its_own_result(registry_server: RegistryServer, subject: str) -> None:
    register(registry_server.url, subject, RECORD)
    encode = avro.Encode(url=registry_server.url, subject=subject)
    good, tombstone, raw = {"myString": "x", "myInt": 1}, None, b'{"myString": "x", "myInt": 1}'
    results = await process(encode, good, {"myString": 1, "myInt": 1}, tombstone, raw, {"myString": "x"})

    assert results[0].payload.after == results[3].payload.after
    assert [getattr(each, "message", None) for each in results] == [
        None,
        ".Payload.After: the field 'myString' is a number (int) and not text",
        None,
        None,
        ".Payload.After: the field 'myInt' is missing",
    ]
    assert results[2].payload.after is None
    unknown = b"\x00\x7f\xff\xff\xff\x02"
    decoded = await process(avro.Decode(url=registry_server.url), results[0], unknown, None, good, b"short")
    assert decoded[0].payload.after == good
    assert ".Payload.After: cannot be decoded with schema 2147483647: the registry says:" in decoded[1].message
    assert decoded[2].payload.after is None
    assert decoded[3].message == ".Payload.After: is structured data and not raw data with a schema id"
    assert decoded[4].message == ".Payload.After: has no schema id: its first byte is 0x73, not 0x00"


@pytest.mark.parametrize(
    ("strategy", "field", "wanted"),
    [
        ("topic", ".Payload.After", "{topic}-value"),
        ("topic", ".Key", "{topic}-key"),
        ("record", ".Payload.After", "a.b.{topic}"),
        ("topic-record", ".Payload.After", "{topic}-a.b.{topic}"),
    ],
)
async def test_the_subject_follows_the_strategy(
    registry_server: RegistryServer, tmp_path: Path, strategy: Any, field: str, wanted: str
) -> None:
    topic = f"t{uuid4().hex}"
    (tmp_path / "schema.avsc").write_text(json.dumps(RECORD | {"name": f"a.b.{topic}"}))
    encode = avro.Encode(
        url=registry_server.url,
        field=field,
        strategy="autoRegister",
        subject_strategy=strategy,
        schema_file=tmp_path / "schema.avsc",
    )
    value = {"myString": "x", "myInt": 1}
    record = Record(metadata={"opencdc.collection": topic}, key=value, payload=Payload(after=value))

    [result, homeless] = await process(encode, record, Record(key=value, payload=Payload(after=value)))

    data = result.key if field == ".Key" else result.payload.after
    found = ask(f"{registry_server.url}/subjects/{wanted.format(topic=topic)}/versions/latest")
    assert found["id"] == id_of(data)
    if strategy == "record":
        assert isinstance(homeless, Record)
    else:
        assert homeless.message == f"{field}: has no subject: the record has no metadata 'opencdc.collection'"


async def test_a_given_schema_is_looked_up_and_not_registered_unless_that_is_asked_for(
    registry_server: RegistryServer, subject: str, tmp_path: Path
) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(RECORD))
    encode = avro.Encode(url=registry_server.url, subject=subject, schema_file=path)
    value = {"myString": "x", "myInt": 1}
    with pytest.raises(FatalError, match=f"has no schema with subject {subject!r}") as caught:
        await process(encode, value)
    number = register(registry_server.url, subject, RECORD)
    [result] = await process(encode, value)

    assert caught.value.suggestion == "register the schema, or choose strategy='autoRegister'"
    assert id_of(result.payload.after) == number


async def test_a_schema_may_use_others(registry_server: RegistryServer, subject: str, tmp_path: Path) -> None:
    url = registry_server.url
    register(url, f"{subject}-address", ADDRESS)
    reference: dict[str, str | int] = {"name": "a.b.Address", "subject": f"{subject}-address", "version": 1}
    path = tmp_path / "person.avsc"
    path.write_text(json.dumps(PERSON))
    given = avro.Encode(url=url, subject=subject, strategy="autoRegister", schema_file=path, references=[reference])
    value = {"home": {"city": "Bern"}}

    [first] = await process(given, value)
    [second] = await process(avro.Encode(url=url, subject=subject), value)
    [decoded] = await process(avro.Decode(url=url), Record.of(second.payload.after))

    assert first.payload.after == second.payload.after
    assert decoded.payload.after == value


async def test_inferred_schemas_may_change_in_any_way_in_a_subject_of_their_own(
    registry_server: RegistryServer, subject: str
) -> None:
    url = registry_server.url
    encode = avro.Encode(url=url, subject=subject, strategy="autoRegister")

    first, second, again = await process(encode, {"n": 1}, {"n": "x", "m": None}, {"n": 2})

    assert id_of(first.payload.after) == id_of(again.payload.after) != id_of(second.payload.after)
    assert ask(f"{url}/config/{subject}") == {"compatibilityLevel": "NONE"}
    register(url, f"{subject}-strict", RECORD)
    require_compatibility(url, f"{subject}-strict", "BACKWARD")
    strict = avro.Encode(url=url, subject=f"{subject}-strict", strategy="autoRegister")
    [refused] = await process(strict, {"other": 1})
    assert isinstance(refused, RecordRefused)
    assert "Incompatible" in refused.message


async def test_a_given_schema_that_the_subject_does_not_allow_stops_the_pipeline(
    registry_server: RegistryServer, subject: str, tmp_path: Path
) -> None:
    url, path = registry_server.url, tmp_path / "schema.avsc"
    register(url, subject, RECORD)
    require_compatibility(url, subject, "BACKWARD")
    path.write_text(json.dumps({**RECORD, "fields": [{"name": "other", "type": "string"}]}))

    with pytest.raises(FatalError, match="Incompatible") as caught:
        await process(avro.Encode(url=url, subject=subject, strategy="autoRegister", schema_file=path), {"other": "x"})
    assert caught.value.suggestion == "change the schema, or what the subject allows"


async def test_data_is_read_with_a_later_version_of_its_subject(registry_server: RegistryServer, subject: str) -> None:
    url = registry_server.url
    register(url, subject, RECORD)
    [written] = await process(avro.Encode(url=url, subject=subject), {"myString": "x", "myInt": 1})
    later = {**RECORD, "fields": [{"name": "myInt", "type": "long"}, {"name": "new", "type": "string", "default": "?"}]}
    register(url, subject, later)

    [decoded] = await process(avro.Decode(url=url, reader_subject=subject), Record.of(written.payload.after))

    assert decoded.payload.after == {"myInt": 1, "new": "?"}


@pytest.mark.parametrize(
    ("schema", "raw", "data"),
    [('"string"', b"r\xc3\xa9d", b"\x08r\xc3\xa9d"), ('"bytes"', b"\xff", b"\x02\xff"), ('"long"', b"-1", b"\x01")],
)
async def test_a_key_that_is_no_record_is_raw_data(
    registry_server: RegistryServer, subject: str, schema: str, raw: bytes, data: bytes
) -> None:
    url = registry_server.url
    number = register(url, subject, schema)

    [encoded] = await process(avro.Encode(url=url, subject=subject, field=".Key"), Record(key=raw))
    [decoded] = await process(avro.Decode(url=url, field=".Key"), Record(key=encoded.key))

    assert encoded.key == framed(number, data)
    assert decoded.key == raw
