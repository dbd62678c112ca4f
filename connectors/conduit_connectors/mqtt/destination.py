"""The MQTT destination: messages with QoS 1, each acknowledged by the broker."""

import uuid
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.message_content import MessageArguments, MessageContent, MessageOptions, encode_messages
from conduit_connectors.mqtt.connection import MqttArguments, MqttConnection, MqttOptions, load_paho, topic_datasets
from conduit_py.sdk import AckMode, Batch, Dataset, DestinationConnector

_REFUSALS = {0x95: "it is too large", 0x99: "its payload is not of the format that the broker expects"}
"""Reasons of a broker that are about one message only."""


class DestinationOptions(MqttOptions, MessageOptions):
    """Under which topic, and how."""

    topic: str = Field(min_length=1, max_length=65535, pattern=r"^[^+#\x00]+$", description="the topic of the messages")
    retain: bool = Field(default=False, description="whether the broker keeps the last message for new subscribers")
    client_id: str | None = Field(
        default=None, pattern=r"^[!-~]{1,128}$", description="the name of this client; None: a random one"
    )


class DestinationArguments(MqttArguments, MessageArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    topic: Required[str]
    retain: bool
    client_id: str | None


class Destination(DestinationConnector[DestinationOptions]):
    """Publishes each record under a topic, in order, with QoS 1. At-least-once: after a crash some are there twice.

    A record is acked when the broker acknowledges it. What the broker does with it then is its own matter: it keeps
    messages for sessions that last, as long as it has room, and drops those that nobody has subscribed to. The user
    property `delivery-key` is the same after every restart: subscribers can recognise repeats by it. Metadata
    named in `metadata` are user properties too. A record that is larger than the broker takes is refused. MQTT 5.
    """

    requires: ClassVar = {"paho": "conduit-dataflow[mqtt]"}
    acks: ClassVar[AckMode] = AckMode.WRITE
    _connection: MqttConnection | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return topic_datasets(self.options, [self.options.topic])

    def probe(self) -> str:
        # Under a name of its own: a broker ends the connection of another client with the same name.
        connection = MqttConnection(self.options, _random_id())
        try:
            connection.open()
        finally:
            connection.close()
        return "the broker answers"

    def open(self) -> None:
        self._paho = load_paho()
        self._connection = MqttConnection(self.options, self.options.client_id or _random_id())
        self._acked: dict[int, Any] = {}
        """The reason that the broker gave, by the number of the message."""
        self._connection.client.on_publish = self._note_ack
        self._connection.open()

    def write(self, batch: Batch) -> dict[int, str]:
        connection = self._connection
        assert connection is not None, "opened"
        messages, refused = encode_messages(batch, self.options)
        fitting: list[tuple[int, MessageContent]] = []
        for index, message in messages.items():
            size = len(message.body) + len(self.options.topic.encode()) + _OVERHEAD
            size += sum(len(name.encode()) + len(value.encode()) + 5 for name, value in message.attributes.items())
            if size > connection.size_max:
                refused[index] = f"has {size} bytes with its topic, and the broker takes {connection.size_max}"
            elif any(len(value.encode()) > _TEXT_SIZE_MAX for value in message.attributes.values()):
                refused[index] = f"has metadata of more than {_TEXT_SIZE_MAX} bytes, which cannot be a property"
            else:
                fitting.append((index, message))
        for start in range(0, len(fitting), connection.in_flight_max):
            refused |= self._publish(connection, batch, dict(fitting[start : start + connection.in_flight_max]))
        return refused

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _publish(self, connection: MqttConnection, batch: Batch, messages: dict[int, MessageContent]) -> dict[int, str]:
        """Publish messages, and wait until each is acknowledged or refused."""
        options = self.options
        with connection.changed:
            self._acked.clear()
        numbers: dict[int, int] = {}
        for index, message in messages.items():
            properties = self._paho.Properties(self._paho.PacketTypes.PUBLISH)
            properties.UserProperty = [("delivery-key", batch.delivery_key(index).hex()), *message.attributes.items()]
            sent = connection.client.publish(options.topic, message.body, 1, options.retain, properties)
            numbers[sent.mid] = index
        connection.wait(lambda: len(self._acked) >= len(numbers))
        refused: dict[int, str] = {}
        for number, reason in self._acked.items():
            if reason.value in _REFUSALS:
                refused[numbers[number]] = f"the broker refuses it: {_REFUSALS[reason.value]}"
            elif reason.is_failure:
                raise connection.fail(f"does not take a message for {options.topic!r}: {reason}", reason.value)
        return refused

    def _note_ack(self, client: Any, _: Any, number: int, reason: Any, properties: Any) -> None:
        connection = self._connection
        if connection is not None:
            with connection.changed:
                self._acked[number] = reason
                connection.changed.notify_all()


_OVERHEAD = 80
"""More than the rest of a packet takes, with the delivery key."""
_TEXT_SIZE_MAX = 65_535


def _random_id() -> str:
    return f"conduit-py-{uuid.uuid4().hex[:12]}"
