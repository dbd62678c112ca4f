"""Transactions: one producer with a transactional id, and its state in the checkpoint topic, committed together."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conduit_connectors.kafka.connection import (
    ANSWER_SECONDS,
    ClientErrors,
    KafkaOptions,
    ask,
    describe_topics,
    make_client,
)
from conduit_py.sdk import FatalError, Fenced, TransientError

# The last: after it was fenced, a producer refuses every message with this code.
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError._FATAL}
_NOT_KNOWN = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
_LOOK_AGAIN_SECONDS = 0.1
_COMMIT_SECONDS = 60.0
_STATE_MAX = 64 * 1024 * 1024
"""A state has the intents of other destinations, which may hold all records of a transaction."""
_NEAR = 64
"""How many of the last records of the checkpoint topic are looked at first: an active pipeline is among them."""


class OutgoingMessage(msgspec.Struct, frozen=True, array_like=True):
    """A record as Kafka has it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class CheckpointState(msgspec.Struct, array_like=True):
    """The record of one transactional id in the checkpoint topic: who may write, and what was committed or applied."""

    fence: int = 0
    changes: bytes | None = None
    applied_fence: int = 0
    applied: int = 0
    version: int = 1


_Sent = TypeVar("_Sent")


class Transactions:
    """Writes records and the state of `id` in one transaction of Kafka, so that both are there or neither is.

    Invariant: the state in memory is the last one committed. `claim` establishes it: `init_transactions` fences every
    older producer of this id and ends its transaction, and only then the last committed state is read.
    """

    def __init__(self, options: KafkaOptions, topic: str, id: str, settings: dict[str, Any]) -> None:
        self.errors = ClientErrors(options)
        self._options = options
        self._topic = topic
        self._id = id
        self._settings = settings
        self._state = CheckpointState()
        self._producer: Producer | None = None
        self._under_way = False

    def claim(self, fence: int) -> bytes | None:
        """Fence older producers of this id and return the changes of the last commit. Raises Fenced."""
        # Before `init_transactions`, which would fence the newer run: a late start of an older one must not stop it.
        self._check_fence(self._read_state(0), fence)
        self.start()
        self._check_fence(self._state, fence)
        self._finish(msgspec.structs.replace(self._state, fence=fence))
        return self._state.changes

    def start(self) -> bool:
        """Become the only producer of this id, and read its state; False if it never committed one."""
        settings = {**self._options.settings(), **self.errors.settings(), **self._settings}
        settings |= {"transactional.id": self._id, "on_delivery": self.errors.note_delivery}
        self._producer = make_client(Producer, settings)
        self._call(f"starting transactions as {self._id}", lambda: self.producer.init_transactions(ANSWER_SECONDS))
        found = self._read_state(self._end())
        self._state = found or CheckpointState()
        return found is not None

    @property
    def producer(self) -> Producer:
        assert self._producer is not None, "started"
        return self._producer

    def begin(self) -> None:
        """Begin a transaction, unless one is under way."""
        if not self._under_way:
            self._call("beginning a transaction", self.producer.begin_transaction)
            self._under_way = True

    def write(self, send: Callable[[Producer], _Sent]) -> _Sent:
        """Let `send` give messages to the producer, within a transaction. Raises Fenced."""
        self.begin()
        with self._fencing("writing"):
            return send(self.producer)

    def commit(self, changes: bytes) -> None:
        """Commit what was produced since `begin` together with `changes`. Raises Fenced."""
        self._finish(msgspec.structs.replace(self._state, changes=changes))

    def apply(self, fence: int, number: int, messages: Iterable[OutgoingMessage]) -> None:
        """Write the messages of a stage, with the note that they are written; nothing if it was applied before."""
        if (fence, number) <= (self._state.applied_fence, self._state.applied):
            return
        self.write(lambda producer: produce_all(producer, messages))
        self._finish(msgspec.structs.replace(self._state, applied_fence=fence, applied=number))

    def close(self) -> None:
        """End an open transaction now: its records hold back every reader of committed records."""
        if self._producer is not None and self._under_way:
            try:
                self._producer.purge()
                self._producer.abort_transaction(5.0)
            except KafkaException:
                # The broker aborts it, after its time or when the next run claims.
                pass
        self._producer = None

    def _finish(self, state: CheckpointState) -> None:
        message = OutgoingMessage(self._topic, self._id.encode(), msgspec.msgpack.encode(state), [])
        self.write(lambda producer: produce(producer, message))
        self._call("committing", lambda: self.producer.commit_transaction(5.0))
        self._under_way = False
        self._state = state

    def _call(self, doing: str, call: Callable[[], object]) -> None:
        """Make a call of the transactional producer, again while it may be repeated."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                call()
                return
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() in _FENCED or error.fatal():
                    raise self._explain_fencing(doing, error) from raised
                self.errors.raise_if_refused(doing)
                if not error.retriable() or time.monotonic() > deadline:
                    # If it was committed all the same, the next claim reads that.
                    raise self.errors.translate(error, doing) from raised

    @contextmanager
    def _fencing(self, doing: str) -> Iterator[None]:
        """Explain an error of a call that cannot be made again."""
        try:
            yield
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in _FENCED or error.fatal():
                raise self._explain_fencing(doing, error) from raised
            raise self.errors.translate(error, doing) from raised

    def _explain_fencing(self, doing: str, error: KafkaError) -> FatalError | TransientError:
        refusal = self.errors.translate(error, doing)
        if isinstance(refusal, FatalError):
            # A user without a right ends the producer, too.
            return refusal
        state = self._read_state(0)
        if state is None or state.fence <= self._state.fence:
            # The broker fences a transaction that took too long, too.
            return TransientError(
                f"Kafka ended the transactions of {self._id!r} while {doing}: {error.str()}",
                suggestion="if it happens again, give `transaction_seconds` a larger value",
            )
        return self._newer_run(self._state.fence)

    def _check_fence(self, state: CheckpointState | None, fence: int) -> None:
        if state is not None and state.fence > fence:
            raise self._newer_run(fence)

    def _newer_run(self, fence: int) -> Fenced:
        return Fenced(
            f"topic {self._topic} has a newer run of {self._id!r} than this one, which has fence {fence}: "
            "another process runs it, or the state directory is not the one that was used before",
            suggestion="run a pipeline in one place at a time, always with the same state directory",
        )

    def _end(self) -> int:
        """The end of the checkpoint topic, of committed and uncommitted records."""
        with _CheckpointReader(self._options, self.errors, "read_uncommitted") as reader:
            return self._watermarks(reader)[1]

    def _watermarks(self, reader: Any) -> tuple[int, int]:
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                low, high = reader.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=ANSWER_SECONDS)
                return low, high
            except KafkaException as error:
                # Not every broker has a topic that was created a moment ago.
                if error.args[0].code() not in _NOT_KNOWN or time.monotonic() > until:
                    raise self.errors.translate(error.args[0], f"reading topic {self._topic}") from error
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _read_state(self, end: int) -> CheckpointState | None:
        """The last committed state of this id, after every record before `end` is committed or aborted."""
        with _CheckpointReader(self._options, self.errors, "read_committed") as reader:
            low, high = self._watermarks(reader)
            distance = _NEAR
            while True:
                start = max(low, high - distance)
                value = self._scan(reader, start, end)
                if value is not None:
                    return msgspec.msgpack.decode(value, type=CheckpointState)
                if start == low:
                    return None
                distance *= 32

    def _scan(self, reader: Any, start: int, end: int) -> bytes | None:
        reader.assign([TopicPartition(self._topic, 0, start)])
        found, deadline = None, time.monotonic() + _COMMIT_SECONDS + ANSWER_SECONDS
        while time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                if message.key() == self._id.encode():
                    found = message.value()
            elif message.error().code() != KafkaError._PARTITION_EOF:
                if self.errors.concerns(message.error()):
                    raise self.errors.translate(message.error(), f"reading topic {self._topic}")
            # An open transaction of another pipeline may hide a later state of ours: the end is not the end yet.
            elif message.offset() >= end:
                return found
        raise TransientError(
            f"topic {self._topic} could not be read to its end: a transaction of another pipeline is open in it",
            suggestion="wait until the broker aborts that transaction, after its `transaction_seconds`",
        )


class _CheckpointReader:
    """A consumer that reads the checkpoint topic and is closed at the end."""

    def __init__(self, options: KafkaOptions, errors: ClientErrors, isolation: str) -> None:
        settings = {"group.id": "conduit-py-checkpoint", "enable.auto.commit": False, "enable.partition.eof": True}
        settings |= {"auto.offset.reset": "earliest", "isolation.level": isolation}
        # The end is found by a request that the broker answers when there is more, or after this time.
        settings["fetch.wait.max.ms"] = 10
        self._consumer = make_client(Consumer, {**options.settings(), **errors.settings(), **settings})

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *raised: object) -> None:
        self._consumer.close()


def create_checkpoint_topic(admin: AdminClient, errors: ClientErrors, topic: str) -> None:
    """Create the topic, if there is none, so that Kafka keeps the last state of each id for ever."""
    config = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024), "min.cleanable.dirty.ratio": "0.1"}
    config["max.message.bytes"] = str(_STATE_MAX)
    known = ask(errors, "looking for topics", lambda: admin.list_topics(timeout=ANSWER_SECONDS)).topics
    if topic in known:
        _check_checkpoint_topic(admin, errors, topic, len(known[topic].partitions))
        return
    [created] = admin.create_topics([NewTopic(topic, 1, -1, config=config)]).values()
    try:
        created.result(ANSWER_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise errors.translate(error.args[0], f"creating topic {topic}") from error


def _check_checkpoint_topic(admin: AdminClient, errors: ClientErrors, topic: str, partitions: int) -> None:
    """Raise FatalError for a topic that somebody else made, where the state would not be found again."""
    advice = "name another topic in `checkpoint_topic`, which is then created as it must be"
    # A topic that was created a moment ago may have none yet.
    if partitions > 1:
        raise FatalError(f"topic {topic} has {partitions} partitions, and `checkpoint_topic` one", suggestion=advice)
    config = describe_topics(admin, errors, [topic])[topic]
    if config is not None and (policy := config["cleanup.policy"]) != "compact":
        raise FatalError(
            f"topic {topic} has cleanup.policy={policy}, so Kafka would delete the progress of pipelines",
            suggestion=f"set its cleanup.policy to compact, or {advice}",
        )


def produce_all(producer: Producer, messages: Iterable[OutgoingMessage]) -> None:
    for message in messages:
        produce(producer, message)


def produce(producer: Producer, message: OutgoingMessage) -> None:
    """Give a message to the producer; waits while its queue is full, which is how a slow broker holds us back."""
    while True:
        try:
            if message.headers:
                producer.produce(message.topic, message.value, message.key, headers=message.headers)  # type: ignore[arg-type]
            else:
                producer.produce(message.topic, message.value, message.key)
            return
        except BufferError:
            producer.poll(0.1)


def produce_plain(producer: Producer, topic: str, messages: Iterable[tuple[bytes, bytes | None]]) -> None:
    """`produce` for values and keys of one topic, without a call of ours for each."""
    send = producer.produce
    for value, key in messages:
        try:
            send(topic, value, key)
        except BufferError:
            produce(producer, OutgoingMessage(topic, key, value, []))
