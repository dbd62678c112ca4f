"""The NATS source: work from a JetStream stream, shared by the workers of one consumer."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.nats.connection import ANSWER_SECONDS, NatsArguments, NatsConnection, NatsOptions, load_nats
from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_py.sdk import Dataset
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

_CONSUMER = "conduit-py"
_REST_SECONDS = 0.1
"""How long to wait for more messages after the first one."""


class SourceOptions(ObjectQueueOptions, NatsOptions):
    """Which stream, and what its messages are. `group` names the durable consumer too."""

    subject: str | None = Field(default=None, description="only messages of this subject; wildcards are allowed")
    wait_seconds: float = Field(default=1.0, gt=0, description="how long one request waits for messages")
    pending_max: int = Field(default=10_000, ge=1, description="how many messages all workers may hold together")


class SourceArguments(QueueArguments, ObjectArguments, NatsArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    stream: Required[str]
    subject: str | None
    wait_seconds: float
    pending_max: int


class Source(QueueSource[SourceOptions]):
    """Messages of a JetStream stream, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object. The durable
    pull consumer is created when missing. Workers of a group must have the same `commit_seconds`: it decides
    how long the server leaves a message with a worker.
    """

    requires: ClassVar = {"nats": "conduit-dataflow[nats]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at_server(self.options.url.get_secret_value(), self.options.stream, port=4222)]

    def probe(self) -> str:
        return NatsQueue(self.options, 1.0).probe()

    def queue(self) -> LeasedQueue:
        return NatsQueue(self.options, self.options.terms.longest_seconds)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class NatsQueue(LeasedQueue):
    """Every lease is `lease_seconds` long, and at least as long as requested: a consumer has one length for all.

    The protocol lets an old handle ack a message too. That is harmless, because nothing is acked before its commit.
    """

    receive_max = 256

    def __init__(self, options: SourceOptions, lease_seconds: float) -> None:
        self._options = options
        self._lease_seconds = lease_seconds
        self._consumer = (options.group or _CONSUMER).translate(str.maketrans(".*> \t/\\", "-------"))
        self._connection = NatsConnection(options)
        self._pull: Any = None

    def open(self) -> None:
        self._connection.open()
        self._connection.run(self._subscribe())

    def probe(self) -> str:
        """Return what is there, without creating a consumer."""
        try:
            self._connection.open()
            return self._connection.run(self._look())
        finally:
            self.close()

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        return self._connection.run(self._fetch(count))

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        if lease_seconds > self._lease_seconds:
            raise ValueError(f"a lease of {lease_seconds} s is longer than the {self._lease_seconds} s of the consumer")
        self._connection.run(self._tell(delivery, b"+WPI"))

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        self._connection.run(self._ack(deliveries))

    def close(self) -> None:
        self._connection.close()

    async def _look(self) -> str:
        found = await self._connection.jetstream().stream_info(self._options.stream)
        return f"the stream has {found.state.messages} messages"

    async def _subscribe(self) -> None:
        nats, options = load_nats(), self._options
        jetstream = self._connection.jetstream()
        config = nats.js.api.ConsumerConfig(
            durable_name=self._consumer,
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=self._lease_seconds,
            filter_subject=options.subject,
            max_ack_pending=options.pending_max,
        )
        await jetstream.add_consumer(options.stream, config)
        self._pull = await jetstream.pull_subscribe_bind(self._consumer, options.stream)

    async def _fetch(self, count: int) -> list[QueueDelivery]:
        # A fetch of several waits until all are there, so fetch one first, then what else is there.
        messages = await self._pull_messages(1, self._options.wait_seconds)
        if messages and count > 1:
            messages += await self._pull_messages(count - 1, _REST_SECONDS)
        return [self._delivery(message) for message in messages]

    async def _pull_messages(self, count: int, seconds: float) -> list[Any]:
        try:
            messages: list[Any] = await self._pull.fetch(count, timeout=seconds)
        except TimeoutError:
            if not self._connection.client.is_connected:
                raise
            return []
        return messages

    def _delivery(self, message: Any) -> QueueDelivery:
        about = message.metadata
        number = about.sequence.stream
        attributes = {"nats.subject": message.subject} | dict(message.headers or {})
        return QueueDelivery(f"{about.stream}/{number}", message.reply, message.data, about.num_delivered, attributes)

    async def _ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        await asyncio.gather(*(self._tell(delivery, b"+ACK") for delivery in deliveries))

    async def _tell(self, delivery: QueueDelivery, what: bytes) -> None:
        """Send an ack or a progress mark for a message and wait for the server to confirm it."""
        if not self._connection.client.is_connected:
            raise ConnectionError("the connection is lost")
        if what == b"+ACK":
            await self._connection.client.request(delivery.handle, what, timeout=ANSWER_SECONDS)
        else:
            await self._connection.client.publish(delivery.handle, what)
            await self._connection.client.flush(ANSWER_SECONDS)
