"""GroupOffsets: what is acked of each partition, committed to the consumer group."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from conduit_connectors.kafka.connection import ANSWER_SECONDS
from conduit_connectors.kafka.partition_name import name_partition, parse_partition
from conduit_py.sdk import TransientError

_ASK_AGAIN_SECONDS = 0.1
_SERVED_SOON = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class GroupOffsets:
    """The offsets that are committed to a group. Without a group nothing is committed.

    Invariant 2: only what is acked is committed, and only of partitions that are ours. `lock` guards all of it.
    """

    def __init__(self, consumer: Consumer, lock: threading.Condition, *, used: bool) -> None:
        self._consumer = consumer
        self._lock = lock
        self._used = used
        self._acked: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        """What was sent; a commit that nobody waited for may have been refused since."""
        self._confirmed: dict[str, int] = {}

    def find(self, partitions: Sequence[str]) -> dict[str, int]:
        """Where the group is in these partitions; nothing for those in which it has not been."""
        if not self._used:
            return {}
        asked = [parse_partition(partition) for partition in partitions]
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                answers = self._consumer.committed(asked, ANSWER_SECONDS)
                break
            except KafkaException as error:
                # Brokers that have just started, or changed roles, serve the group a moment later.
                if error.args[0].code() not in _SERVED_SOON or time.monotonic() > until:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)
        return {name_partition(each.topic, each.partition): each.offset for each in answers if each.offset >= 0}

    def begin(self, placed: Mapping[str, int]) -> None:
        """These partitions are ours, from these offsets on."""
        self._acked |= placed

    def ack(self, position: Mapping[str, int]) -> None:
        """Everything before these offsets is durably handled."""
        for partition, offset in position.items():
            # The position may be of a time when other partitions were ours.
            if partition in self._acked:
                self._acked[partition] = max(offset, self._acked[partition])

    def has_acked(self, read: Mapping[str, int]) -> bool:
        """True if everything before these offsets is acked."""
        return all(self._acked[partition] >= offset for partition, offset in read.items())

    def forget(self, gone: Iterable[str]) -> None:
        """These partitions are another member's."""
        for partition in gone:
            self._acked.pop(partition, None)
            self._committed.pop(partition, None)
            self._confirmed.pop(partition, None)

    def commit(self, *, asynchronous: bool) -> bool:
        """Commit to the group what is acked; return False if the group refuses it.

        An asynchronous commit is sent only for what is new, and nobody sees it refused.
        """
        if not self._used:
            return True
        with self._lock:
            # The group refuses commits while it places its members. So the last commit of a partition has all of it
            # again that was not confirmed: the next owner would repeat what an earlier one only seemed to commit.
            done = self._committed if asynchronous else self._confirmed
            due = {name: offset for name, offset in self._acked.items() if offset > done.get(name, -1)}
            self._committed |= due
        if due:
            offsets = [parse_partition(partition, offset) for partition, offset in due.items()]
            try:
                answers: Any = self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]
                refused = next((each.error for each in answers or () if each.error is not None), None)
                if refused is not None:
                    raise KafkaException(refused)
            except KafkaException:
                # Our own position counts; the next commit, or the next owner's reading again, makes this good.
                with self._lock:
                    for partition in due:
                        self._committed.pop(partition, None)
                return False
            if not asynchronous:
                with self._lock:
                    self._confirmed |= {name: offset for name, offset in due.items() if name in self._acked}
        return True

    def commit_until_taken(self, seconds: float, wait: Callable[[float], object]) -> bool:
        """Commit what is acked, again for so long: the group refuses it while it places its members.

        Return False if it was never taken.
        """
        until = time.monotonic() + seconds
        while not (taken := self.commit(asynchronous=False)) and time.monotonic() < until:
            wait(_ASK_AGAIN_SECONDS)
        return taken


def given_away(text: str) -> TransientError:
    """Return the error of a run whose partitions another member has now."""
    return TransientError(text, suggestion="give `revoke_seconds` a larger value, or make the destination faster")
