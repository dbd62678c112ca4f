"""The Kafka destination on a real broker: what messages are, which topics it writes to, and what is refused."""

import random
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


def test_messages_are_the_same_with_every_compression(topics: KafkaTopics) -> None:
    topic, value = topics.create(), b"the same again " * 500
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        refused = write(
            kafka.Destination(servers=topics.address, topic=topic, compression=compression),
            Record(compression.encode(), payload=Payload(after=value)),
        )
        assert refused == {}

    assert [each.value() for each in topics.messages(topic)] == [value] * 5


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


def test_headers_and_keys_that_kafka_cannot_hold_are_refused_alone(topics: KafkaTopics) -> None:
    """The client library ends the process for some of them, and would change others."""
    topic = topics.create()
    hostile = [
        {"kafka.headers": '[["\\ud800", null]]'},
        {"kafka.headers": '[["a\\u0000b", null]]'},
        {"kafka.headers": "[[1, null]]"},
        {"kafka.headers": '[["a", "!!!!aGk="]]'},
        {"kafka.headers": "[" * 100_000},
        {"kafka.header.\ud800": "x"},
        {"kafka.header.x": "\ud800"},
        {"kafka.header." + "\N{EURO SIGN}" * 400_000: "x"},
    ]
    payload = Payload(after={"id": "k"})
    records = [Record(b"%d" % index, payload=payload, metadata=each) for index, each in enumerate(hostile)]
    refused = write(
        kafka.Destination(servers=topics.address, topic=topic, key_field="id"),
        *records,
        Record(b"text", payload=Payload(after={"id": "\ud800"})),
        Record(b"good", payload=payload),
    )

    assert list(refused) == list(range(len(hostile) + 1))
    assert topics.values(topic) == [b'{"id":"k"}']


def test_a_record_without_a_payload_does_not_become_a_delete(topics: KafkaTopics) -> None:
    topic = topics.create()
    refused = write(kafka.Destination(servers=topics.address, topic=topic), Record(b"1", key=b"k"))

    assert refused == {0: "has no payload, which readers of Kafka would take for a delete"}
    assert topics.values(topic) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tls": True, "ca_file": "/nowhere/ca.pem"}, "ssl.ca.location failed"),
        ({"config": {"no.such.setting": 1}}, "No such configuration property"),
        ({"config": {"stats_cb": "x"}}, "stats_cb"),
    ],
)
def test_settings_that_the_client_refuses_end_the_pipeline(options: dict[str, Any], why: str) -> None:
    for connector in (
        kafka.Destination(servers="h:1", topic="t", **options),
        kafka.Source(servers="h:1", topics=["t"], **options),
    ):
        with pytest.raises(FatalError, match=f"the Kafka client refuses its settings: .*{why}"):
            connector.open() if isinstance(connector, kafka.Destination) else connector.open(None)


@pytest.mark.parametrize(
    ("partitions", "policy", "why"),
    [(3, "compact", "has 3 partitions"), (1, "delete", "has cleanup.policy=delete")],
)
def test_a_checkpoint_topic_that_would_lose_the_checkpoint_is_refused(
    topics: KafkaTopics, partitions: int, policy: str, why: str
) -> None:
    checkpoints = topics.create(partitions, cleanup_policy=policy)
    destination = kafka.Destination(servers=topics.address, topic=topics.create(), checkpoint_topic=checkpoints)
    destination.open()
    with pytest.raises(FatalError, match=why):
        destination.claim("p", 1)
    destination.teardown()


def test_a_checkpoint_may_be_larger_than_messages_mostly_are(topics: KafkaTopics) -> None:
    topic = topics.create()
    declared = kafka.Destination(servers=topics.address, topic=topic, checkpoint_topic=f"{topic}-state")
    changes = random.Random(1).randbytes(3_000_000)
    first, second = declared.fresh(), declared.fresh()
    for destination in (first, second):
        destination.open()
    first.claim("p", 1)
    first.commit(changes)
    first.teardown()

    assert second.claim("p", 2) == changes
    second.teardown()


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

    user, _ = topics.create_user()
    guarded: dict[str, Any] = {"servers": kafka_server.guarded_address, "username": user, "tls": True}
    guarded["ca_file"] = str(kafka_server.certificate)
    missing, wrong = error_of(topic="no-such-topic"), error_of(**guarded, password="hush-hush")
    down = error_of(servers=f"127.0.0.1:{free_port()}", answer_seconds=1)

    assert isinstance(missing, FatalError)
    assert missing.message == "Kafka has no topic no-such-topic"
    assert isinstance(wrong, FatalError)
    assert wrong.suggestion == "check `username`, `password` and `mechanism`"
    assert "hush-hush" not in str(wrong)
    assert isinstance(down, TransientError)
