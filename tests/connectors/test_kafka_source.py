"""The Kafka source on a real broker: what records are, where it begins, what the group sees, what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from conduit_connectors import kafka, memory
from confluent_kafka import Producer
from kafka_topics import KafkaTopics, offsets_in

import conduit_py
from conduit_py import Destination, Pipeline, Source
from conduit_py.errors import FatalError
from conduit_py.record import Operation, Record
from conduit_py.sdk import Lag, NothingYet, PositionMap, Reading
from conduit_py.status import Status


def reads(source: kafka.Source, count: int) -> list[Record]:
    """The next records of an open source."""
    records: list[Record] = []
    while len(records) < count:
        try:
            reading = trio.run(source.read, count - len(records))
        except NothingYet:
            continue
        records += reading.records if isinstance(reading, Reading) else reading
    return records


def test_a_message_becomes_a_record_with_its_key_time_and_headers(topics: KafkaTopics, read_all: Any) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.address})
    producer.produce(topic, b"v", b"k", headers=[("trace", b"abc")], timestamp=1_700_000_000_123)
    producer.produce(topic, b"v", headers=[("twice", b"1"), ("twice", b"\xff")])
    producer.produce(topic, None, b"gone")
    assert producer.flush(60) == 0
    first, second, third = read_all(kafka.Source(servers=topics.address, topics=[topic], tail=False))

    assert (first.key, first.payload.after, first.operation) == (b"k", b"v", Operation.CREATE)
    assert first.metadata == {
        "opencdc.collection": topic,
        "opencdc.createdAt": "1700000000123000000",
        "kafka.header.trace": "abc",
    }
    assert offsets_in(first.position) == {f"{topic}:0": 1}
    # What text by name cannot carry is kept whole.
    assert second.metadata["kafka.headers"] == '[["twice", "MQ=="], ["twice", "/w=="]]'
    assert (third.key, third.payload.after, third.operation) == (b"gone", None, Operation.DELETE)


def test_a_value_that_is_no_object_is_refused_with_its_bytes(topics: KafkaTopics, read_refused: Any) -> None:
    topic = topics.create()
    topics.fill(topic, [b'{"n": 1}', b"{oops", b"[1]", b'{"a": 1, "a": 2}', None])
    refused = read_refused(kafka.Source(servers=topics.address, topics=[topic], tail=False, format="json"))

    assert [value for value, _ in refused] == [b"{oops", b"[1]", b'{"a": 1, "a": 2}']
    assert refused[0][1].startswith("not valid JSON")
    assert refused[1][1] == "is JSON, but no object"


def test_what_a_transaction_aborted_is_not_read(topics: KafkaTopics, read_all: Any) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.address, "transactional.id": topic})
    producer.init_transactions(60)
    for value, ends in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(60) == 0
        ends(60)

    def values(*, read_committed: bool) -> list[Any]:
        source = kafka.Source(servers=topics.address, topics=[topic], tail=False, read_committed=read_committed)
        return [record.payload.after for record in read_all(source)]

    assert values(read_committed=True) == [b"committed"]
    assert values(read_committed=False) == [b"aborted", b"committed"]


def test_the_groups_offset_follows_acks_and_is_where_a_run_without_a_position_begins(topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % number for number in range(10)])
    declared = kafka.Source(servers=topics.address, topics=[topic], group=topic)
    source = declared.fresh()
    source.open(None)
    records = reads(source, 7)
    # Measured now and then: a lag that is never measured hangs here.
    while source.lag() != Lag(records=3, partitions={f"{topic}:0": 3}):
        pass
    trio.run(source.ack, [record.position for record in records[:4]])
    source.teardown()
    after_acks = topics.group_offset(topic, topic)
    source = declared.fresh()
    source.open(None)
    rest = [record.payload.after for record in reads(source, 6)]
    source.teardown()

    assert after_acks == 4
    assert rest == [b"%d" % number for number in range(4, 10)]


def test_our_position_counts_before_that_of_the_group(topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % number for number in range(5)])
    source = kafka.Source(servers=topics.address, topics=[topic], partitions=[0], group=topic).fresh()
    source.open(PositionMap.encode({f"{topic}:0": 3}))
    read = [record.payload.after for record in reads(source, 2)]
    source.teardown()

    assert read == [b"3", b"4"]


def test_the_latest_start_is_durable_before_anything_is_read(topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"old"])
    declared = kafka.Source(servers=topics.address, topics=[topic], start="latest")
    source = declared.fresh()
    source.open(None)
    start = source.start_position()
    source.teardown()
    topics.fill(topic, [b"new"])
    source = declared.fresh()
    source.open(start)
    [record] = reads(source, 1)
    source.teardown()

    assert record.payload.after == b"new"


def test_a_partition_that_is_added_is_read_from_its_beginning(topics: KafkaTopics) -> None:
    topic = topics.create()
    declared = kafka.Source(servers=topics.address, topics=[topic], start="latest")
    running = declared.fresh()
    running.open(None)
    start = running.start_position()
    topics.add_partition(topic, b"new")
    [found] = reads(running, 1)
    running.teardown()
    restarted = declared.fresh()
    restarted.open(start)
    [again] = reads(restarted, 1)
    restarted.teardown()

    assert [found.payload.after, again.payload.after] == [b"new", b"new"]
    assert offsets_in(found.position) == {f"{topic}:0": 0, f"{topic}:1": 1}


def test_a_header_whose_name_is_no_text_is_a_dead_letter(topics: KafkaTopics, read_refused: Any, read_all: Any) -> None:
    topic = topics.create()
    # Enough before it that Python has optimised the calls for a message.
    topics.fill(topic, [b"first"] * 100)
    topics.fill_with_header(topic, b"\xff\xfe")
    topics.fill(topic, [b"next"])
    source = kafka.Source(servers=topics.address, topics=[topic], tail=False)

    assert read_refused(source) == [(b"value", "has a header whose name is not UTF-8")]
    assert [record.payload.after for record in read_all(source)][-2:] == [b"value", b"next"]


def end_of(source: kafka.Source) -> FatalError:
    into = memory.Destination(into=[])
    pipeline = Pipeline("p", sources=[Source("in", source)], destinations=[Destination("out", into)])
    outcome = conduit_py.run(pipeline)
    assert outcome.status is Status.DEGRADED
    assert isinstance(outcome.error, FatalError), outcome.error
    return outcome.error


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda address, topic: kafka.Source(servers=address, topics=["no-such"]), "Kafka has no topic no-such"),
        (lambda address, topic: kafka.Source(servers=address, topics=[topic], partitions=[7]), "has no partition 7"),
    ],
    ids=["topic", "partition"],
)
def test_a_topic_that_is_not_there_ends_the_pipeline(
    topics: KafkaTopics, source: Callable[[str, str], kafka.Source], message: str
) -> None:
    error = end_of(source(topics.address, topics.create()))

    assert message in error.message
    assert error.suggestion == "create it, or check `topics` and `partitions`"


@pytest.mark.parametrize("offset", [1, 500], ids=["retention", "beyond-the-end"])
def test_an_offset_that_the_topic_no_longer_has_is_an_error_and_not_skipped(topics: KafkaTopics, offset: int) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1", b"2", b"3"])
    topics.delete_before(topic, 2)
    source = kafka.Source(servers=topics.address, topics=[topic]).fresh()
    source.open(PositionMap.encode({f"{topic}:0": offset}))
    with pytest.raises(FatalError, match="Kafka no longer has the offset to read next"):
        reads(source, 1)
    source.teardown()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read_ends_the_run(topics: KafkaTopics, grouped: bool) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1"])
    # The client takes a topic for gone, and a member gives up its partitions, only after half a minute each.
    source = kafka.Source(
        servers=topics.address,
        topics=[topic],
        group=topic if grouped else None,
        revoke_seconds=2,
        config={"topic.metadata.propagation.max.ms": 1000},
    ).fresh()
    source.open(None)
    # A member waits for the acks of what is taken from it.
    [record] = reads(source, 1)
    trio.run(source.ack, [record.position])
    topics.delete(topic)
    with pytest.raises(FatalError) as raised:
        reads(source, 1)
    source.teardown()

    assert topic in raised.value.message
    assert raised.value.suggestion == "create the topic, or check its name and its partitions"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"enable.auto.commit": True}}, "the connector's guarantee rests on it"),
        ({"config": {"sasl.password": "x"}}, "sasl.password is the option `password`"),
        ({"config": {"plugin.library.paths": "x.so"}}, "the connector's guarantee rests on it"),
        ({"config": {"sasl.kerberos.kinit.cmd": "x"}}, "the connector's guarantee rests on it"),
        ({"config": {"ssl.engine.location": "x.so"}}, "the connector's guarantee rests on it"),
        ({"topics": ["^.*"]}, "is no name of a topic"),
        ({"group": "g", "tail": False}, "tail=False needs `partitions`, or no `group`"),
        ({"member": "a"}, "`member` is for a `group` without `partitions`"),
        ({"username": "me"}, "give `username` and `password`, or neither"),
    ],
)
def test_options_that_would_break_a_promise_are_refused(options: dict[str, Any], message: str) -> None:
    source = kafka.Source(**{"servers": "h:1", "topics": ["t"]} | options)

    assert message in source.problems[0].message


def test_a_position_of_another_connector_is_refused() -> None:
    source = kafka.Source(servers="h:1", topics=["t"])

    for position in (b"file:1:2:3", b'{"t": "x"}', b'{"t": 1}'):
        with pytest.raises(FatalError):
            source.check_position(position)
    source.check_position(b'{"#":3,"t:0":1}')


@pytest.mark.parametrize("grouped", [False, True])
def test_a_topic_that_was_created_again_is_refused_although_it_has_the_offset(
    topics: KafkaTopics, grouped: bool
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1", b"2"])
    declared = kafka.Source(servers=topics.address, topics=[topic], group=topic if grouped else None)
    source = declared.fresh()
    source.open(None)
    read = reads(source, 2)
    trio.run(source.ack, [record.position for record in read])
    source.teardown()
    topics.create_again(topic, [b"new 1", b"new 2", b"new 3"])
    source = declared.fresh()
    with pytest.raises(FatalError, match=f"topic {topic} was created again") as raised:
        source.open(read[-1].position)
    source.teardown()

    assert "reset the position of this source" in (raised.value.suggestion or "")
    # An operator who sets a position says where to go on in the new topic, and needs no id for it.
    source = declared.fresh()
    source.open(PositionMap.encode({f"{topic}:0": 1}))
    [record] = reads(source, 1)
    source.teardown()
    assert record.payload.after == b"new 2"


def test_a_topic_that_is_created_again_while_it_is_read_ends_the_run(topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1", b"2"])
    source = kafka.Source(servers=topics.address, topics=[topic]).fresh()
    source.open(None)
    *_, last = reads(source, 2)
    topics.create_again(topic, [b"new 1", b"new 2", b"new 3"])
    # Ten never come. The client may give those of the new topic that follow the offset.
    with pytest.raises(FatalError, match=topic):
        reads(source, 10)
    source.teardown()

    # What was given of the new topic is refused by the next start.
    source = kafka.Source(servers=topics.address, topics=[topic]).fresh()
    with pytest.raises(FatalError, match=f"topic {topic} was created again"):
        source.open(last.position)
    source.teardown()
