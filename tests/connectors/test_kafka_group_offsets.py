"""GroupOffsets: what is committed to a consumer group, and when it refuses."""

import threading
from typing import Any

import pytest
from conduit_connectors.kafka.group_offsets import GroupOffsets
from confluent_kafka import KafkaError, KafkaException, TopicPartition


class Group:
    """A group that keeps what is committed, and refuses everything while it places its members."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.sent = 0
        self.is_placing = False
        self.refusals: list[int] = []
        """Codes of errors with which it answers first."""

    def committed(self, asked: list[TopicPartition], seconds: float) -> list[TopicPartition]:
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop(0)))
        return [TopicPartition(each.topic, each.partition, self.offsets[f"{each.topic}:0"]) for each in asked]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        self.sent += 1
        if self.is_placing and not asynchronous:
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        if not self.is_placing:
            self.offsets |= {f"{each.topic}:{each.partition}": each.offset for each in offsets}
        # Nobody waits for the answer to an asynchronous one.
        return None if asynchronous else offsets

    def poll(self, seconds: float) -> None:
        """Take part in the placing of members, which then ends."""
        self.is_placing = False


def offsets_of(group: Any, **placed: int) -> GroupOffsets:
    offsets = GroupOffsets(group, threading.Condition(), used=True)
    offsets.begin({f"{topic}:0": offset for topic, offset in placed.items()})
    return offsets


def test_the_last_commit_repeats_what_the_group_may_have_refused() -> None:
    group = Group()
    offsets = offsets_of(group, t=3)
    offsets.ack({"t:0": 9})
    group.is_placing = True
    offsets.commit(asynchronous=True)
    refused = offsets.commit(asynchronous=False)
    group.is_placing = False
    taken = offsets.commit(asynchronous=False)

    assert (refused, taken) == (False, True)
    assert group.offsets == {"t:0": 9}


def test_the_same_offset_is_sent_once_while_all_is_well() -> None:
    group = Group()
    offsets = offsets_of(group, t=3)
    for _ in range(5):
        offsets.commit(asynchronous=True)

    assert group.sent == 1


def test_the_last_commit_polls_until_the_group_has_placed_its_members() -> None:
    group = Group()
    offsets = offsets_of(group, t=3)
    offsets.ack({"t:0": 9})
    group.is_placing = True
    offsets.commit_until_taken(60, group.poll)

    assert group.offsets == {"t:0": 9}


def test_what_the_group_confirmed_is_not_committed_again_while_a_member_leaves() -> None:
    group = Group()
    offsets = offsets_of(group, t=3)
    offsets.ack({"t:0": 9})
    offsets.commit_until_taken(60, group.poll)
    group.is_placing = True

    assert offsets.commit(asynchronous=False)
    assert group.sent == 1


def test_acks_of_partitions_that_are_another_members_change_nothing() -> None:
    group = Group()
    offsets = offsets_of(group, t=3, u=5)
    offsets.forget(["u:0"])
    offsets.ack({"t:0": 4, "u:0": 8})
    offsets.commit(asynchronous=False)

    assert group.offsets == {"t:0": 4}
    assert offsets.has_acked({"t:0": 4})
    assert not offsets.has_acked({"t:0": 5})


def test_a_broker_that_does_not_serve_the_group_yet_is_asked_again() -> None:
    group = Group()
    group.offsets = {"t:0": 7}
    group.refusals = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

    assert offsets_of(group).find(["t:0"]) == {"t:0": 7}


def test_a_refusal_that_does_not_pass_is_an_error() -> None:
    group = Group()
    group.refusals = [KafkaError.GROUP_AUTHORIZATION_FAILED]

    with pytest.raises(KafkaException):
        offsets_of(group).find(["t:0"])
