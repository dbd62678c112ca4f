"""MqttConnection: one client of paho, which speaks MQTT 5 in a thread of its own, and what its errors mean."""

import ssl
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_connectors.broker_tls import TlsArguments, TlsOptions
from conduit_py.sdk import Dataset, FatalError, TransientError
from conduit_py.sdk.template import option_error

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
IN_FLIGHT_MAX: Final = 1000
_FATAL: Final = {
    0x84: "use a broker that speaks MQTT 5",
    0x85: "choose another client_id",
    0x86: "check the user and the password in `url`",
    0x87: "check the user and the password in `url`, and the rights of the user",
    0x8A: "have the broker allow this client",
    0x8C: "check how the broker authenticates its clients",
    0x90: "choose another topic",
    0x9A: "have the broker allow retained messages, or use retain=False",
    0x9B: "have the broker allow QoS 1",
    0x8E: "give every client a client_id of its own: another one has taken over the session",
}
"""Reasons of a broker that do not pass by themselves, and what to do."""


class MqttOptions(TlsOptions):
    """Which broker, and who asks."""

    url: SecretStr = Field(description="the broker, as mqtt://user:password@host:port; mqtts: with TLS")
    keep_alive_seconds: int = Field(default=30, ge=5, le=3600, description="how soon a lost connection is noticed")
    answer_seconds: float = Field(default=30.0, gt=0, description="how long the broker may take to answer")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
            usable = parts.scheme in PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if not usable:
            raise option_error("must be a URL as mqtt://host:port or mqtts://host:port")
        return url

    @model_validator(mode="after")
    def _check_files(self) -> "MqttOptions":
        if self.has_files and not self.url.get_secret_value().startswith("mqtts:"):
            raise option_error("has ca_file or certificate_file, which need a url that begins with mqtts://")
        return self


class MqttArguments(TlsArguments, total=False):
    """MqttOptions as a caller writes them, without `url`, for editors and type checkers."""

    keep_alive_seconds: int
    answer_seconds: float


def topic_datasets(options: MqttOptions, topics: Sequence[str]) -> list[Dataset]:
    """Name topics for lineage."""
    url = options.url.get_secret_value()
    return [Dataset.at_server(url, topic, port=PORTS[urlsplit(url).scheme]) for topic in topics]


class MqttConnection:
    """Connects once. What waits in `wait` ends with an error when the connection is lost: it never connects again."""

    def __init__(self, options: MqttOptions, client_id: str, *, session_seconds: int = 0, receive_max: int = 0) -> None:
        self._options = options
        self._mqtt = load_paho()
        self._parts = urlsplit(options.url.get_secret_value())
        self._session_seconds = session_seconds
        self._receive_max = receive_max
        self.place = f"{self._parts.hostname}:{self._parts.port or PORTS[self._parts.scheme]}"
        self.changed = threading.Condition()
        """Held while what callbacks change is looked at."""
        self.size_max = 2**28 - 1
        """The largest packet that the broker takes."""
        self.in_flight_max = 1
        """How many messages the broker takes before it has acknowledged some. The library does not look at that."""
        self.resumed = False
        """True if the broker has kept the session."""
        self._connected = False
        self._error: Exception | None = None
        client = self._mqtt.Client(
            self._mqtt.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=self._mqtt.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.on_connect, client.on_disconnect = self._note_connect, self._note_disconnect
        client.max_inflight_messages = IN_FLIGHT_MAX
        client.connect_timeout = min(options.answer_seconds, 10.0)
        self.client = client

    def open(self) -> None:
        """Connect, and wait until the broker accepts. Raises FatalError or TransientError."""
        parts, client, options = self._parts, self.client, self._options
        if parts.username is not None:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if parts.scheme == "mqtts":
            client.tls_set_context(options.make_context("MQTT"))
        try:
            client.connect(
                parts.hostname,
                parts.port or PORTS[parts.scheme],
                options.keep_alive_seconds,
                clean_start=not self._session_seconds,
                properties=self._properties(),
            )
        except ssl.SSLCertVerificationError as error:
            raise FatalError(
                f"the certificate of MQTT at {self.place} is not trusted: {error}", suggestion="check ca_file"
            ) from error
        except OSError as error:
            raise TransientError(
                f"MQTT at {self.place} cannot be reached: {error}", suggestion="check the url, and that the broker runs"
            ) from error
        client.loop_start()
        self.wait(lambda: self._connected)

    def wait(self, condition: Any, seconds: float | None = None) -> bool:
        """Wait until the condition holds. False after `seconds`; without them it is an error then."""
        with self.changed:
            done = self.changed.wait_for(lambda: condition() or self._error, seconds or self._options.answer_seconds)
            if self._error is not None and not condition():
                raise self._error
        if not done and seconds is None:
            raise TransientError(
                f"MQTT at {self.place} does not answer within {self._options.answer_seconds:g} s",
                suggestion="check that the broker is well",
            )
        return bool(done)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        # The library closes its own pair of sockets when nobody refers to the client any more: not after a collection.
        self.client.on_connect = self.client.on_disconnect = None

    def fail(self, what: str, code: int) -> Exception:
        """The error for a reason that the broker gives."""
        if code in _FATAL:
            return FatalError(f"MQTT at {self.place} {what}", suggestion=_FATAL[code])
        return TransientError(f"MQTT at {self.place} {what}", suggestion="check that the broker runs and is well")

    def _properties(self) -> Any:
        properties = self._mqtt.Properties(self._mqtt.PacketTypes.CONNECT)
        if self._session_seconds:
            properties.SessionExpiryInterval = self._session_seconds
        if self._receive_max:
            properties.ReceiveMaximum = self._receive_max
        return properties

    def _note_connect(self, client: Any, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self.changed:
            if reason.is_failure:
                self._error = self.fail(f"refuses the connection: {reason}", reason.value)
            else:
                self.in_flight_max = min(getattr(properties, "ReceiveMaximum", 65535), IN_FLIGHT_MAX)
                self.size_max = getattr(properties, "MaximumPacketSize", self.size_max)
                self.resumed, self._connected = flags.session_present, True
            self.changed.notify_all()

    def _note_disconnect(self, client: Any, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self.changed:
            self._error = self._error or self.fail(f"ended the connection: {reason}", reason.value)
            self.changed.notify_all()


def load_paho() -> Any:
    try:
        import paho.mqtt.client as paho
    except ImportError as error:
        raise FatalError(
            "MQTT is used through paho-mqtt, which is not installed", suggestion="pip install 'conduit-dataflow[mqtt]'"
        ) from error
    return paho
