"""Kafka to Kafka, exactly once: with kills of us and of the broker, zombies, and members that come and go.

Each test compares what a reader of committed records sees with the source: nothing missing, nothing twice, and in
order for each key.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import trio
from conduit_connectors import generator, kafka
from confluent_kafka import Message
from kafka_topics import KafkaTopics
from warm_python import WarmPython

from conduit_py import Destination, Pipeline, Source
from conduit_py.errors import Fenced
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Payload, Record
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Progress
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.services import KafkaServer

CHILD = Path(__file__).with_name("kafka_child.py")
KEYS = 6
COUNT = 2000


class Children:
    """Processes that run a pipeline, and end with the test."""

    def __init__(self, source: dict[str, object], destination: dict[str, object]) -> None:
        self._options = json.dumps({"source": source, "destination": destination})
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, state: Path, kill_at: str = "") -> subprocess.Popen[bytes]:
        environment = dict(os.environ) | ({"CONDUIT_KILL_AT": kill_at} if kill_at else {})
        self._started.append(WarmPython([sys.executable, CHILD, state, self._options], env=environment))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for child in self._started:
            child.kill()
            child.wait(300)


def pipelines(topics: KafkaTopics, taken: str, given: str, **source: object) -> Children:
    return Children(
        {"servers": topics.address, "topics": [taken], **source},
        {"servers": topics.address, "topic": given, "checkpoint_topic": f"{given}-state"},
    )


def stop(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    # It stops gracefully, and then the signal has its usual effect.
    assert child.wait(300) == -signal.SIGTERM


def by_key(messages: list[Message]) -> dict[bytes | None, list[bytes | None]]:
    found = defaultdict(list)
    for message in messages:
        found[message.key()].append(message.value())
    return dict(found)


def assert_exact(messages: list[Message], count: int = COUNT) -> None:
    """Every number once, and those of a key in order. Each check names a few: a diff of thousands takes minutes."""
    times = Counter(message.value() for message in messages)
    twice = [value for value, number in times.items() if number > 1]
    assert not twice, f"{len(twice)} records twice: {twice[:5]}"
    missing = [number for number in range(count) if b"%d" % number not in times]
    assert not missing, f"{len(missing)} records missing: {missing[:5]}"
    found = by_key(messages)
    orders = {b"%d" % key: [b"%d" % number for number in range(key, count, KEYS)] for key in range(KEYS)}
    assert [key for key, order in orders.items() if found[key] != order] == []
    assert len(messages) == count


def wait_for_records(topics: KafkaTopics, topic: str, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(topics.values(topic)) < count:
        assert time.monotonic() < deadline, f"{topic} has {len(topics.values(topic))} records"
        time.sleep(0.05)


@pytest.mark.slow
def test_kills_of_us_within_transactions(topics: KafkaTopics, tmp_path: Path) -> None:
    taken, given = topics.create(partitions=2), topics.create(partitions=3)
    topics.fill(taken, [b"%d" % number for number in range(COUNT)], keys=KEYS)
    with pipelines(topics, taken, given, tail=False) as children:
        # Written and not committed; committed in Kafka and not in our state; and both some transactions later.
        for point in ("before_home_commit:2", "after_home_commit:1", "after_home_commit:3"):
            child = children.start(tmp_path / "p", f"transaction.{point}")
            assert child.wait(300) == -signal.SIGKILL
        assert children.start(tmp_path / "p").wait(300) == 0

    assert_exact(topics.messages(given))


async def deliver_while_it_stands_still(server: KafkaServer, topic: str) -> int:
    """Write records while the broker stops answering and goes on; return the most that was in flight."""
    most = 0
    pipeline = Pipeline(
        "slow",
        sources=[Source("made", generator.Source(count=COUNT, fields={"id": "index"}), window=100, batch_size=50)],
        destinations=[Destination("out", kafka.Destination(servers=server.address, topic=topic))],
    )
    supervisor = Supervisor(pipeline, MemoryStore())

    async def wait_until(condition: Callable[[Progress], bool]) -> None:
        nonlocal most
        while not condition(progress := supervisor.progress()):
            most = max([most, *(meter.in_flight for meter in progress.nodes)])
            await trio.sleep(0.01)

    def is_held_up(progress: Progress) -> bool:
        return any(meter.kind == "source" and meter.waiting_on == "window" for meter in progress.nodes)

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await wait_until(lambda progress: progress.acked > 0)
            os.kill(server.pid, signal.SIGSTOP)
            await wait_until(is_held_up)
            os.kill(server.pid, signal.SIGCONT)
            await wait_until(lambda progress: progress.acked == COUNT)
    assert supervisor.state.status is Status.COMPLETED, supervisor.state.error
    return most


@pytest.mark.slow
def test_a_broker_that_stands_still_and_kills_of_it_within_transactions(own_kafka: KafkaServer, tmp_path: Path) -> None:
    topics = KafkaTopics(own_kafka.address)
    slow = topics.create()
    most = trio.run(deliver_while_it_stands_still, own_kafka, slow)
    assert 0 < most <= 100
    assert sorted(json.loads(value or b"")["id"] for value in topics.values(slow)) == list(range(COUNT))

    taken, given = topics.create(partitions=2), topics.create(partitions=3)
    with pipelines(topics, taken, given) as children:
        child = children.start(tmp_path / "p")
        for first in (0, COUNT):
            topics.fill(taken, [b"%d" % number for number in range(first, first + COUNT)], keys=KEYS, first=first)
            wait_for_records(topics, given, first + 1)
            own_kafka.kill()
            own_kafka.start()
        wait_for_records(topics, given, 2 * COUNT)
        stop(child)

    assert_exact(topics.messages(given), 2 * COUNT)


@pytest.mark.slow
def test_members_that_come_and_go_handle_each_record_once(topics: KafkaTopics, tmp_path: Path) -> None:
    taken, given = topics.create(partitions=6), topics.create(partitions=3)
    # Given up by the group only after long: a member on a busy machine is slow, not dead.
    patient = {"session.timeout.ms": "300000"}
    with pipelines(topics, taken, given, group=taken, revoke_seconds=300, config=patient) as children:
        members = []
        for number in range(3):
            members.append(children.start(tmp_path / f"member{number}"))
            first = number * COUNT
            topics.fill(taken, [b"%d" % each for each in range(first, first + COUNT)], keys=KEYS, first=first)
            # The next one comes while this one has records in flight.
            wait_for_records(topics, given, first + 1)
        stop(members[0])
        wait_for_records(topics, given, 3 * COUNT)
        stop(members[1])
        stop(members[2])

    assert_exact(topics.messages(given), 3 * COUNT)


def test_a_zombie_can_commit_nothing_and_cannot_stop_the_newer_run(topics: KafkaTopics) -> None:
    topic = topics.create()
    declared = kafka.Destination(servers=topics.address, topic=topic, checkpoint_topic=f"{topic}-state")
    old, new, late = declared.fresh(), declared.fresh(), declared.fresh()
    for destination in (old, new, late):
        destination.open()
    assert old.claim("p", 1) is None
    old.write(batch_of([Record(b"1", payload=Payload(after=b"old"))]))
    assert new.claim("p", 2) is None
    new.write(batch_of([Record(b"1", payload=Payload(after=b"new"))]))
    with pytest.raises(Fenced, match="has a newer run"):
        old.commit(b"old")
    for call in (
        lambda: old.write(batch_of([Record(b"2", payload=Payload(after=b"old"))])),
        lambda: old.commit(b"old"),
    ):
        with pytest.raises(Fenced, match="has a newer run"):
            call()
    with pytest.raises(Fenced, match="has a newer run"):
        late.claim("p", 1)
    new.commit(b"new")
    for destination in (old, new, late):
        destination.teardown()

    assert topics.values(topic) == [b"new"]
