"""Ranges of partitions that many processes read give every message once, at positions from which any one goes on."""

from typing import Any

import pytest
import trio
from conduit_connectors import kafka
from conduit_connectors.kafka.partition_ranges import PartitionRange, PartitionRanges
from confluent_kafka import Producer
from kafka_topics import KafkaTopics
from waiting import until

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, Reading


def test_ranges_take_turns_and_end_where_the_partitions_ended() -> None:
    ranges = PartitionRanges({"t:0": 5, "t:1": 0, "t:2": 7}, {"t:0": 10, "t:1": 3, "t:2": 7}, {"t": "id"}, 10)
    found = [ranges.next(20) for _ in range(5)]

    with pytest.raises(EndOfSource):
        ranges.next(20)
    assert [(each.partition, each.position[each.partition], each.until) for each in found] == [
        ("t:0", 5, 7), ("t:1", 0, 2), ("t:0", 7, 9), ("t:1", 2, 3), ("t:0", 9, 10),
    ]  # fmt: skip
    # The position before a range has what all ranges before it end with.
    assert found[-1].position == {"t:0": 9, "t:1": 3, "t:2": 7}
    assert PartitionRange.decode(found[0].encode()) == found[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tail": False}, None),
        ({}, "waits for more"),
        ({"group": "g"}, "commits its offsets"),
        ({"tail": False, "group": "g", "partitions": [0]}, "commits its offsets"),
    ],
)
def test_partitions_that_end_are_split(options: dict[str, Any], why: str | None) -> None:
    source = kafka.Source(servers="host:9092", topics=["t"], **options)

    assert source.splits() is (why is None)
    assert why is None or why in str(source.reads_alone())


def test_the_ranges_of_a_topic_are_the_topic(topics: KafkaTopics, read_all: Any) -> None:
    topic = topics.create(partitions=3)
    topics.fill(topic, [b"%d" % number for number in range(60)], keys=7)
    source = kafka.Source(servers=topics.address, topics=[topic], tail=False)
    parts = split_all(source, 5)
    # Whatever comes after the ends were taken is for the next run.
    topics.fill(topic, [b"late"] * 5, keys=7)
    read = [read_part(source, part) for part in parts]
    records = [record for part in read for record in part]

    assert len(parts) > 6
    assert sorted(map(int, values(records))) == list(range(60))
    # From any record on, one process reads the rest.
    for place in (0, 17, 59):
        rest = read_all(source, records[place].position)
        assert sorted(values(rest)) == sorted(values(records[place + 1 :]) + [b"late"] * 5)
    # And from any record on, others read the rest in ranges.
    again = [record for part in split_all(source, 10_000, records[17].position) for record in read_part(source, part)]
    assert sorted(values(again)) == sorted(values(records[18:]) + [b"late"] * 5)


def test_what_was_read_ahead_before_the_split_is_in_the_ranges(topics: KafkaTopics) -> None:
    """A busy machine asks late for the first range: by then the consumer has read to all ends."""
    topic = topics.create(partitions=3)
    topics.fill(topic, [b"%d" % number for number in range(60)], keys=7)
    source = kafka.Source(servers=topics.address, topics=[topic], tail=False).fresh()
    source.open(None)
    trio.run(until, lambda: not source._opened._ends)

    records = [record for part in split_opened(source, 5) for record in read_part(source, part)]

    assert sorted(map(int, values(records))) == list(range(60))


def test_a_range_ends_behind_messages_that_are_not_read(topics: KafkaTopics) -> None:
    """The marks of transactions and what was aborted have offsets too, also at the end of a range."""
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.address, "transactional.id": topic})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        assert producer.flush(60) == 0
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(60)
    source = kafka.Source(servers=topics.address, topics=[topic], tail=False)
    parts = split_all(source, 1)

    assert len(parts) == 12
    assert [[record.payload.after for record in read_part(source, part)] for part in parts] == [
        [b"0"], [], [], [], [b"2"], [], [b"3"], [], [], [], [b"5"], [],
    ]  # fmt: skip


def test_a_topic_that_was_created_again_since_it_was_split_is_refused(topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"old"])
    source = kafka.Source(servers=topics.address, topics=[topic], tail=False)
    [part] = split_all(source, 100)
    found = PartitionRange.decode(part)
    other = PartitionRange(found.partition, found.until, found.position, {topic: "another"})

    with pytest.raises(FatalError, match="was created again"):
        read_part(source, other.encode())


def values(records: list[Record]) -> list[bytes]:
    return [record.payload.after for record in records if isinstance(record.payload.after, bytes)]


def split_all(source: kafka.Source, size: int, position: bytes | None = None) -> list[bytes]:
    source = source.fresh()
    source.open(position)
    return split_opened(source, size)


def split_opened(source: kafka.Source, size: int) -> list[bytes]:
    parts = list[bytes]()
    try:
        while True:
            parts.append(trio.run(source.split, size))
    except EndOfSource:
        return parts
    finally:
        source.teardown()


def read_part(source: kafka.Source, part: bytes) -> list[Record]:
    source, records = source.fresh(), list[Record]()
    try:
        source.open_part(part)
        while True:
            reading = trio.run(source.read, 3)
            records += reading.records if isinstance(reading, Reading) else reading
    except EndOfSource:
        return records
    finally:
        source.teardown()
