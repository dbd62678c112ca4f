"""Every leased queue there is, behind one face: an empty queue, somebody who sends to it, and any number of workers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
import redis
from conduit_connectors.nats import NatsQueue
from conduit_connectors.nats import SourceOptions as NatsOptions
from conduit_connectors.redis_streams import RedisQueue
from conduit_connectors.redis_streams import SourceOptions as RedisOptions
from conduit_connectors.sqlite_queue import SqliteQueue
from conduit_connectors.sqs import SourceOptions as SqsOptions
from conduit_connectors.sqs import SqsQueue
from queue_servers import sqs_client

from conduit_py.queue.leased_queue import LeasedQueue, QueueDelivery

NAMES = ["sqlite", "redis", "nats", "sqs"]
"""Each with its real server; that of SQS is ElasticMQ. `moto` is SQS too, with the errors of Amazon's service."""
LONG_SECONDS = 60.0
GROUP = "workers"
"""The group of the pipelines that tests have share a queue."""


class QueueHarness(ABC):
    """A queue, empty at first."""

    plugin: str
    lease_seconds = 2.0
    """As short as the queue allows a test to be."""
    ordered = True
    """Whether it promises the order in which messages were sent."""
    strict = True
    """Whether an old handle is worth nothing."""
    open_queues: list[LeasedQueue]

    def __init__(self) -> None:
        self.open_queues = []

    @abstractmethod
    def send(self, bodies: Sequence[bytes]) -> None: ...

    @abstractmethod
    def make(self) -> LeasedQueue: ...

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options of this queue in a definition."""

    @abstractmethod
    def left(self) -> int:
        """How many messages are not acked yet, held or not."""

    @property
    def extension_seconds(self) -> float:
        return LONG_SECONDS

    def worker(self) -> Any:
        """A worker of its own, as another process would be."""
        queue = self.make()
        queue.open()
        self.open_queues.append(queue)
        return queue

    def close(self) -> None:
        for queue in self.open_queues:
            queue.close()


class SqliteHarness(QueueHarness):
    plugin = "sqlite.queue"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._sender = self.worker()

    def make(self) -> LeasedQueue:
        return SqliteQueue(self._path, wait_seconds=0.2)

    def send(self, bodies: Sequence[bytes]) -> None:
        self._sender.send(bodies)

    def options(self) -> dict[str, Any]:
        return {"path": str(self._path)}

    def left(self) -> int:
        return len(self._sender)


class RedisHarness(QueueHarness):
    plugin = "redis.streams"

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self._options: dict[str, Any] = {"url": url, "stream": name, "delete": True}
        self._client = redis.Redis.from_url(url)

    def make(self) -> LeasedQueue:
        return RedisQueue(RedisOptions(**self._options, wait_seconds=0.2), LONG_SECONDS)

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._client.xadd(self._options["stream"], {"body": body})

    def options(self) -> dict[str, Any]:
        return self._options

    def left(self) -> int:
        # Those that are done are deleted.
        return self._client.xlen(self._options["stream"])


class NatsHarness(QueueHarness):
    plugin = "nats"
    lease_seconds = 3.0
    strict = False

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self._url, self._name = url, name
        asyncio.run(self._send([]))

    @property
    def extension_seconds(self) -> float:
        return self.lease_seconds

    def make(self) -> LeasedQueue:
        return NatsQueue(NatsOptions(**self.options(), wait_seconds=0.5), self.lease_seconds)

    def send(self, bodies: Sequence[bytes]) -> None:
        asyncio.run(self._send(bodies))

    def options(self) -> dict[str, Any]:
        return {"url": self._url, "stream": self._name}

    def left(self) -> int:
        return asyncio.run(self._count_left())

    async def _count_left(self) -> int:
        client = await nats.connect(self._url)
        try:
            about = await client.jetstream(timeout=300).consumer_info(self._name, GROUP)
        finally:
            await client.close()
        return (about.num_pending or 0) + (about.num_ack_pending or 0)

    async def _send(self, bodies: Sequence[bytes]) -> None:
        client = await nats.connect(self._url)
        jetstream = client.jetstream(timeout=300)
        await jetstream.add_stream(name=self._name, subjects=[self._name])
        for body in bodies:
            await jetstream.publish(self._name, body)
        await client.close()


class SqsHarness(QueueHarness):
    plugin = "sqs"
    ordered = False
    strict = False

    def __init__(self, endpoint: str, name: str) -> None:
        super().__init__()
        self._keys = {"access_key": "tester", "secret_key": "not-a-secret", "region": "eu-west-1"}
        self._endpoint = endpoint
        self._client = sqs_client(endpoint)
        self._url = self._client.create_queue(QueueName=name)["QueueUrl"]

    def make(self) -> LeasedQueue:
        return SqsQueue(SqsOptions(**self.options()))

    def send(self, bodies: Sequence[bytes]) -> None:
        for start in range(0, len(bodies), 10):
            entries = [{"Id": str(id), "MessageBody": body.decode()} for id, body in enumerate(bodies[start:][:10])]
            self._client.send_message_batch(QueueUrl=self._url, Entries=entries)

    def options(self) -> dict[str, Any]:
        return {"url": self._url, "endpoint": self._endpoint, "wait_seconds": 1, **self._keys}

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)


@pytest.fixture
def make_harness(request: pytest.FixtureRequest, tmp_path: Path, queue_name: str) -> Callable[[str], QueueHarness]:
    """The harness of a queue by its name; its server starts when the first test asks for it."""

    def make(name: str) -> QueueHarness:
        if name == "sqlite":
            return SqliteHarness(tmp_path / "queue.db")
        server = request.getfixturevalue(f"{name}_server")
        kinds: dict[str, Any] = {"redis": RedisHarness, "nats": NatsHarness, "sqs": SqsHarness, "moto": SqsHarness}
        harness: QueueHarness = kinds[name](server, queue_name)
        return harness

    return make


@pytest.fixture(params=[*NAMES, "moto"])
def harness(request: pytest.FixtureRequest, make_harness: Callable[[str], QueueHarness]) -> Iterator[QueueHarness]:
    """Each of them in turn."""
    made = make_harness(request.param)
    yield made
    made.close()


def drained(queue: Any, count: int, lease_seconds: float, *, at_once: int = 10) -> list[QueueDelivery]:
    """Receive until there are so many, however they come."""
    received: list[QueueDelivery] = []
    for _ in range(200):
        if len(received) >= count:
            break
        received += queue.receive(min(at_once, count - len(received)), lease_seconds)
    return received
