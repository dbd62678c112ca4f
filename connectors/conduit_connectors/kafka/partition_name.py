"""How a position names a partition: `topic:number`, and messages with the steps that they are in a position."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

GENERATION = "#"
"""The key in a position of how often partitions went away: no topic can have this name."""


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


Run: TypeAlias = tuple[str, Sequence[int]]
"""A partition, and the offset after each message that was read of it in a row."""


class TakenMessages(NamedTuple):
    """Messages, the position before them, and the runs that they are in their order."""

    position: dict[str, int]
    messages: list[Message]
    runs: list[Run]


def find_runs(messages: Sequence[Message]) -> list[Run]:
    """The runs of messages. A consumer gives those of a partition in a row, up to hundreds."""
    # Without a call of ours for each message.
    columns: list[list[Any]] = [list(map(Message.partition, messages)), list(map(Message.topic, messages))]
    cuts = {0, len(messages)}
    for places in columns:
        if places.count(places[0]) < len(places):
            cuts |= {at for at, (one, other) in enumerate(pairwise(places), 1) if one != other}
    return [(name_of(messages[begin]), _find_steps(messages, begin, end)) for begin, end in pairwise(sorted(cuts))]


def _find_steps(messages: Sequence[Message], begin: int, end: int) -> Sequence[int]:
    first, last = offset_of(messages[begin]), offset_of(messages[end - 1])
    # Offsets of a partition grow. Without a gap there is one for each message.
    if last - first == end - begin - 1:
        return range(first + 1, last + 2)
    return [offset_of(message) + 1 for message in messages[begin:end]]
