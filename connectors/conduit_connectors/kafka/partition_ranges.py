"""Ranges of partitions, which many processes read side by side: how a driver divides them, and how one is read."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import msgspec
from confluent_kafka import Message

from conduit_connectors.kafka.partition_name import offset_of
from conduit_connectors.kafka.partition_reader import PartitionReader
from conduit_py.sdk import EndOfSource


class PartitionRange(msgspec.Struct, frozen=True, array_like=True):
    """The messages of one partition before the offset `until`, and the position of the source before them."""

    partition: str
    until: int
    position: dict[str, int]
    """The offset to read next of every partition of the source, if ranges are read one after another."""
    topic_ids: dict[str, str]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "PartitionRange":
        return msgspec.msgpack.decode(encoded, type=cls)


class PartitionRanges:
    """Divides what partitions have between their positions and their ends, a range of each in turn.

    The order of ranges is the order of the records, as if one process had read the partitions in turn. So each record
    has a position from which any engine goes on.
    """

    def __init__(
        self, position: Mapping[str, int], ends: Mapping[str, int], topic_ids: Mapping[str, str], message_size: int
    ) -> None:
        self._position = dict(position)
        self._ends = {name: end for name, end in ends.items() if position[name] < end}
        self._topic_ids = dict(topic_ids)
        self._message_size = max(1, message_size)
        self._turns = cycle(list(self._ends))

    def next(self, size: int) -> PartitionRange:
        """Return the next range, of about so many bytes. Raises EndOfSource after the last."""
        if not self._ends:
            raise EndOfSource
        name = next(each for each in self._turns if each in self._ends)
        until = min(self._position[name] + max(1, size // self._message_size), self._ends[name])
        found = PartitionRange(name, until, dict(self._position), self._topic_ids)
        self._position[name] = until
        if until == self._ends[name]:
            del self._ends[name]
        return found


class RangeReader(PartitionReader):
    """Reads a range of one partition, whatever comes behind it."""

    def read_range(self, part: PartitionRange) -> None:
        """Begin. After the last message of the range there is no more."""
        self._until = part.until
        self._ends = {part.partition: part.until}
        self._consumer.assign(self._place([part.partition]))
        self._thread.start()

    def _add(self, messages: Sequence[Message]) -> None:
        # Offsets grow, so the first message behind the range ends it, also if its last offsets have no message.
        within = [message for message in messages if message.error() or offset_of(message) < self._until]
        super()._add(within)
        if len(within) < len(messages):
            with self._changed:
                self._ends = {}
                self._notify()
