"""The Kafka destination on a real broker: what messages are, which topics it writes to, and what is refused."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import kafka, memory, sqlite
from kafka_topics import KafkaTopics

import conduit_py
from conduit_py import Destination, Pipeline, Source
from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Operation, Payload, Record
from conduit_py.status import Status
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port
from conduit_py.testing.services import KafkaServer


def write(destination: kafka.Destination, *records: Record) -> dict[int, str]:
    """Write records as at-least-once pipelines do; return the refused ones."""
    destination = destination.fresh()
    destination.open()
    refused = destination.write(batch_of(list(records)))
    destination.flush()
    destination.teardown()
    return refused


def test_a_record_becomes_a_message_with_its_key_and_headers(topics: KafkaTopics) -> None:
    topic = topics.create()
    refused = write(
        kafka.Destination(servers=topics.address, topic=topic),
        Record(b"1", key=b"k", payload=Payload(after=b"v"), metadata={"kafka.header.trace": "abc", "other": "x"}),
        Record(b"2", key={"id": 7}, payload=Payload(after={"n": 1})),
        Record(b"3", Operation.DELETE, key=b"gone", payload=Payload(before={"n": 1})),
        Record(b"4", payload=Payload(after=b"v"), metadata={"kafka.headers": '[["t", "MQ=="], ["t", null]]'}),
    )
    messages = topics.messages(topic)

    assert refused == {}
    assert [(each.key(), each.value(), each.headers()) for each in messages] == [
        (b"k", b"v", [("trace", b"abc")]),
        (b'{"id":7}', b'{"n":1}', None),
        (b"gone", None, None),
        (None, b"v", [("t", b"1"), ("t", None)]),
    ]


def test_a_field_may_be_the_key(topics: KafkaTopics) -> None:
    topic = topics.create()
    refused = write(
        kafka.Destination(servers=topics.address, topic=topic, key_field="id"),
        Record(b"1", payload=Payload(after={"id": "a"})),
        Record(b"2", payload=Payload(after={"id": 5})),
        Record(b"3", Operation.DELETE, payload=Payload(before={"id": "a"})),
        Record(b"4", payload=Payload(after=b"raw")),
    )

    assert [each.key() for each in topics.messages(topic)] == [b"a", b"5", b"a"]
    assert refused == {3: "has no field 'id' for the key"}


def test_records_may_name_only_the_topics_that_are_allowed(topics: KafkaTopics) -> None:
    one, two = topics.create(), topics.create()

    def record(number: int, collection: str) -> Record:
        return Record(b"%d" % number, payload=Payload(after=b"v"), metadata={"opencdc.collection": collection})

    hostile = ["__consumer_offsets", "conduit-checkpoints", "new-topic", "../x"]
    refused = write(
        kafka.Destination(servers=topics.address, topics=[one, two]),
        *[record(number, name) for number, name in enumerate([one, two, *hostile])],
    )

    assert (topics.values(one), topics.values(two)) == ([b"v"], [b"v"])
    assert list(refused) == [2, 3, 4, 5]
    assert refused[4] == "belongs to the collection 'new-topic', which is not among the `topics`"


def test_what_the_topic_would_refuse_is_refused_alone(topics: KafkaTopics) -> None:
    topic = topics.create(max_message_bytes="2000", cleanup_policy="compact")
    # Many small ones: a batch that is larger than the topic takes must not be sent either.
    small = [Record(b"%d" % number, key=b"k", payload=Payload(after=b"v" * 500)) for number in range(50)]
    refused = write(
        kafka.Destination(servers=topics.address, topic=topic, compression="none"),
        *small,
        Record(b"large", key=b"k", payload=Payload(after=b"x" * 2000)),
        Record(b"no key", payload=Payload(after=b"v")),
        Record(b"delete", Operation.DELETE),
    )

    assert len(topics.values(topic)) == 50
    assert refused == {
        50: "has 2101 bytes, and the topic takes 2000",
        51: "has no key, which a compacted topic needs",
        52: "is a delete without a key, which Kafka cannot express",
    }


def test_it_stages_when_another_destination_carries_the_commit(topics: KafkaTopics, tmp_path: Path) -> None:
    topic = topics.create()
    pipeline = Pipeline(
        "p",
        sources=[Source("in", memory.Source(records=[{"n": number} for number in range(300)]))],
        destinations=[
            Destination("table", sqlite.Destination(path=tmp_path / "data.db", table="t")),
            Destination("topic", kafka.Destination(servers=topics.address, topic=topic)),
        ],
        delivery="exactly_once",
    )
    outcome = conduit_py.run(pipeline, state=tmp_path / "state")
    with sqlite3.connect(tmp_path / "data.db") as connection:
        [(rows,)] = connection.execute("SELECT count(*) FROM t")

    assert outcome.status is Status.COMPLETED, outcome.error
    assert rows == 300
    assert topics.values(topic) == [b'{"n":%d}' % number for number in range(300)]


def test_a_missing_topic_a_wrong_password_and_a_broker_that_is_down(
    topics: KafkaTopics, kafka_server: KafkaServer
) -> None:
    topic = topics.create()

    def error_of(**options: Any) -> Exception:
        destination = kafka.Destination(**{"servers": topics.address, "topic": topic} | options).fresh()
        with pytest.raises((FatalError, TransientError)) as raised:
            destination.open()
        destination.teardown()
        return raised.value

    guarded: dict[str, Any] = {"servers": kafka_server.guarded_address, "username": "tester", "mechanism": "PLAIN"}
    missing, wrong = error_of(topic="no-such-topic"), error_of(**guarded, password="hush-hush")
    down = error_of(servers=f"127.0.0.1:{free_port()}", answer_seconds=1)
    taken = write(kafka.Destination(topic=topic, password=kafka_server.password, **guarded), Record(b"1", key=b"k"))

    assert isinstance(missing, FatalError)
    assert missing.message == "Kafka has no topic no-such-topic"
    assert isinstance(wrong, FatalError)
    assert wrong.suggestion == "check `username`, `password` and `mechanism`"
    assert "hush-hush" not in str(wrong)
    assert isinstance(down, TransientError)
    assert taken == {}
