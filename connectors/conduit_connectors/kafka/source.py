"""The Kafka source: the messages of topics, by consumer group or from given partitions."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Required, Self, Unpack

from confluent_kafka import Message
from confluent_kafka.admin._acl import AclOperation
from pydantic import Field, field_validator, model_validator

from conduit_connectors.kafka.connection import (
    TOPIC_NAME,
    ClientErrors,
    KafkaArguments,
    KafkaOptions,
    ask,
    connect_admin,
    find_topics,
)
from conduit_connectors.kafka.message import make_metadata
from conduit_connectors.kafka.partition_name import GENERATION, TakenMessages
from conduit_connectors.kafka.partition_reader import PartitionReader
from conduit_py import sdk
from conduit_py.sdk import (
    Columns,
    EndOfSource,
    FatalError,
    Lag,
    LazyColumn,
    MapPositions,
    Operation,
    Payloads,
    PositionMap,
    Reading,
    RecordRefused,
    decode_json,
)

_WAIT_SECONDS = 1.0


class SourceOptions(KafkaOptions):
    """Options of the Kafka source."""

    topics: list[str] = Field(min_length=1, description="the topics to read, which must exist")
    group: str | None = Field(
        default=None, min_length=1, description="share the partitions with all members of this group; None: read all"
    )
    member: str | None = Field(
        default=None, min_length=1, description="a name that keeps the member's partitions over a restart, in a group"
    )
    partitions: list[int] | None = Field(
        default=None, min_length=1, description="read just these partitions of each topic, whatever a group does"
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="where to begin in a partition without a position"
    )
    tail: bool = Field(default=True, description="wait for more at the end; False, without a group: end there")
    format: Literal["bytes", "json"] = Field(
        default="bytes", description='"bytes": the value as it is. "json": an object; what is none is a dead letter'
    )
    read_committed: bool = Field(default=True, description="leave out what transactions aborted or have not committed")
    revoke_seconds: float = Field(
        default=30.0, gt=0, description="how long to handle what was read of partitions that another member is given"
    )

    reserved: ClassVar[frozenset[str]] = frozenset(
        {
            "group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy", "isolation.level",
            "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset",
            "enable.partition.eof", "allow.auto.create.topics",
        }
    )  # fmt: skip

    @field_validator("topics")
    @classmethod
    def _names(cls, topics: list[str]) -> list[str]:
        for name in topics:
            # librdkafka would take a name that begins with ^ as a pattern.
            if not TOPIC_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")
        return topics

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.tail and self.is_member:
            raise ValueError("tail=False needs `partitions`, or no `group`: the partitions of a member may change")
        if self.member is not None and not self.is_member:
            raise ValueError("`member` is for a `group` without `partitions`")
        return self

    @property
    def is_member(self) -> bool:
        return self.group is not None and self.partitions is None


class SourceArguments(KafkaArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    servers: Required[str]
    topics: Required[Sequence[str]]
    group: str | None
    member: str | None
    partitions: Sequence[int] | None
    start: Literal["earliest", "latest"]
    tail: bool
    format: Literal["bytes", "json"]
    read_committed: bool
    revoke_seconds: float


class Source(sdk.SourceConnector[SourceOptions]):
    """Messages of topics, in order for each partition. The position has the next offset of each partition.

    At-least-once on its own, and as a member of a group; else exactly-once with a destination that can. It resumes
    from its own position. A group's offsets are committed from acks only. They are where it begins without a
    position, and where it goes on with a partition that another member read on. Before a partition goes to another
    member, everything read of it is handled and committed. Only a member that the group has given up, or that needs
    longer than `revoke_seconds`, leaves records to be read again, and its run starts again.

    The key and the value are raw bytes. A message without a value is a delete. Headers are in the metadata as
    `kafka.header.NAME`; headers that are no text, or repeated, are in `kafka.headers` as JSON with base64. An offset
    that the topic no longer has is an error: nothing is skipped. To set a group back, set back its offsets too.
    """

    requires: ClassVar = {"confluent_kafka": "conduit-dataflow[kafka]"}
    _reader: PartitionReader | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def endless(self) -> bool:
        return self.options.tail

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        # Kafka has an order within a partition only.
        return len(self.options.topics) == len(self.options.partitions or []) == 1

    @property
    def others_may_repeat(self) -> bool:  # type: ignore[override]
        # The offsets of a group are committed after our transaction, and another member starts from them.
        return self.options.is_member

    @property
    def gives(self) -> Any:
        return (bytes if self.options.format == "bytes" else dict) | None

    def probe(self) -> str:
        return f"{len(self._find_partitions(ClientErrors(self.options, self.options.group)))} partitions"

    def open(self, position: bytes | None) -> None:
        options = self.options
        placed = {} if position is None else _decode(position)
        errors = ClientErrors(options, options.group)
        known = self._find_partitions(errors)
        settings = {
            # The library wants one, also if it is not used.
            "group.id": options.group or "conduit-py",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # An offset that is gone is an error, not a reason to go on somewhere else.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.partition.eof": not options.tail,
        }
        if options.member is not None:
            settings["group.instance.id"] = options.member
        self._seen: dict[str, int] | None = None
        self._reader = PartitionReader(
            {**options.settings(), **errors.settings(), **settings}, errors, position=placed, start=options.start,
            group=options.group is not None, revoke_seconds=options.revoke_seconds,
        )  # fmt: skip
        if options.is_member:
            self._reader.subscribe(options.topics)
        else:
            watched = options.topics if options.partitions is None else ()
            ask(errors, "reading", lambda: self._opened.assign(known, to_end=not options.tail, watched=watched))
            self._seen = self._reader.position()

    def start_position(self) -> bytes | None:
        # In a group the partitions are not known yet: a reading without records has the start of each.
        return None if self._seen is None else PositionMap.encode(self._seen)

    def check_position(self, position: bytes) -> None:
        _decode(position)

    def locate_record(self, position: bytes) -> str | None:
        places = [f"{name} offset {offset - 1}" for name, offset in _decode(position).items() if name != GENERATION]
        return "Kafka, " + ", ".join(places[:20]) if len(places) == 1 else "Kafka, up to " + ", ".join(places[:20])

    async def read(self, n: int) -> Payloads | Reading:
        # In the event loop: a thread for each read would cost as much as some hundred messages.
        reader = self._opened
        while (taken := reader.take(n)) is not None:
            if taken.messages:
                self._seen = {**taken.position, **{partition: offsets[-1] for partition, offsets in taken.runs}}
                return self._make_reading(taken)
            if taken.position != self._seen and taken.position:
                # Partitions came or went. Durable, so that a restart begins where this run began in them.
                self._seen = taken.position
                return Reading([], position=PositionMap.encode(taken.position))
            # Not for ever: partitions may have changed since they were looked at.
            await reader.wait(_WAIT_SECONDS)
        raise EndOfSource

    async def ack(self, positions: Sequence[bytes]) -> None:
        self._opened.ack(_decode(positions[-1]))

    def lag(self) -> Lag | None:
        if self._reader is None:
            return None
        unread = self._reader.unread()
        return Lag(records=sum(unread.values()), partitions=unread)

    def stop(self) -> None:
        self._opened.stop()

    def teardown(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def _opened(self) -> PartitionReader:
        assert self._reader is not None, "opened"
        return self._reader

    def _find_partitions(self, errors: ClientErrors) -> list[str]:
        options = self.options
        found = []
        for topic, there in find_topics(
            connect_admin(options, errors), errors, options.topics, AclOperation.READ
        ).items():
            wanted = sorted(there) if options.partitions is None else options.partitions
            missing = [number for number in wanted if number not in there]
            if not there or missing:
                what = f"Kafka has no topic {topic}" if not there else f"topic {topic} has no partition {missing[0]}"
                raise FatalError(what, suggestion="create it, or check `topics` and `partitions`")
            found += [f"{topic}:{number}" for number in wanted]
        return found

    def _make_reading(self, taken: TakenMessages) -> Payloads | Reading:
        messages = taken.messages
        # Calls of the client library for each message, none of ours: a hand-written loop makes the same ones.
        values: list[Any] = list(map(Message.value, messages))
        # Empty values are rare, and the first look is the cheaper one.
        deleted = not all(values) and None in values
        columns = Columns(keys=list(map(Message.key, messages)), metadata=LazyColumn(messages, make_metadata))
        if deleted:
            columns.operations = [Operation.DELETE if value is None else Operation.CREATE for value in values]
        refused = _find_nameless(messages)
        if refused:
            # Their headers must not be looked at again.
            columns.metadata = [
                make_metadata(message, has_headers=index not in refused) for index, message in enumerate(messages)
            ]
        if self.options.format == "json":
            values, unfit = _parse_values(values)
            refused = unfit | refused
        kind = None if deleted or refused else bytes if self.options.format == "bytes" else dict
        records = Payloads(values, MapPositions(taken.position, taken.runs), kind, columns)
        return Reading(records, refused) if refused else records


def _decode(position: bytes) -> dict[str, int]:
    offsets = PositionMap.decode(position)
    for name, offset in offsets.items():
        topic, _, number = name.rpartition(":")
        if not isinstance(offset, int) or (name != GENERATION and not (topic and number.isdecimal())):
            raise FatalError(
                f"the stored position has {name!r}, which is no partition of Kafka with its offset",
                suggestion='a position is a JSON object such as {"orders:0": 17}, the offset to read next',
            )
    return offsets  # type: ignore[return-value]


def _find_nameless(messages: Sequence[Message]) -> dict[int, str]:
    """The messages whose headers cannot be read, and why. Those of all others can be read from now on.

    For a name that is not UTF-8 the client library returns a list that must not be looked at, and leaves an error
    behind. A call in C looks for that error. A plain `message.headers()` does not once Python has optimised it, and the
    process would die. The second call for the same message has no error.
    """
    refused: dict[int, str] = {}
    found: list[object] = []
    calls = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(calls)
        except SystemError:
            refused[len(found)] = "has a header whose name is not UTF-8"
            found.append(None)
    return refused


def _parse_values(values: Sequence[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    """Objects, and why some of the values are none; those stay bytes."""
    parsed: list[Any] = []
    refused: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            parsed.append(None if value is None else _parse_object(value))
        except RecordRefused as error:
            parsed.append(value)
            refused[index] = error.message
    return parsed, refused


def _parse_object(value: bytes) -> dict[str, Any]:
    parsed = decode_json(value)
    if not isinstance(parsed, dict):
        raise RecordRefused("is JSON, but no object")
    return parsed
