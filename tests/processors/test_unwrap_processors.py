"""unwrap.debezium, unwrap.kafkaconnect and unwrap.opencdc."""

from collections.abc import Callable
from typing import Any

import pytest
from conduit_processors.unwrap import Debezium, KafkaConnect, OpenCDC

from conduit_py.sdk import Operation, Payload, Record, RecordRefused, encode_json

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]


def event(**changes: Any) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": {"id": 27}, "source": {}} | changes


@pytest.mark.parametrize(
    "wrapped",
    [
        {"schema": {}, "payload": event()},
        event(),
        encode_json({"schema": {}, "payload": event()}),
        encode_json(event()),
    ],
)
def test_a_debezium_event_may_be_structured_or_json_with_or_without_its_schema(run: Run, wrapped: Any) -> None:
    assert run(Debezium(), Record.of(wrapped, position=b"p")) == Record.of({"id": 27}, position=b"p")


def test_a_debezium_event_may_be_in_a_field(run: Run) -> None:
    given = Record.of({"event": encode_json(event(op="d", before={"id": 1}, after=None)).decode()})

    result = run(Debezium(field="event"), given)

    assert result == Record(operation=Operation.DELETE, payload=Payload({"id": 1}, None))


@pytest.mark.parametrize(
    ("op", "operation"),
    [
        ("c", Operation.CREATE),
        ("u", Operation.UPDATE),
        ("d", Operation.DELETE),
        ("r", Operation.SNAPSHOT),
        ("$unset", Operation.UPDATE),
    ],
)
def test_a_debezium_op_becomes_the_operation(run: Run, op: str, operation: Operation) -> None:
    assert run(Debezium(), Record.of(event(op=op))).operation is operation


def test_debezium_sides_in_text_become_raw_bytes(run: Run) -> None:
    assert run(Debezium(), Record.of(event(before="b", after="a"))).payload == Payload(b"b", b"a")


def test_debezium_metadata_is_merged_and_the_source_wins(run: Run) -> None:
    source = {
        "table": "orders",
        "ts_ms": 1674061777000,
        "snapshot": False,
        "lsn": 12345678901234567890,
        "nested": {"a": {"b": 1.5}},
        "none": None,
        "kept": "theirs",
    }
    given = Record(metadata={"kept": "ours", "m": "x"}, payload=Payload(None, event()))
    given.payload.after = event(source=source, ts_ms=1674061777225, transaction={"id": "t", "order": 3}, ts_us=7)

    assert run(Debezium(), given).metadata == {
        "m": "x",
        "kept": "theirs",
        "opencdc.readAt": "1674061777225000000",
        "opencdc.createdAt": "1674061777000000000",
        "opencdc.collection": "orders",
        "debezium.transaction.id": "t",
        "debezium.transaction.order": "3",
        "debezium.ts_us": "7",
        "table": "orders",
        "ts_ms": "1674061777000",
        "snapshot": "false",
        "lsn": "12345678901234567890",
        "nested.a.b": "1.5",
    }
    assert given.metadata == {"kept": "ours", "m": "x"}


def test_opencdc_metadata_carried_by_debezium_is_kept(run: Run) -> None:
    source = {
        "opencdc.readAt": "1674061777225877000",
        "opencdc.version": "v1",
        "collection": "c",
        "opencdc.collection": "d",
    }

    assert run(Debezium(), Record.of(event(source=source, ts_ms=1674061777225.0, transaction=None))).metadata == {
        "opencdc.readAt": "1674061777225877000",
        "opencdc.version": "v1",
        "opencdc.collection": "d",
        "collection": "c",
    }


@pytest.mark.parametrize(
    ("key", "unwrapped"),
    [
        (b'{"schema": {}, "payload": {"id": 27}}', {"id": 27}),
        (b'{"payload":"27"}', b"27"),
        ({"payload": 27, "schema": {}}, b"27"),
        ({"payload": None}, None),
        ({"payload": {"id": 27}}, {"id": 27}),
        ({"id": 27}, {"id": 27}),
        (b'{"id": 27}', b'{"id": 27}'),
        (b"27", b"27"),
        (b"{nope", b"{nope"),
        (None, None),
    ],
)
def test_a_key_in_an_envelope_is_unpacked_and_any_other_stays(run: Run, key: Any, unwrapped: Any) -> None:
    assert run(Debezium(), Record.of(event(), key=key)).key == unwrapped
    assert run(KafkaConnect(), Record.of({"payload": {}}, key=key)).key == unwrapped


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (None, ".Payload.After: there is nothing to unwrap: it is absent and not an object"),
        (b"[]", ".Payload.After: there is nothing to unwrap: it is a list and not an object"),
        (b"{nope", ".Payload.After: not valid JSON: JSON is malformed: object keys must be strings (byte 1)"),
        ({"payload": 5}, '.Payload.After: not a Debezium event: its "payload" is a number and not an object'),
        ({"foo": "bar"}, ".Payload.After: not a Debezium event: it has no after, source, op"),
        (
            event(op="t"),
            """.Payload.After: not a Debezium event: "op" must be one of c, u, d, r, $unset, not 't'""",
        ),
        (
            event(op=["c"]),
            """.Payload.After: not a Debezium event: "op" must be one of c, u, d, r, $unset, not ['c']""",
        ),
        (
            event(after=5),
            '.Payload.After: not a Debezium event: "after" must be an object, text or null; it is a number',
        ),
        (event(source="x"), '.Payload.After: not a Debezium event: "source" is text and not an object'),
        (
            event(ts_ms=1.5),
            '.Payload.After: not a Debezium event: "ts_ms" must be a whole number of milliseconds, not 1.5',
        ),
    ],
)
def test_what_is_no_debezium_event_is_refused(refusal: Refusal, after: Any, message: str) -> None:
    assert refusal(Debezium(), Record.of(after)).message == message


def test_kafka_connect_gives_a_record_that_creates_the_payload(run: Run) -> None:
    given = Record(
        b"p", Operation.UPDATE, {"m": "x"}, b"k", Payload({"old": 1}, b'{"schema": {}, "payload": {"id": 7}}')
    )

    assert run(KafkaConnect(), given) == Record(b"p", Operation.CREATE, {"m": "x"}, b"k", Payload(None, {"id": 7}))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"schema": {}}, '.Payload.After: the envelope needs an object "payload"; it is absent'),
        ({"payload": [1]}, '.Payload.After: the envelope needs an object "payload"; it is a list'),
        (b"5", ".Payload.After: there is nothing to unwrap: it is a number and not an object"),
    ],
)
def test_kafka_connect_refuses_what_has_no_payload(refusal: Refusal, after: Any, message: str) -> None:
    assert refusal(KafkaConnect(), Record.of(after)).message == message


INNER = Record(b"inner", Operation.UPDATE, {"m": "x"}, b"\x00key", Payload({"old": 1}, b"raw"))


@pytest.mark.parametrize("wrapped", [INNER.to_json(), INNER.to_map(), INNER.to_map() | {"position": 5}])
def test_opencdc_gives_the_inner_record_with_the_outer_position(run: Run, wrapped: Any) -> None:
    given = Record(b"outer", metadata={"gone": "x"}, key=b"gone", payload=Payload(None, wrapped))

    result = run(OpenCDC(), given)

    assert result == Record(b"outer", INNER.operation, INNER.metadata, INNER.key, INNER.payload)


def test_opencdc_may_be_in_the_key_or_a_field(run: Run) -> None:
    given = Record(key=INNER.to_json(), payload=Payload(None, {"deep": {"record": INNER.to_json().decode()}}))

    assert run(OpenCDC(field=".Key"), given) == run(OpenCDC(field="deep.record"), given)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (None, ".Payload.After: there is nothing to unwrap: it is absent and not an object"),
        ({}, ".Payload.After: not an OpenCDC record: it has no operation, metadata, payload"),
        (
            INNER.to_map() | {"operation": "foobar"},
            ".Payload.After: not an OpenCDC record: "
            "operation must be one of create, update, delete, snapshot, not 'foobar'",
        ),
        (
            INNER.to_map() | {"metadata": "x"},
            ".Payload.After: not an OpenCDC record: metadata must map text to text",
        ),
        (
            INNER.to_map() | {"key": 5},
            ".Payload.After: not an OpenCDC record: key must be base64 text, not int",
        ),
        (
            INNER.to_map() | {"payload": {"sideways": None}},
            ".Payload.After: not an OpenCDC record: payload has unknown fields: 'sideways'",
        ),
    ],
)
def test_opencdc_refuses_what_is_no_record(refusal: Refusal, after: Any, message: str) -> None:
    assert refusal(OpenCDC(), Record.of(after)).message == message


@pytest.mark.parametrize("processor", [Debezium, KafkaConnect])
def test_envelopes_are_in_the_payload(processor: Any) -> None:
    [problem] = processor(field=".Key").problems

    assert problem.message == (
        "must be a field path such as .Payload.After.name (it must be in .Payload.Before or .Payload.After), not '.Key'"
    )
