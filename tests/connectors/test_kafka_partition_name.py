"""The runs that messages of several partitions are in: each has its step, in order, with and without gaps."""

from itertools import pairwise
from typing import Any

from conduit_connectors.kafka.partition_name import find_runs, name_of, offset_of
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
