"""Messages of several partitions: the runs they are in, each with its step, and how many of them wait."""

from itertools import pairwise
from typing import Any

from conduit_connectors.kafka.connection import ClientErrors
from conduit_connectors.kafka.partition_name import find_runs, name_of, offset_of
from conduit_connectors.kafka.partition_reader import PartitionReader
from conduit_connectors.kafka.source_options import SourceOptions
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

places = st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 1), st.integers(1, 2)), min_size=1, max_size=30)


@given(places)
def test_every_message_has_its_step(drawn: list[tuple[str, int, int]]) -> None:
    make: Any = Message
    ends: dict[tuple[str, int], int] = {}
    messages = []
    for topic, partition, step in drawn:
        # A step of two: a transaction's marker, or a record that was compacted away.
        ends[topic, partition] = offset = ends.get((topic, partition), 0) + step
        messages.append(make(topic=topic, partition=partition, offset=offset))
    runs = find_runs(messages)

    assert [(name, offset) for name, offsets in runs for offset in offsets] == [
        (name_of(message), offset_of(message) + 1) for message in messages
    ]
    assert find_runs(messages, alike=len(ends) == 1) == runs
    assert all(one[0] != other[0] for one, other in pairwise(runs))


def test_large_messages_fill_the_buffer_by_their_bytes() -> None:
    """By their number alone, 4000 messages of a megabyte would wait in memory. No broker is needed: none is asked."""
    make: Any = Message
    options = SourceOptions(servers="127.0.0.1:9", topics=["t"])
    errors = ClientErrors(options, None)
    settings = {**options.settings(), **errors.settings(), "group.id": "g"}
    reader = PartitionReader(settings, errors, options, {})
    reader._next_offsets = {"t:0": 0, "u:0": 0}
    room = [reader._has_room()]
    large = [make(topic="tu"[number % 2], partition=0, offset=number, value=bytes(2**20)) for number in range(20)]
    reader._add(large)
    room.append(reader._has_room())
    taken = reader.take(8)
    room.append(reader._has_room())
    reader._forget({"u:0"})
    room.append(reader._has_room())
    reader.close()

    assert taken is not None
    assert len(taken.messages) == 8
    assert room == [True, False, False, True]
