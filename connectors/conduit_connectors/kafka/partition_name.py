"""How a position names a partition: `topic:number`, and messages with the steps that they are in a position."""

from functools import cache
from typing import NamedTuple

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


class TakenMessages(NamedTuple):
    """Messages, the position before them, and the step of each."""

    position: dict[str, int]
    messages: list[Message]
    steps: list[tuple[str, int]]
