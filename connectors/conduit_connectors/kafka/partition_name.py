"""How a position names a partition: `topic:number`."""

from functools import cache

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition


@cache
def name_partition(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


def parse_partition(name: str, offset: int = OFFSET_INVALID) -> TopicPartition:
    """Read what `name_partition` wrote."""
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number), offset)


def name_of(message: Message) -> str:
    """The partition of a message from a broker."""
    return name_partition(message.topic(), message.partition())


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "of a message from a broker"
    return offset
