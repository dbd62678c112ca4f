"""KafkaOptions: how to reach the brokers, and what the client library's errors mean."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypedDict, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._topic import TopicDescription
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from conduit_py.sdk import Dataset, FatalError, Options, TransientError

ANSWER_SECONDS = 30.0
"""How long one request to a broker may take."""


class LogThrottle(logging.Filter):
    """Lets a line pass once in ten seconds, however often the client library repeats it for each of its clients.

    While no broker answers, it writes some twenty of them a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, tuple[float, int]] = {}
        """When a line passed last, and how often it was left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        key = _CHANGING.sub("", text)
        passed_at, left_out = self._passed.get(key, (float("-inf"), 0))
        if record.created - passed_at < _LOG_SECONDS:
            self._passed[key] = passed_at, left_out + 1
            return False
        if len(self._passed) >= _LINES_MAX:
            self._passed.clear()
        self._passed[key] = record.created, 0
        if left_out:
            record.msg, record.args = "%s (and %d times since the last such line)", (text, left_out)
        return True


_LOG_SECONDS = 10.0
_LINES_MAX = 1000
# The name of the client, and how long and how often it has tried.
_CHANGING = re.compile(r"\[rdkafka#[^]]*\]|\(after [^)]*\)|\d+ms|\d+ request\(s\)")

log = logging.getLogger("conduit_py.kafka")
log.addFilter(LogThrottle())

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
    secret_config: dict[str, SecretStr] = Field(
        default={}, description="more of `config`, such as ssl.key.pem, whose values are shown nowhere"
    )

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Settings that the connector itself decides about."""

    @field_validator("config", "secret_config")
    @classmethod
    def _leaves_guarantees_alone(cls, config: dict[str, Any], field: ValidationInfo) -> dict[str, Any]:
        for name in config:
            if name in _OPTIONS:
                raise ValueError(f"{name} is the option `{_OPTIONS[name]}`")
            if name in cls.reserved or name in _RESERVED:
                raise ValueError(f"{name} cannot be set: the connector's guarantee rests on it")
            # Values of `config` are shown by the API and the page, and stand in its problems.
            if field.field_name == "config" and _SECRET_NAMES.search(name):
                raise ValueError(f"{name} may be a secret, which belongs into `secret_config`")
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
        given |= {name: value.get_secret_value() for name, value in self.secret_config.items()}
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
    secret_config: Mapping[str, str | SecretStr]


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
# Also those of a later librdkafka: it has named all of them like this so far.
_SECRET_NAMES = re.compile(
    r"password|passphrase|secret|(?<!certificate)(?<!\.ca)\.pem$|_key$|oauthbearer\.config$|token$"
)


class ClientErrors:
    """The errors that a client reported beside its calls. A call that fails tells only that time ran out."""

    def __init__(self, options: KafkaOptions, group: str | None = None) -> None:
        self._options = options
        self._group = group
        self._refusal: KafkaError | None = None
        self._undelivered: tuple[KafkaError, str] | None = None

    def settings(self) -> dict[str, Any]:
        """What a client needs to report its errors here."""
        return {"error_cb": self._note, "logger": log}

    def translate(self, error: KafkaError, doing: str) -> FatalError | TransientError:
        """The error of ours for one of the library's."""
        if self._refusal is not None:
            error = self._refusal
        elif self._undelivered is not None:
            error, doing = self._undelivered
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            doing = f"using the group {self._group}"
        who = f" as user {self._options.username}" if self._options.username else ""
        text = f"Kafka at {self._options.servers}{who}: {doing}: {error.str()}"
        advice = _find_advice(error)
        if advice is not None:
            return FatalError(text, suggestion=advice)
        return TransientError(text, suggestion="check `servers`, and that the brokers run and can be reached")

    def concerns(self, error: KafkaError) -> bool:
        """False for an error that does not matter: a consumer looks for its group, even if nobody uses it."""
        return error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED or self._group is not None

    def raise_if_refused(self, doing: str) -> None:
        """Raise FatalError if the brokers refused this client: trying again would not help."""
        if self._refusal is not None:
            raise self.translate(self._refusal, doing)

    def raise_if_undelivered(self) -> None:
        """Raise an error that names the topic if a message was not stored."""
        if self._undelivered is not None:
            raise self.translate(*self._undelivered)

    def note_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note that a message was not stored. For the setting `on_delivery`."""
        if error is not None and self._undelivered is None:
            self._undelivered = error, f"writing to topic {message.topic()}"

    def _note(self, error: KafkaError) -> None:
        if self.concerns(error) and _find_advice(error) is not None:
            self._refusal = error


def _find_advice(error: KafkaError) -> str | None:
    """What to do about an error that trying again does not mend; None for any other."""
    return next((advice for codes, advice in _FATAL if error.code() in codes), None)


_FATAL: tuple[tuple[frozenset[int], str], ...] = (
    (
        frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}),
        "check `username`, `password` and `mechanism`",
    ),
    (frozenset({KafkaError._SSL}), "check `tls`, `ca_file`, and the certificates of both sides"),
    (
        frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED}),
        "allow the user Read on the topic of a source, Write on that of a destination, and both on `checkpoint_topic`",
    ),
    (frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED}), "allow the user Read on the group"),
    (
        frozenset({KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}),
        "allow the user Write and Describe on the transactional id, which `transactional_id` can set",
    ),
    (
        frozenset({KafkaError.CLUSTER_AUTHORIZATION_FAILED}),
        "create `checkpoint_topic` with one partition and cleanup.policy=compact, or allow the user Create on it",
    ),
    (
        frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}),
        "create the topic, or check its name and its partitions",
    ),
    (frozenset({KafkaError.TOPIC_EXCEPTION}), "check the name of the topic"),
    (frozenset({KafkaError.MSG_SIZE_TOO_LARGE}), "raise `max.message.bytes` of the topic"),
)

_NO_ID = "A" * 22
"""128 bits that are zero, in base64."""
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


class FoundTopic(NamedTuple):
    """A topic as the brokers describe it."""

    partitions: list[int]
    """Their numbers; none if the topic is not there."""
    topic_id: str | None = None
    """As Kafka's own tools show it. A topic that is created again has another one. None: the brokers give no ids."""


def find_topics(
    admin: AdminClient, errors: ClientErrors, topics: Sequence[str], needed: AclOperation
) -> dict[str, FoundTopic]:
    """What the brokers have of these topics.

    Raises FatalError for a topic that the user may not use. It is better said now than by the first record.
    """
    found: dict[str, FoundTopic] = {}
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    for topic, answer in asked.items():
        doing = f"looking for topic {topic}"
        try:
            described = answer.result(ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise errors.translate(error.args[0], doing) from error
            found[topic] = FoundTopic([])
            continue
        allowed = described.authorized_operations
        # Brokers without access control may not tell.
        if allowed and needed not in allowed:
            raise errors.translate(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), doing)
        found[topic] = FoundTopic([partition.id for partition in described.partitions], id_of(described))
    return found


def id_of(topic: TopicDescription) -> str | None:
    topic_id = str(topic.topic_id)
    return None if topic_id == _NO_ID else topic_id


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


def topic_datasets(servers: str, topics: Sequence[str]) -> list[Dataset]:
    """Name topics for lineage, by the first of the brokers."""
    return [Dataset(f"kafka://{servers.partition(',')[0].strip()}", topic) for topic in topics]
