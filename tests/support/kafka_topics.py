"""Topics of a real Kafka for tests: created, filled and read back with the client library alone."""

import ctypes
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewPartitions, NewTopic

from conduit_py.sdk import PositionMap
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
        # The controller has it then, and the broker soon after.
        while name not in self._admin.list_topics(timeout=60).topics:
            time.sleep(0.01)
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

    def fill_each(self, topic: str, value: bytes, partitions: int = 2) -> None:
        """Write the value to each partition."""
        producer = Producer(self._settings)
        for partition in range(partitions):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0

    def fill_with_header(self, topic: str, name: bytes) -> None:
        """Write one value with a header of any name. The client of Python takes only text, and others do not."""
        [library] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
        rd = ctypes.CDLL(str(library))
        for function in (rd.rd_kafka_conf_new, rd.rd_kafka_new, rd.rd_kafka_headers_new):
            function.restype = ctypes.c_void_p
        error = ctypes.create_string_buffer(500)
        conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
        rd.rd_kafka_conf_set(conf, b"bootstrap.servers", self.address.encode(), error, 500)
        producer = ctypes.c_void_p(rd.rd_kafka_new(0, conf, error, 500))
        headers = ctypes.c_void_p(rd.rd_kafka_headers_new(1))
        rd.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1))
        # Pairs of a kind and its values: 1 is the topic, 4 the value and its size, 10 the headers, 0 the end.
        value = (4, b"value", ctypes.c_size_t(5))
        assert rd.rd_kafka_producev(producer, 1, topic.encode(), *value, 10, headers, 0) == 0
        assert rd.rd_kafka_flush(producer, 60_000) == 0
        rd.rd_kafka_destroy(producer)

    def add_partition(self, topic: str, *values: bytes) -> None:
        """Add a second partition, with these values."""
        self._admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        producer = Producer(self._settings)
        for value in values:
            producer.produce(topic, value, partition=1)
        assert producer.flush(60) == 0

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(60)

    def create_again(self, topic: str, values: Iterable[bytes | None]) -> None:
        """Delete the topic, create one of the same name, and write these values to it."""
        self.delete(topic)
        while True:
            try:
                self._admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
                break
            except KafkaException as error:
                # The broker answers before the old one is gone.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self.fill(topic, values)

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the first messages of the first partition, as retention does."""
        [deleted] = self._admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        deleted.result(60)

    def create_user(self, *allowed: tuple[ResourceType, str, AclOperation]) -> tuple[str, str]:
        """A user, who may do only what is allowed, and the password."""
        name = f"user-{uuid.uuid4().hex[:12]}"
        password = self.set_password(name)
        for kind, resource, operation in allowed:
            rule = AclBinding(
                kind, resource, ResourcePatternType.LITERAL, f"User:{name}", "*", operation, AclPermissionType.ALLOW
            )
            [made] = self._admin.create_acls([rule]).values()
            made.result(60)
        return name, password

    def set_password(self, user: str) -> str:
        """Give a user a new password; return it."""
        password = f"hush-{uuid.uuid4().hex}"
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, credentials, password.encode())
        self._admin.alter_user_scram_credentials([change])[user].result(60)
        return password

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


def offsets_in(position: bytes) -> dict[str, int | str]:
    """A position without the ids of its topics."""
    return {name: value for name, value in PositionMap.decode(position).items() if isinstance(value, int)}
