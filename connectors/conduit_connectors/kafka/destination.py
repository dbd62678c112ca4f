"""The Kafka destination: an idempotent producer, or transactions that carry the pipeline's checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Required, Self, Unpack

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from pydantic import Field, field_validator, model_validator

from conduit_connectors.kafka.connection import (
    TOPIC_NAME,
    ClientErrors,
    KafkaArguments,
    KafkaOptions,
    ask,
    connect_admin,
    describe_topics,
    find_topics,
    make_client,
    topic_datasets,
)
from conduit_connectors.kafka.message import MessageEncoder, TopicLimits
from conduit_connectors.kafka.transactions import (
    OutgoingMessage,
    Transactions,
    create_checkpoint_topic,
    produce_all,
    produce_plain,
)
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError

_BATCH_BYTES = 1_000_000
_SIZE_MAX = 1_048_588
"""What a topic takes unless it was changed, for users who may not ask."""


class DestinationOptions(KafkaOptions):
    """Options of the Kafka destination."""

    topic: str | None = Field(default=None, description="the topic; None: that of `topics` in opencdc.collection")
    topics: list[str] = Field(default=[], description="with topic=None: the topics that records may name")
    key_field: str | None = Field(
        default=None, description="the payload's field that is the key; None: the record's key"
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="how batches are compressed"
    )
    linger_seconds: float = Field(default=0.005, ge=0, le=10, description="how long to wait for more to send at once")
    delivery_seconds: float = Field(default=60.0, gt=0, description="how long brokers may take to store a record")
    transaction_seconds: float = Field(
        default=60.0, ge=1, description="brokers abort a transaction that is open for longer"
    )
    transactional_id: str | None = Field(
        default=None, min_length=1, description="for exactly-once; None: made of the pipeline and the topic"
    )
    checkpoint_topic: str = Field(
        default="conduit-checkpoints", description="where exactly-once pipelines keep their progress; made when missing"
    )

    reserved: ClassVar[frozenset[str]] = frozenset(
        {
            "acks", "request.required.acks", "enable.idempotence", "transactional.id", "transaction.timeout.ms",
            "delivery.report.only.error", "message.timeout.ms", "delivery.timeout.ms", "message.max.bytes",
            "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
            "batch.size", "enable.gapless.guarantee", "allow.auto.create.topics",
        }
    )  # fmt: skip

    @field_validator("topics", "topic", "checkpoint_topic")
    @classmethod
    def _names(cls, value: Any) -> Any:
        for name in [value] if isinstance(value, str) else value or []:
            if not TOPIC_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")
        return value

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if (self.topic is None) == (not self.topics):
            raise ValueError("give `topic`, or `topics` for records that name theirs")
        if self.checkpoint_topic in (self.topic, *self.topics):
            raise ValueError("`checkpoint_topic` holds the progress of pipelines, and no records")
        return self

    @property
    def targets(self) -> list[str]:
        return [self.topic] if self.topic is not None else self.topics


class DestinationArguments(KafkaArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    servers: Required[str]
    topic: str | None
    topics: Sequence[str]
    key_field: str | None
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    linger_seconds: float
    delivery_seconds: float
    transaction_seconds: float
    transactional_id: str | None
    checkpoint_topic: str


class StagedMessages(msgspec.Struct, frozen=True, array_like=True):
    """An intent: messages to write, identified by the fence and number under which they were staged."""

    fence: int
    number: int
    messages: list[OutgoingMessage]


class Destination(sdk.TransactionalDestination[DestinationOptions]):
    """Writes records to topics, in order for each key. Transactional.

    Exactly-once in an exactly-once pipeline, for readers with `isolation.level=read_committed`: the records and the
    pipeline's checkpoint, in `checkpoint_topic`, are one transaction of Kafka. If another destination carries the
    commit, it stages: the intent holds the records, and a transaction writes them with a note that they are written.
    At-least-once in any other pipeline: a record counts as handled when all in-sync replicas have it.

    The value is the raw payload, or the structured one as JSON. A delete is a tombstone. Metadata `kafka.header.X`
    becomes the header X. A record too large for its topic, without a key for a compacted one, or for a topic not among
    `topics`, is refused alone. Topics must exist: records create none.
    """

    requires: ClassVar = {"confluent_kafka": "conduit-dataflow[kafka]"}
    acks: ClassVar[AckMode] = AckMode.FLUSH
    _admin: AdminClient | None = None
    _producer: Producer | None = None
    _transactions: Transactions | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str:
        return f"the transactional_id {self._transactional_id('<pipeline>')!r} of Kafka at {self.options.servers}"

    @property
    def order(self) -> sdk.KeptOrder:
        return sdk.KeptOrder.PARTITION

    def datasets(self) -> Sequence[sdk.Dataset]:
        topic = self.options.topic
        return topic_datasets(self.options.servers, self.options.topics if topic is None else [topic])

    def probe(self) -> str:
        errors, topics = ClientErrors(self.options), self.options.targets
        _find_limits(connect_admin(self.options, errors), errors, topics)
        return f"the topics {', '.join(topics)} are there"

    def open(self) -> None:
        options = self.options
        self._errors = ClientErrors(options)
        self._admin = admin = connect_admin(options, self._errors)
        self._limits = _find_limits(admin, self._errors, options.targets)
        self._encoder = MessageEncoder(options.topic, self._limits, options.key_field)
        self._staged: list[OutgoingMessage] | None = None
        self._stages = 0
        self._fence = 0

    def claim(self, owner: str, fence: int) -> bytes | None:
        assert self._admin is not None, "opened"
        create_checkpoint_topic(self._admin, self._errors, self.options.checkpoint_topic)
        self._fence = fence
        self._transactions = self._transactions_of(owner)
        return self._transactions.claim(fence)

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        for intent in intents:
            self.apply(intent)
        self._staged = []

    def write(self, batch: Batch) -> dict[int, str]:
        if self._staged is not None:
            messages, refused = self._encoder.encode_batch(batch)
            self._staged += messages
            return refused
        if self._transactions is not None:
            return self._transactions.write(lambda producer: self._send(producer, batch))
        producer = self._producer = self._producer or self._plain_producer()
        sent: dict[int, str] = ask(self._errors, "writing", lambda: self._send(producer, batch))
        return sent

    def _send(self, producer: Producer, batch: Batch) -> dict[int, str]:
        refused: dict[int, str] = {}
        plain = self._encoder.find_plain(batch)
        if plain is not None:
            assert self.options.topic is not None
            produce_plain(producer, self.options.topic, plain)
        else:
            messages, refused = self._encoder.encode_batch(batch)
            produce_all(producer, messages)
        # Serves errors that the broker reported meanwhile.
        producer.poll(0)
        return refused

    def flush(self) -> None:
        if self._producer is not None:
            # Every message is stored or has failed after `delivery_seconds`, so this ends.
            while self._producer.flush(1.0):
                self._errors.raise_if_refused("writing")
            self._errors.raise_if_undelivered()

    def commit(self, changes: bytes) -> None:
        self._claimed.commit(changes)

    def stage(self) -> bytes | None:
        if not self._staged:
            return None
        self._stages += 1
        stage = StagedMessages(self._fence, self._stages, self._staged)
        self._staged = []
        return msgspec.msgpack.encode(stage)

    def apply(self, intent: bytes) -> None:
        stage = msgspec.msgpack.decode(intent, type=StagedMessages)
        self._claimed.apply(stage.fence, stage.number, stage.messages)

    def apply_for(self, owner: str, intent: bytes) -> bool:
        # It fences that owner, which may be about to apply the same intent: only one of both can.
        transactions = self._transactions_of(owner)
        try:
            if not transactions.start():
                return False
            stage = msgspec.msgpack.decode(intent, type=StagedMessages)
            transactions.apply(stage.fence, stage.number, stage.messages)
        finally:
            transactions.close()
        return True

    def teardown(self) -> None:
        self._admin = None
        if self._producer is not None:
            # What is not stored by now was not acked: the next run writes it again.
            self._producer.purge()
            self._producer = None
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None

    @property
    def _claimed(self) -> Transactions:
        assert self._transactions is not None, "claimed"
        return self._transactions

    def _transactions_of(self, owner: str) -> Transactions:
        options, id = self.options, self._transactional_id(owner)
        settings = self._producer_settings() | {"transaction.timeout.ms": round(options.transaction_seconds * 1000)}
        # Messages must have failed before the transaction does, or the transaction has no time left to end.
        settings["message.timeout.ms"] = round(min(options.delivery_seconds, options.transaction_seconds) * 1000)
        return Transactions(options, options.checkpoint_topic, id, settings)

    def _transactional_id(self, owner: str) -> str:
        return self.options.transactional_id or f"conduit.{owner}.{self.options.topic or '*'}"

    def _plain_producer(self) -> Producer:
        settings = {**self.options.settings(), **self._errors.settings(), **self._producer_settings()}
        return make_client(Producer, settings | {"on_delivery": self._errors.note_delivery})

    def _producer_settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "enable.idempotence": True,
            "acks": "all",
            # Without a call for each record: only failures are reported, and `flush` waits for all.
            "delivery.report.only.error": True,
            "message.timeout.ms": round(options.delivery_seconds * 1000),
            "message.max.bytes": 1_000_000_000,
            # A topic refuses a batch that is larger than its largest message.
            "batch.size": min(_BATCH_BYTES, *(limits.size_max for limits in self._limits.values())),
            "linger.ms": options.linger_seconds * 1000,
            "compression.type": options.compression,
            # As clients in Java do, so that all writers of a topic send a key to the same partition.
            "partitioner": "murmur2_random",
            **options.config,
        }


def _find_limits(admin: AdminClient, errors: ClientErrors, topics: Sequence[str]) -> Mapping[str, TopicLimits]:
    for topic, found in find_topics(admin, errors, topics, AclOperation.WRITE).items():
        if not found.partitions:
            raise FatalError(f"Kafka has no topic {topic}", suggestion="create it: records create no topics")
    limits = {}
    for topic, config in describe_topics(admin, errors, topics).items():
        if config is None:
            limits[topic] = TopicLimits(_SIZE_MAX, needs_key=False)
        else:
            compacted = "compact" in config["cleanup.policy"]
            limits[topic] = TopicLimits(int(config["max.message.bytes"]), compacted)
    return limits
