"""Topics of a real Kafka for tests: created, filled and read back with the client library alone."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conduit_py.testing.services import KafkaServer


class KafkaTopics:
    """Topics that no other test uses."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 2}
        self._admin = AdminClient(self._settings)

    def create(self, partitions: int = 1, **config: str) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        [created] = self._admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
        created.result(60)
        return name

    def fill(self, topic: str, values: Iterable[bytes | None], *, keys: int = 0, first: int = 0) -> None:
        """Write values to the first partition, or with keys `0`, `1`… in turns, beginning with the one of `first`."""
        producer = Producer(self._settings | {"queue.buffering.max.messages": 1_000_000, "linger.ms": 5})
        for index, value in enumerate(values, first):
            if keys:
                producer.produce(topic, value, b"%d" % (index % keys))
            else:
                producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0

    def values(self, topic: str) -> list[bytes | None]:
        return [message.value() for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Message]:
        """Everything that is committed, partition by partition."""
        with self._consumer() as consumer:
            count = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
            found = []
            for partition in range(count):
                consumer.assign([TopicPartition(topic, partition, 0)])
                found += _read_to_end(consumer)
            return found

    def group_offset(self, group: str, topic: str, partition: int = 0) -> int:
        """The offset that a group has committed; negative if it has none."""
        with self._consumer(group) as consumer:
            [committed] = consumer.committed([TopicPartition(topic, partition)], timeout=60)
            return int(committed.offset)

    @contextmanager
    def _consumer(self, group: str = "tests") -> Iterator[Consumer]:
        settings = {"group.id": group, "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({**self._settings, **settings, "enable.auto.commit": False})
        try:
            yield consumer
        finally:
            consumer.close()


def _read_to_end(consumer: Consumer) -> list[Message]:
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "the broker does not answer"
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            return found


@pytest.fixture
def topics(kafka_server: KafkaServer) -> KafkaTopics:
    return KafkaTopics(kafka_server.address)
