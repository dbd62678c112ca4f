"""The Kafka connectors pass the acceptance suite on a real broker."""

from collections.abc import Callable
from typing import Any

from conduit_connectors import kafka
from kafka_topics import KafkaTopics

from conduit_py.record import Payload, Record
from conduit_py.testing import destination_acceptance, numbered_record, source_acceptance


def partitions_to_their_end(topics: KafkaTopics) -> kafka.Source:
    topic = topics.create()
    topics.fill(topic, [b'{"n": %d}' % number for number in range(6)])
    return kafka.Source(servers=topics.address, topics=[topic], tail=False, format="json")


def member_of_a_group(topics: KafkaTopics) -> kafka.Source:
    topic = topics.create()
    topics.fill(topic, [b'{"n": %d}' % number for number in range(5)])
    return kafka.Source(servers=topics.address, topics=[topic], group=topic)


def topic_to_fill(topics: KafkaTopics) -> tuple[kafka.Destination, Callable[[], list[Any]]]:
    topic = topics.create()
    destination = kafka.Destination(servers=topics.address, topic=topic, checkpoint_topic=f"{topic}-checkpoints")
    return destination, lambda: topics.values(topic)


def sample(number: int) -> Record:
    record = numbered_record(number)
    record.payload.after = b"%d" % number
    return record


TestPartitions = source_acceptance(partitions_to_their_end)
TestGroup = source_acceptance(member_of_a_group, records=5)
TOO_LARGE = Record(payload=Payload(after=b"x" * 2_000_000))

TestDestination = destination_acceptance(topic_to_fill, sample=sample, refused=TOO_LARGE)
