"""The MQTT source: messages of topics, with a session that the broker keeps while this client is away."""

import logging
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr, field_validator

from conduit_connectors.mqtt.connection import MqttArguments, MqttConnection, MqttOptions, load_paho, topic_datasets
from conduit_py.sdk import Dataset, FatalError, TransientError
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueOptions, QueueSource
from conduit_py.sdk.template import option_error

log = logging.getLogger("conduit_py.mqtt")

_GOODBYE_SECONDS = 5.0


class SourceOptions(QueueOptions, MqttOptions):
    """Which topics, and under which name the broker keeps what is not acked yet."""

    topics: list[str] = Field(
        min_length=1, description="the topics, with + and #; $share/<name>/<topic> shares one with other clients"
    )
    client_id: str = Field(
        pattern=r"^[!-~]{1,128}$", description="the name of the session, which no other client of the broker may use"
    )
    session_seconds: int = Field(
        default=7 * 24 * 3600, ge=1, le=2**32 - 1, description="how long the broker keeps the session while it is away"
    )
    receive_max: int = Field(
        default=1000, ge=1, le=65535, description="how many messages the broker sends before some are acked"
    )
    wait_seconds: float = Field(default=1.0, gt=0, le=20, description="how long one request waits for messages")

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            levels = topic.split("/")
            wrong = any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
            if not topic or "\0" in topic or wrong:
                raise option_error(f"must be topics, in which + is a whole level and # the last (there is {topic!r})")
        return topics

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, kind: Any) -> Any:
        if kind.value != "record":
            raise option_error('must be "record": a broker of MQTT does not send again what cannot be read')
        return kind


class SourceArguments(QueueArguments, MqttArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    topics: Required[list[str]]
    client_id: Required[str]
    session_seconds: int
    receive_max: int
    wait_seconds: float


class Source(QueueSource[SourceOptions]):
    """Messages of topics, with QoS 1 and a session that the broker keeps. At-least-once in every pipeline.

    A message is acked after its commit. What was not acked when the process died comes again when the session is
    resumed, as a new message: MQTT names none. The broker keeps messages for `session_seconds` while the client is
    away, within its own limits, and drops the others. It sends at most `receive_max` that are not acked: it, and not
    this process, holds what a slow pipeline has not read. What is published with QoS 0 may be lost on its way. MQTT 5.
    """

    requires: ClassVar = {"paho": "conduit-dataflow[mqtt]"}
    others_may_repeat: ClassVar[bool] = True

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return topic_datasets(self.options, self.options.topics)

    def probe(self) -> str:
        # Under a name of its own: it would end the session of a pipeline that runs.
        connection = MqttConnection(self.options, f"conduit-py-{uuid.uuid4().hex[:12]}")
        try:
            connection.open()
        finally:
            connection.close()
        return "the broker answers"

    def queue(self) -> LeasedQueue:
        return MqttQueue(self.options)


class _Held(msgspec.Struct):
    """A message that is not acked, and until when it is leased."""

    delivery: QueueDelivery
    number: int
    qos: int
    deadline: float


class MqttQueue(LeasedQueue):
    """The broker leaves a message to a session without a limit of time, so leases are counted here.

    One that is over gives the message again to this process: the broker sends it again only to a new connection.
    """

    receive_max = 1000

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection = MqttConnection(
            options, options.client_id, session_seconds=options.session_seconds, receive_max=options.receive_max
        )
        self._arrived: deque[tuple[QueueDelivery, int, int]] = deque()
        self._held: dict[str, _Held] = {}
        self._subscribed: list[Any] | None = None
        self._closing = False
        self._left = False

    def open(self) -> None:
        connection, options = self._connection, self._options
        connection.client.on_message = self._note_message
        connection.client.on_subscribe = self._note_subscription
        connection.client.on_unsubscribe = self._note_goodbye
        connection.open()
        if not connection.resumed:
            log.info("the broker has no session %s: messages are kept from now on", options.client_id)
        # Again at each start: the topics may have changed. What is retained comes with a new subscription only.
        choice = load_paho().SubscribeOptions(qos=1, retainHandling=1)
        connection.client.subscribe([(topic, choice) for topic in options.topics])
        connection.wait(lambda: self._subscribed is not None)
        for topic, reason in zip(options.topics, self._subscribed or [], strict=False):
            if reason.is_failure:
                raise connection.fail(f"refuses the subscription to {topic!r}: {reason}", reason.value)

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        now = time.monotonic()
        over = [held for held in self._held.values() if held.deadline <= now][:count]
        if not over and not self._arrived:
            self._connection.wait(lambda: self._arrived, self._options.wait_seconds)
        given: list[QueueDelivery] = []
        with self._connection.changed:
            for held in over:
                held.delivery = msgspec.structs.replace(held.delivery, attempt=held.delivery.attempt + 1)
                held.deadline = now + lease_seconds
                given.append(held.delivery)
            while self._arrived and len(given) < count:
                delivery, number, qos = self._arrived.popleft()
                self._held[delivery.handle] = _Held(delivery, number, qos, time.monotonic() + lease_seconds)
                given.append(delivery)
            self._connection.changed.notify_all()
        return given

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        with self._connection.changed:
            held = self._held.get(delivery.handle)
            if held is None:
                raise LookupError(f"message {delivery.id} is not held any more")
            held.deadline = time.monotonic() + lease_seconds

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        with self._connection.changed:
            held = [self._held.pop(delivery.handle, None) for delivery in deliveries]
        for each in held:
            if each is not None and self._connection.client.ack(each.number, each.qos):
                # It comes again when the session is resumed.
                raise TransientError(
                    f"MQTT at {self._connection.place} took no acknowledgement", suggestion="check that it runs"
                )

    def close(self) -> None:
        with self._connection.changed:
            self._closing = True
            self._connection.changed.notify_all()
        if self._subscribed is not None:
            # The next connection of this session would overtake the last acks. The broker answers this after them.
            self._connection.client.unsubscribe(f"conduit-py/goodbye/{uuid.uuid4().hex}")
            with suppress(TransientError, FatalError):
                self._connection.wait(lambda: self._left, _GOODBYE_SECONDS)
        self._connection.close()

    def _note_message(self, client: Any, _: Any, message: Any) -> None:
        id = uuid.uuid4().hex
        properties = dict(getattr(message.properties, "UserProperty", ()))
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        delivery = QueueDelivery(id, id, message.payload, 1 + message.dup, properties | {"mqtt.topic": topic})
        with self._connection.changed:
            # The broker limits messages with QoS 1. Those with QoS 0 wait in the socket.
            self._connection.changed.wait_for(lambda: len(self._arrived) < self._options.receive_max or self._closing)
            self._arrived.append((delivery, message.mid, message.qos))
            self._connection.changed.notify_all()

    def _note_subscription(self, client: Any, _: Any, number: int, reasons: list[Any], properties: Any) -> None:
        with self._connection.changed:
            self._subscribed = reasons
            self._connection.changed.notify_all()

    def _note_goodbye(self, *_: Any) -> None:
        with self._connection.changed:
            self._left = True
            self._connection.changed.notify_all()
