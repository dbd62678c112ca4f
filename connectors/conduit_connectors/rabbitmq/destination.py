"""The RabbitMQ destination: persistent messages, each confirmed by the server."""

from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Required, Self, Unpack

from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_connectors.message_content import MessageArguments, MessageContent, MessageOptions, encode_messages
from conduit_connectors.rabbitmq.connection import (
    RabbitArguments,
    RabbitConnection,
    RabbitOptions,
    load_pika,
    queue_datasets,
)
from conduit_py.sdk import AckMode, Batch, Dataset, DestinationConnector, TransientError
from conduit_py.sdk.template import option_error

_IN_FLIGHT_MAX = 1000
_NAME_SIZE_MAX = 255


class DestinationOptions(RabbitOptions, MessageOptions):
    """To which exchange messages go, and by which key."""

    exchange: str = Field(
        default="",
        max_length=_NAME_SIZE_MAX,
        description="the exchange, which must exist; the default one is of queues",
    )
    routing_key: str = Field(
        default="", max_length=_NAME_SIZE_MAX, description="the routing key; of the default exchange, the queue"
    )
    size_max: int = Field(default=16 * 2**20, ge=1, description="the most bytes of a message that the server takes")

    @field_validator("metadata")
    @classmethod
    def _check_headers(cls, names: list[str]) -> list[str]:
        for name in names:
            if not name or len(name.encode(errors="replace")) > _NAME_SIZE_MAX:
                raise option_error(f"must be names of headers, of at most {_NAME_SIZE_MAX} bytes")
        return names

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if not self.exchange and not self.routing_key:
            raise option_error("must have an exchange, or the queue as routing_key")
        return self


class DestinationArguments(RabbitArguments, MessageArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    exchange: str
    routing_key: str
    size_max: int


class Destination(DestinationConnector[DestinationOptions]):
    """Publishes each record to an exchange or a queue, in order. At-least-once: after a crash some are there twice.

    Messages are persistent and mandatory, and a record is acked when the server confirms it: then the durable queues
    that it is routed to have it on the disk, and quorum queues on most of their servers. A record that no queue takes
    is refused, and so is one that is larger than `size_max`. A full queue that rejects what is new is waited for.
    The `message_id` is the delivery key, which is the same after every restart: consumers can recognise repeats by it.
    Metadata named in `metadata` are headers.
    """

    requires: ClassVar = {"pika": "conduit-dataflow[rabbitmq]"}
    acks: ClassVar[AckMode] = AckMode.WRITE
    _connection: RabbitConnection | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return queue_datasets(self.options, self.options.exchange or self.options.routing_key)

    def probe(self) -> str:
        connection = RabbitConnection(self.options)
        try:
            connection.open()
            connection.call(self._look)
        finally:
            connection.close()
        options = self.options
        return f"the exchange {options.exchange} is there" if options.exchange else "the queue is there"

    def open(self) -> None:
        self._connection = RabbitConnection(self.options)
        self._connection.open()
        self._connection.call(self._look)
        self._properties = load_pika().BasicProperties
        self._published = 0
        """How many messages the channel has published: the server confirms them by their number."""
        self._waiting: set[int] = set()
        """The numbers of those that are not confirmed yet."""
        self._rejected = 0
        self._returned: dict[str, str] = {}
        """Why messages came back, by their `message_id`."""
        self._connection.call(self._confirm)

    def write(self, batch: Batch) -> dict[int, str]:
        assert self._connection is not None, "opened"
        messages, refused = encode_messages(batch, self.options)
        fitting: list[tuple[int, MessageContent]] = []
        for index, message in messages.items():
            if len(message.body) > self.options.size_max:
                refused[index] = f"has {len(message.body)} bytes, and a message may have {self.options.size_max}"
            else:
                fitting.append((index, message))
        for start in range(0, len(fitting), _IN_FLIGHT_MAX):
            chunk = fitting[start : start + _IN_FLIGHT_MAX]
            names = {batch.delivery_key(index).hex(): index for index, _ in chunk}
            self._connection.call(partial(self._publish, dict(zip(names, chunk, strict=True))))
            refused |= {names[name]: why for name, why in self._returned.items()}
            if self._rejected:
                raise TransientError(
                    f"RabbitMQ at {self._connection.place} rejects {self._rejected} messages",
                    suggestion="check the length limits of the queues, and that the server is well",
                )
        return refused

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self, channel: Any, answer: "Future[Any]") -> None:
        if self.options.exchange:
            channel.exchange_declare(self.options.exchange, passive=True, callback=answer.set_result)
        else:
            channel.queue_declare(self.options.routing_key, passive=True, callback=answer.set_result)

    def _confirm(self, channel: Any, answer: "Future[Any]") -> None:
        channel.add_on_return_callback(self._take_return)
        channel.confirm_delivery(self._take_confirm, callback=answer.set_result)

    def _publish(self, messages: dict[str, tuple[int, MessageContent]], channel: Any, answer: "Future[Any]") -> None:
        options = self.options
        self._answer, self._returned, self._rejected = answer, {}, 0
        self._waiting = set(range(self._published + 1, self._published + 1 + len(messages)))
        self._published += len(messages)
        for name, (_, message) in messages.items():
            properties = self._properties(message_id=name, delivery_mode=2, headers=message.attributes or None)
            channel.basic_publish(options.exchange, options.routing_key, message.body, properties, mandatory=True)

    def _take_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """A message that no queue takes comes back, before it is confirmed."""
        options = self.options
        target = f"of the exchange {options.exchange!r} " if options.exchange else ""
        self._returned[properties.message_id] = f"no queue {target}takes {options.routing_key!r}: {method.reply_text}"

    def _take_confirm(self, frame: Any) -> None:
        method = frame.method
        confirmed = (
            {number for number in self._waiting if number <= method.delivery_tag}
            if method.multiple
            else {method.delivery_tag}
        )
        self._rejected += len(self._waiting & confirmed) if method.NAME == "Basic.Nack" else 0
        self._waiting -= confirmed
        if not self._waiting and not self._answer.done():
            self._answer.set_result(None)
