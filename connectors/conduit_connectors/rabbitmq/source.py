"""The RabbitMQ source: work from a queue, shared by its consumers."""

import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_connectors.rabbitmq.connection import RabbitArguments, RabbitConnection, RabbitOptions, queue_datasets
from conduit_py.sdk import Dataset, FatalError
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

_REST_SECONDS = 0.02
"""How long to wait for more messages after the first one."""
_LOOK_SECONDS = 0.2
"""How often leases are looked at."""


class SourceOptions(ObjectQueueOptions, RabbitOptions):
    """Which queue, and what its messages are."""

    queue: str = Field(min_length=1, max_length=255, description="the queue, which must exist; classic or quorum")
    wait_seconds: float = Field(default=1.0, gt=0, le=20, description="how long one request waits for messages")
    unique_ids: bool = Field(
        default=False,
        description="whether each message has a `message_id` that no other has: then a repeat is recognised by it",
    )


class SourceArguments(QueueArguments, ObjectArguments, RabbitArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    queue: Required[str]
    wait_seconds: float
    unique_ids: bool


class Source(QueueSource[SourceOptions]):
    """Messages of a RabbitMQ queue, or the records of the objects that they announce.

    At-least-once. The server does not name its messages: one that comes again is a new one. With `unique_ids=True`, if
    publishers give each message a `message_id` of its own as `rabbitmq.Destination` does, the content of each arrives
    once in an exactly-once pipeline; a message without an id ends the pipeline then. In order within an announced
    object. A message is acked after its commit. What a killed process held is delivered again when the server notices.
    """

    requires: ClassVar = {"pika": "conduit-dataflow[rabbitmq]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return queue_datasets(self.options, self.options.queue)

    @property
    def others_may_repeat(self) -> bool:  # type: ignore[override]
        # Without ids a message that was committed and not yet acked is not recognised.
        return self._options is None or not self.options.unique_ids

    def probe(self) -> str:
        queue = RabbitQueue(self.options)
        try:
            return f"the queue has {queue.open()} messages"
        finally:
            queue.close()

    def queue(self) -> LeasedQueue:
        return RabbitQueue(self.options)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class RabbitQueue(LeasedQueue):
    """The server leaves a message to a connection without a limit of time, so leases are counted here.

    Each `receive` has a consumer of its own, with a prefetch of what it may return: a consumer that waits for more
    would keep messages from other workers that nobody here has asked for.
    """

    receive_max = 1000

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection = RabbitConnection(options)
        self._name = uuid.uuid4().hex
        self._held: dict[int, float] = {}
        """Until when each delivery is leased. Only the thread of the connection uses it."""

    def open(self) -> int:  # type: ignore[override]
        """Connect; return how many messages are ready."""
        self._connection.open()

        def look(channel: Any, answer: Future[Any]) -> None:
            channel.queue_declare(
                self._options.queue,
                passive=True,
                callback=lambda frame: answer.set_result(frame.method.message_count),
            )
            self._connection.call_later(_LOOK_SECONDS, lambda: self._expire(channel))

        return int(self._connection.call(look))

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        deliveries: list[QueueDelivery] = self._connection.call(
            lambda channel, answer: _Receiving(self, channel, answer, count, lease_seconds).begin()
        )
        return deliveries

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        def work(channel: Any, answer: Future[Any]) -> None:
            tag = self._tag_of(delivery)
            if tag in self._held:
                self._held[tag] = time.monotonic() + lease_seconds
            answer.set_result(tag in self._held)

        if not self._connection.call(work):
            raise LookupError(f"message {delivery.id} is not held any more")

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        def work(channel: Any, answer: Future[Any]) -> None:
            for delivery in deliveries:
                tag = self._tag_of(delivery)
                if self._held.pop(tag, None) is not None:
                    channel.basic_ack(tag)
            answer.set_result(None)

        self._connection.call(work)

    def close(self) -> None:
        self._connection.close()

    def _expire(self, channel: Any) -> None:
        """Give back what is neither acked nor extended in time."""
        if not channel.is_open:
            return
        now = time.monotonic()
        for tag in [tag for tag, deadline in self._held.items() if deadline <= now]:
            del self._held[tag]
            channel.basic_nack(tag, requeue=True)
        self._connection.call_later(_LOOK_SECONDS, lambda: self._expire(channel))

    def _tag_of(self, delivery: QueueDelivery) -> int:
        name, _, tag = delivery.handle.partition("/")
        return int(tag) if name == self._name else 0

    def _take(self, method: Any, properties: Any, body: bytes, lease_seconds: float) -> QueueDelivery:
        """Hold a message from now on."""
        self._held[method.delivery_tag] = time.monotonic() + lease_seconds
        headers: Mapping[str, Any] = properties.headers or {}
        texts = {name: str(value) for name, value in headers.items() if isinstance(value, str | int | float)}
        if self._options.unique_ids and not properties.message_id:
            raise FatalError(
                f"a message of the queue {self._options.queue!r} has no message_id, which unique_ids=True needs",
                suggestion="have publishers set it, or use unique_ids=False",
            )
        # Quorum queues count deliveries. Others tell only that it was delivered before.
        attempt = int(headers.get("x-delivery-count", int(method.redelivered))) + 1
        return QueueDelivery(
            id=properties.message_id if self._options.unique_ids else uuid.uuid4().hex,
            handle=f"{self._name}/{method.delivery_tag}",
            body=body,
            attempt=attempt,
            attributes={"rabbitmq.exchange": method.exchange, "rabbitmq.routing_key": method.routing_key} | texts,
        )


class _Receiving:
    """One `receive`, in the thread of the connection: a consumer from its beginning to its end."""

    def __init__(
        self, queue: RabbitQueue, channel: Any, answer: "Future[Any]", count: int, lease_seconds: float
    ) -> None:
        self._queue = queue
        self._channel = channel
        self._answer = answer
        self._count = count
        self._lease_seconds = lease_seconds
        self._tag = ""
        self._deliveries: list[QueueDelivery] = []
        self._ending = False

    def begin(self) -> None:
        self._channel.basic_qos(prefetch_count=self._count, callback=lambda _: self._consume())

    def _consume(self) -> None:
        options, connection = self._queue._options, self._queue._connection
        self._tag = self._channel.basic_consume(options.queue, self._take)
        connection.call_later(options.wait_seconds, self._end)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        try:
            self._deliveries.append(self._queue._take(method, properties, body, self._lease_seconds))
        except FatalError as error:
            if not self._answer.done():
                self._answer.set_exception(error)
            self._end()
            return
        if len(self._deliveries) == self._count:
            self._end()
        elif len(self._deliveries) == 1:
            self._queue._connection.call_later(_REST_SECONDS, self._end)

    def _end(self) -> None:
        # What arrives before the server confirms is taken too: it is at most the prefetch.
        if not self._ending and self._channel.is_open:
            self._ending = True
            self._channel.basic_cancel(self._tag, callback=lambda _: self._give())

    def _give(self) -> None:
        if not self._answer.done():
            self._answer.set_result(self._deliveries)
