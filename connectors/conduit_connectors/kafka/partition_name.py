"""What a position says: the offset of each partition, `topic:number`, and the id that the broker gave to each topic."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

from conduit_py.sdk import FatalError, PositionMap

GENERATION = "#"
"""The key in a position of how often partitions went away: no topic can have this name."""
_ID = "#"
"""What stands before the name of a topic whose id follows."""


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


class StoredPosition(NamedTuple):
    """A position, decoded."""

    offsets: dict[str, int]
    """The offset to read next of each partition, and the generation."""
    topic_ids: dict[str, str]
    """The id of each topic, which no other topic has, also none of the same name. Older positions have none."""

    @classmethod
    def decode(cls, position: bytes) -> "StoredPosition":
        offsets: dict[str, int] = {}
        topic_ids: dict[str, str] = {}
        for name, value in PositionMap.decode(position).items():
            topic, _, number = name.rpartition(":")
            if isinstance(value, int) and (name == GENERATION or (topic and number.isdecimal())):
                offsets[name] = value
            elif isinstance(value, str) and name.startswith(_ID) and len(name) > len(_ID):
                topic_ids[name.removeprefix(_ID)] = value
            else:
                raise FatalError(
                    f"the stored position has {name!r}, which is no partition of Kafka with its offset",
                    suggestion='a position is a JSON object such as {"orders:0": 17}, the offset to read next',
                )
        return cls(offsets, topic_ids)


def name_ids(topic_ids: Mapping[str, str]) -> dict[str, str]:
    """The ids of topics as a position has them."""
    return {f"{_ID}{topic}": topic_id for topic, topic_id in topic_ids.items()}


Run: TypeAlias = tuple[str, Sequence[int]]
"""A partition, and the offset after each message that was read of it in a row."""


class TakenMessages(NamedTuple):
    """Messages, the position before them, and the runs that they are in their order."""

    position: dict[str, int]
    messages: list[Message]
    runs: list[Run]


def find_runs(messages: Sequence[Message], *, alike: bool = False) -> list[Run]:
    """The runs of messages; `alike` says that they are of one partition. A consumer gives hundreds of one in a row."""
    if alike:
        return [(name_of(messages[0]), _find_steps(messages, 0, len(messages)))]
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
