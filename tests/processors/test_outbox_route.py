"""`outbox.route`: rows of an outbox table become messages with a topic, a key, headers and a content."""

import logging
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from builders import batch_of
from conduit_connectors import memory
from conduit_connectors import postgres as connector
from conduit_connectors.kafka.message import MessageEncoder, TopicLimits
from conduit_processors import outbox
from postgres_changes import run_sql, slot_of
from waiting import until

from conduit_py import Destination, Operation, Payload, Pipeline, Record, RecordRefused, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.memory import MemoryStore

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "send-an-outbox-table.md"
ROW = {"id": UUID(int=7), "aggregatetype": "order", "aggregateid": "a1", "type": "placed", "payload": '{"n":1}'}


def route(**options: Any) -> outbox.Route:
    made = outbox.Route(**options)
    made.open()
    return made


def inserted(**changes: Any) -> Record:
    record = Record.of(ROW | changes, key={"id": 7}, position=b"p")
    record.metadata = {"opencdc.collection": "public.outbox", "postgres.xid": "9"}
    return record


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.SNAPSHOT])
def test_a_row_becomes_the_message_that_it_stands_for(operation: Operation) -> None:
    record = inserted()
    record.operation = operation

    assert route().process(record) == Record(
        b"p",
        Operation.CREATE,
        {
            "opencdc.collection": "outbox.event.order",
            "postgres.xid": "9",
            "kafka.header.id": str(UUID(int=7)),
            "kafka.header.eventType": "placed",
        },
        b"a1",
        Payload(after=b'{"n":1}'),
    )


@pytest.mark.parametrize("content", ['{"n": 1}', b'{"n": 1}', {"n": 1}])
def test_content_is_expanded_where_that_is_wanted(content: Any) -> None:
    message = route(expand=True).process(inserted(payload=content))

    assert message is not None
    assert message.payload.after == {"n": 1}


@pytest.mark.parametrize(
    ("content", "raw"), [("text", b"text"), (b"\xff", b"\xff"), ({"n": 1}, b'{"n":1}'), ([1], b"[1]"), ("", b"")]
)
def test_content_is_sent_as_it_is_otherwise(content: Any, raw: bytes) -> None:
    message = route().process(inserted(payload=content))

    assert message is not None
    assert message.payload.after == raw


@pytest.mark.parametrize(("key", "raw"), [("a1", b"a1"), (7, b"7"), (UUID(int=7), str(UUID(int=7)).encode())])
def test_the_key_is_raw(key: Any, raw: bytes) -> None:
    message = route().process(inserted(aggregateid=key))

    assert message is not None
    assert message.key == raw


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"payload": "[1]"}, {"expand": True}, "cannot be expanded"),
        ({"payload": "{"}, {"expand": True}, "not valid JSON"),
        ({"payload": None}, {}, "tombstones"),
        ({"payload": None, "aggregateid": None}, {"tombstones": True}, "neither content nor a key"),
        ({"payload": "\ud800"}, {}, "surrogate"),
        ({}, {"payload": "body"}, "no column 'body'"),
        ({}, {"headers": {"trace": "kafka.header.trace"}}, "no column 'trace'"),
        ({"aggregatetype": ""}, {"topic": "{{ .Payload.After.aggregatetype }}"}, "empty"),
        ({}, {"topic": "{{ .Payload.After.kind }}"}, "kind"),
    ],
)
def test_a_row_that_is_no_message_is_refused(changes: dict[str, Any], options: Any, reason: str) -> None:
    record = inserted(**changes)
    before = record.copy()

    with pytest.raises(RecordRefused, match=reason):
        route(**options).process(record)
    assert record == before


def test_raw_records_are_no_rows() -> None:
    with pytest.raises(RecordRefused, match="not a row"):
        route(topic="t").process(Record.of(b"raw"))


def test_a_row_without_content_deletes_its_key() -> None:
    message = route(tombstones=True).process(inserted(payload=None))

    assert message is not None
    assert (message.operation, message.key, message.payload.after) == (Operation.DELETE, b"a1", None)


def test_deletes_and_truncates_of_the_table_are_dropped() -> None:
    truncated = Record(operation=Operation.DELETE, metadata={"conduit.truncate": "true"})

    assert route().process(Record(operation=Operation.DELETE, key={"id": 7})) is None
    assert route().process(truncated) is None


def test_updates_are_refused_or_named_once(caplog: pytest.LogCaptureFixture) -> None:
    record = inserted()
    record.operation = Operation.UPDATE
    with pytest.raises(RecordRefused, match="cannot be changed"):
        route().process(record)
    lenient = route(on_update="warn")
    with caplog.at_level(logging.WARNING):
        assert [lenient.process(record), lenient.process(record)] == [None, None]

    assert len(caplog.records) == 1


def test_kafka_gets_topic_key_headers_and_tombstones() -> None:
    processor = route(tombstones=True)
    encoder = MessageEncoder(None, {"outbox.event.order": TopicLimits(10_000, True)}, None)
    rows = [inserted(), inserted(payload=None), inserted(aggregatetype="other")]
    messages, refused = encoder.encode_batch(batch_of(*(processor.process(row) for row in rows)))

    headers = [("id", str(UUID(int=7)).encode()), ("eventType", b"placed")]
    assert [(each.topic, each.key, each.value, list(each.headers)) for each in messages] == [
        ("outbox.event.order", b"a1", b'{"n":1}', headers),
        ("outbox.event.order", b"a1", None, headers),
    ]
    assert set(refused) == {2}


def test_the_table_of_our_own_outbox() -> None:
    processor = route(topic="{{ .Payload.After.target }}", key="key", payload="body", headers={})
    row = {"number": 1, "target": "mail", "key": b"\1\2", "body": b"Your bill"}
    message = processor.process(Record.of(row))

    assert message is not None
    assert (message.metadata, message.key) == ({"opencdc.collection": "mail"}, b"\1\2")
    assert message.payload.after == b"Your bill"


@pytest.mark.parametrize("headers", ["id", "id:a:b", 7])
def test_headers_that_are_no_pairs_are_a_problem(headers: Any) -> None:
    (problem,) = outbox.Route(headers=headers).problems

    assert problem.path.startswith("headers")


def insert(kind: str, id: str, n: int) -> str:
    return f"INSERT INTO outbox VALUES (gen_random_uuid(), '{kind}', '{id}', 'paid', jsonb_build_object('n', {n}))"


async def test_inserts_into_an_outbox_of_postgresql_are_messages_in_order(postgres: str) -> None:
    [table] = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    run_sql(postgres, table, insert("order", "a1", 1))
    messages: list[Record] = []
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["outbox"])
    pipeline = Pipeline(
        "p",
        sources=[Source("s", source)],
        processors=[outbox.Route(expand=True)],
        destinations=[Destination("d", memory.Destination(into=messages))],
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(lambda: messages)
        run_sql(postgres, insert("order", "a1", 2), "DELETE FROM outbox", insert("bill", "b1", 3))
        await until(lambda: len(messages) == 3)
        supervisor.stop()

    assert [(each.metadata["opencdc.collection"], each.key, each.payload.after) for each in messages] == [
        ("outbox.event.order", b"a1", {"n": 1}),
        ("outbox.event.order", b"a1", {"n": 2}),
        ("outbox.event.bill", b"b1", {"n": 3}),
    ]
    assert messages[1].metadata["kafka.header.eventType"] == "paid"
