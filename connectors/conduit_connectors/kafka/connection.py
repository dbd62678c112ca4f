"""KafkaOptions: how to reach the brokers, and what the client library's errors mean."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_py.sdk import FatalError, Options, TransientError

ANSWER_SECONDS = 30.0
"""How long one request to a broker may take."""

log = logging.getLogger("conduit_py.kafka")

TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class KafkaOptions(Options):
    """Which brokers, and who asks."""

    servers: str = Field(min_length=1, description="brokers to ask first, as host:port; several with commas between")
    tls: bool = Field(default=False, description="encrypt the connection and check the broker's certificate")
    ca_file: str | None = Field(default=None, description="the authorities to trust; None: those of the machine")
    certificate_file: str | None = Field(default=None, description="the client's certificate, for TLS on both sides")
    key_file: str | None = Field(default=None, description="the key of the certificate")
    key_password: SecretStr | None = Field(default=None, description="the password of the key file")
    username: str | None = Field(default=None, description="the user, for SASL")
    password: SecretStr | None = Field(default=None, description="the password of the user")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="how the password is proved"
    )
    answer_seconds: float = Field(default=30.0, gt=0, description="how long brokers may take to answer at the start")
    config: dict[str, str | int | float | bool] = Field(
        default={}, description="other settings of librdkafka, by name; those that a guarantee rests on are refused"
    )

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Settings that the connector itself decides about."""

    @field_validator("config")
    @classmethod
    def _leaves_guarantees_alone(cls, config: dict[str, Any]) -> dict[str, Any]:
        for name in config:
            if name in _OPTIONS:
                raise ValueError(f"{name} is the option `{_OPTIONS[name]}`")
            if name in cls.reserved or name in _RESERVED:
                raise ValueError(f"{name} cannot be set: the connector's guarantee rests on it")
        return config

    @model_validator(mode="after")
    def _whole_credentials(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("give `username` and `password`, or neither")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("give `certificate_file` and `key_file`, or neither")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise ValueError("`ca_file` and `certificate_file` need tls=True")
        return self

    def settings(self) -> dict[str, Any]:
        """The settings of a client, without those of its kind."""
        protocol = ("SASL_" if self.username else "") + ("SSL" if self.tls else "PLAINTEXT")
        optional = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "ssl.key.password": self.key_password and self.key_password.get_secret_value(),
            "sasl.username": self.username,
            "sasl.password": self.password and self.password.get_secret_value(),
            "sasl.mechanism": self.mechanism if self.username else None,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"bootstrap.servers": self.servers, "security.protocol": protocol, **given, **self.config}


class KafkaArguments(TypedDict, total=False):
    """KafkaOptions as a caller writes them, for editors and type checkers, without `servers`."""

    tls: bool
    ca_file: str | None
    certificate_file: str | None
    key_file: str | None
    key_password: str | SecretStr | None
    username: str | None
    password: str | SecretStr | None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    answer_seconds: float
    config: Mapping[str, str | int | float | bool]


_OPTIONS = {
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    "security.protocol": "tls",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
    "sasl.username": "username",
    "sasl.password": "password",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
}
# The first three run code of a file or a command, the others turn off the check of certificates.
_RESERVED = {
    "plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd",
    "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm",
}  # fmt: skip


class ClientErrors:
    """The errors that a client reported beside its calls. A call that fails tells only that time ran out."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._refusal: KafkaError | None = None

    def settings(self) -> dict[str, Any]:
        """What a client needs to report its errors here."""
        return {"error_cb": self._note, "logger": log}

    def translate(self, error: KafkaError, doing: str) -> FatalError | TransientError:
        """The error of ours for one of the library's."""
        cause = self._refusal or error
        code, text = cause.code(), f"Kafka at {self._options.servers}: {doing}: {cause.str()}"
        for codes, advice in _FATAL:
            if code in codes:
                return FatalError(text, suggestion=advice)
        return TransientError(text, suggestion="check `servers`, and that the brokers run and can be reached")

    def raise_if_refused(self, doing: str) -> None:
        """Raise FatalError if the brokers refused this client: trying again would not help."""
        if self._refusal is not None:
            raise self.translate(self._refusal, doing)

    def _note(self, error: KafkaError) -> None:
        if any(error.code() in codes for codes, _ in _FATAL):
            self._refusal = error


_FATAL: tuple[tuple[frozenset[int], str], ...] = (
    (
        frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}),
        "check `username`, `password` and `mechanism`",
    ),
    (frozenset({KafkaError._SSL}), "check `tls`, `ca_file`, and the certificates of both sides"),
    (
        frozenset(
            {
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            }
        ),
        "let the user read or write the topic, use the group, and use the transactional id",
    ),
    (
        frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}),
        "create the topic, or check its name and its partitions",
    ),
    (frozenset({KafkaError.TOPIC_EXCEPTION}), "check the name of the topic"),
    (frozenset({KafkaError.MSG_SIZE_TOO_LARGE}), "raise `max.message.bytes` of the topic"),
)

_Client = TypeVar("_Client")


def make_client(kind: Callable[[dict[str, Any]], _Client], settings: dict[str, Any]) -> _Client:
    """A client of the library. Raises FatalError for settings that it refuses, such as a file that is not there."""
    try:
        return kind(settings)
    except (KafkaException, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise FatalError(
            f"the Kafka client refuses its settings: {reason}",
            suggestion="check `config`, `ca_file`, `certificate_file` and `key_file`",
        ) from error


def connect_admin(options: KafkaOptions, errors: ClientErrors) -> AdminClient:
    """A client for requests about topics. Raises if no broker answers, or if they refuse the user."""
    admin = make_client(AdminClient, options.settings() | errors.settings())
    deadline = time.monotonic() + options.answer_seconds
    while True:
        try:
            admin.list_topics(timeout=2.0)
            return admin
        except KafkaException as error:
            admin.poll(0)
            errors.raise_if_refused("connecting")
            if time.monotonic() > deadline:
                raise errors.translate(error.args[0], "connecting") from error


def ask(errors: ClientErrors, doing: str, request: Callable[[], Any]) -> Any:
    """The answer to a request; the library's errors become ours."""
    try:
        return request()
    except KafkaException as error:
        raise errors.translate(error.args[0], doing) from error


def describe_topics(
    admin: AdminClient, errors: ClientErrors, topics: Sequence[str]
) -> dict[str, Mapping[str, str] | None]:
    """The settings of topics; None for one that the user may not ask about."""
    found: dict[str, Mapping[str, str] | None] = {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    for resource, answer in admin.describe_configs(resources).items():
        try:
            settings = answer.result(ANSWER_SECONDS)
            found[resource.name] = {name: entry.value or "" for name, entry in settings.items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise errors.translate(error.args[0], f"asking for the settings of topic {resource.name}") from error
            found[resource.name] = None
    return found
