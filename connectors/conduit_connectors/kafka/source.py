"""The Kafka source: the messages of topics, by consumer group or from given partitions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, Unpack

import trio
from confluent_kafka import Message
from confluent_kafka.admin._acl import AclOperation

from conduit_connectors.kafka.connection import (
    ClientErrors,
    FoundTopic,
    ask,
    connect_admin,
    find_topics,
    topic_datasets,
)
from conduit_connectors.kafka.message import find_nameless, make_metadata, parse_values
from conduit_connectors.kafka.partition_name import GENERATION, StoredPosition, TakenMessages, name_ids
from conduit_connectors.kafka.partition_ranges import PartitionRange, PartitionRanges, RangeReader
from conduit_connectors.kafka.partition_reader import PartitionReader
from conduit_connectors.kafka.source_options import SourceArguments, SourceOptions
from conduit_connectors.kafka.topic_watch import TopicWatch, require_same
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
)

ReaderT = TypeVar("ReaderT", bound=PartitionReader)
_WAIT_SECONDS = 1.0
_MEASURED = 100
"""How many messages tell how large messages are."""
_MEASURE_SECONDS, _LOOK_SECONDS, _MESSAGE_SIZE = 60.0, 0.05, 256
"""How long they are waited for, and what a message counts if none came: parts of any size would be worse."""
_RANGE_QUEUE_KIB = 16 * 1024
"""What the library may read ahead of a range, which ends soon."""


class Source(sdk.SplittableSource[SourceOptions]):
    """Messages of topics, in order for each partition. The position has the next offset of each, and ids of topics.

    At-least-once on its own, and as a member of a group; else exactly-once with a destination that can. It resumes
    from its own position. A group's offsets are committed from acks only. They are where it begins without a
    position, and where it goes on with a partition that another member read on. Before a partition goes to another
    member, everything read of it is handled and committed. Only a member that the group has given up, or that needs
    longer than `revoke_seconds`, leaves records to be read again. Its run starts again.

    The key and the value are raw bytes. A message without a value is a delete. Headers are in the metadata as
    `kafka.header.NAME`; headers that are no text, or repeated, are in `kafka.headers` as JSON with base64. An offset
    that the topic no longer has is an error, and so is a topic that was created again, found by its id: nothing is
    skipped. To set a group back, set back its offsets too.

    On Spark executors read ranges of partitions up to the ends at the start, with `tail=False` and without a group.
    """

    requires: ClassVar = {"confluent_kafka": "conduit-dataflow[kafka]"}
    repeatable_hint: ClassVar[str] = "let it read a single partition: one topic, and one number in `partitions`"
    _reader: PartitionReader | None = None
    _watch: TopicWatch | None = None
    _ranges: PartitionRanges | None = None
    _before: Mapping[str, int] = {}
    """On an executor: the offsets of all partitions before the range that it reads."""

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def endless(self) -> bool:
        return self.options.tail

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return len(self.options.topics) == len(self.options.partitions or []) == 1

    @property
    def order(self) -> sdk.KeptOrder:
        return sdk.KeptOrder.EVERYTHING if self.repeatable else sdk.KeptOrder.PARTITION

    @property
    def others_may_repeat(self) -> bool:  # type: ignore[override]
        # The offsets of a group are committed after our transaction, and another member starts from them.
        return self.options.is_member

    @property
    def gives(self) -> Any:
        return (bytes if self.options.format == "bytes" else dict) | None

    def datasets(self) -> Sequence[sdk.Dataset]:
        return topic_datasets(self.options.servers, self.options.topics)

    def probe(self) -> str:
        errors = ClientErrors(self.options, self.options.group)
        admin = connect_admin(self.options, errors)
        topics = find_topics(admin, errors, self.options.topics, AclOperation.READ)
        return f"{len(self._choose_partitions(topics))} partitions"

    def open(self, position: bytes | None) -> None:
        options = self.options
        placed = StoredPosition({}, {}) if position is None else StoredPosition.decode(position)
        errors = ClientErrors(options, options.group)
        admin = connect_admin(options, errors)
        topics = find_topics(admin, errors, options.topics, AclOperation.READ)
        known = self._choose_partitions(topics)
        for name, topic in topics.items():
            require_same(name, placed.topic_ids.get(name), topic.topic_id)
        self._watch = TopicWatch(admin, topics)
        self._ids = name_ids(self._watch.ids)
        self._seen: dict[str, int] | None = None
        self._reader = self._make_reader(PartitionReader, errors, placed.offsets)
        if options.is_member:
            self._reader.subscribe(options.topics)
        else:
            watched = options.topics if options.partitions is None else ()
            ask(errors, "reading", lambda: self._opened.assign(known, to_end=not options.tail, watched=watched))
            self._seen = self._reader.position()

    def reads_alone(self) -> str | None:
        if self.options.group is not None:
            return "who reads for a group commits its offsets"
        if self.options.tail:
            return "it waits for more at the end: with tail=False it is divided into ranges of partitions"
        return None

    @property
    def acks_last(self) -> bool:
        return True

    async def split(self, size: int) -> bytes:
        if self._ranges is None:
            reader = self._opened
            position, ends = reader.position(), reader.ends()
            sizes: list[int] = []
            # A busy broker may need some time for the first messages.
            with trio.move_on_after(_MEASURE_SECONDS):
                while not sizes and (taken := reader.take(_MEASURED)) is not None:
                    sizes = [len(message) for message in taken.messages]
                    await trio.sleep(0 if sizes else _LOOK_SECONDS)
            size_of_one = sum(sizes) // len(sizes) if sizes else _MESSAGE_SIZE
            self._ranges = PartitionRanges(position, ends, self._watch.ids if self._watch else {}, size_of_one)
            # Executors read from here on.
            self._reader = None
            await trio.to_thread.run_sync(reader.close)
        return self._ranges.next(size).encode()

    def open_part(self, part: bytes) -> None:
        found = PartitionRange.decode(part)
        errors = ClientErrors(self.options, None)
        topic = found.partition.rpartition(":")[0]
        known = find_topics(connect_admin(self.options, errors), errors, [topic], AclOperation.READ)
        require_same(topic, found.topic_ids.get(topic), known[topic].topic_id)
        self._ids, self._seen, self._before = name_ids(found.topic_ids), dict(found.position), found.position
        start = {found.partition: found.position[found.partition]}
        reader = self._make_reader(RangeReader, errors, start)
        self._reader = reader
        ask(errors, "reading", lambda: reader.read_range(found))

    def _make_reader(self, kind: type[ReaderT], errors: ClientErrors, position: Mapping[str, int]) -> ReaderT:
        options = self.options
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
        ahead = {"queued.max.messages.kbytes": _RANGE_QUEUE_KIB} if kind is RangeReader else {}
        return kind({**ahead, **options.settings(), **errors.settings(), **settings}, errors, options, position)

    def start_position(self) -> bytes | None:
        # In a group the partitions are not known yet: a reading without records has the start of each.
        return None if self._seen is None else PositionMap.encode({**self._ids, **self._seen})

    def check_position(self, position: bytes) -> None:
        StoredPosition.decode(position)

    def locate_record(self, position: bytes) -> str | None:
        offsets = StoredPosition.decode(position).offsets
        places = [f"{name} offset {offset - 1}" for name, offset in offsets.items() if name != GENERATION]
        return "Kafka, " + ", ".join(places[:20]) if len(places) == 1 else "Kafka, up to " + ", ".join(places[:20])

    async def read(self, n: int) -> Payloads | Reading:
        # In the event loop: a thread for each read would cost as much as some hundred messages.
        reader = self._opened
        while (taken := reader.take(n)) is not None:
            if self._watch is not None:
                self._watch.look()
            if taken.messages:
                self._seen = {**taken.position, **{partition: offsets[-1] for partition, offsets in taken.runs}}
                return self._make_reading(taken)
            if taken.position != self._seen and taken.position and not self._before:
                # Partitions came or went. Durable, so that a restart begins where this run began in them.
                self._seen = taken.position
                return Reading([], position=PositionMap.encode({**self._ids, **taken.position}))
            # Not for ever: partitions may have changed since they were looked at.
            await reader.wait(_WAIT_SECONDS)
        raise EndOfSource

    async def ack(self, positions: Sequence[bytes]) -> None:
        # Nobody needs them where executors read: that is without a group.
        if self._reader is not None:
            self._reader.ack(StoredPosition.decode(positions[-1]).offsets)

    def lag(self) -> Lag | None:
        if self._reader is None:
            return None
        unread = self._reader.unread()
        return Lag(records=sum(unread.values()), partitions=unread)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def teardown(self) -> None:
        self._watch = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def _opened(self) -> PartitionReader:
        assert self._reader is not None, "opened"
        return self._reader

    def _choose_partitions(self, topics: Mapping[str, FoundTopic]) -> list[str]:
        """The partitions to read, or to share with a group. Raises FatalError for one that is not there."""
        chosen = []
        for name, topic in topics.items():
            wanted = sorted(topic.partitions) if self.options.partitions is None else self.options.partitions
            missing = [number for number in wanted if number not in topic.partitions]
            if not topic.partitions or missing:
                what = (
                    f"topic {name} has no partition {missing[0]}" if topic.partitions else f"Kafka has no topic {name}"
                )
                raise FatalError(what, suggestion="create it, or check `topics` and `partitions`")
            chosen += [f"{name}:{number}" for number in wanted]
        return chosen

    def _make_reading(self, taken: TakenMessages) -> Payloads | Reading:
        messages = taken.messages
        # Calls of the client library for each message, none of ours: a hand-written loop makes the same ones.
        values: list[Any] = list(map(Message.value, messages))
        # Empty values are rare, and the first look is the cheaper one.
        deleted = not all(values) and None in values
        columns = Columns(keys=list(map(Message.key, messages)), metadata=LazyColumn(messages, make_metadata))
        if deleted:
            columns.operations = [Operation.DELETE if value is None else Operation.CREATE for value in values]
        refused = find_nameless(messages)
        if refused:
            # Their headers must not be looked at again.
            columns.metadata = [
                make_metadata(message, has_headers=index not in refused) for index, message in enumerate(messages)
            ]
        if self.options.format == "json":
            values, unfit = parse_values(values)
            refused = unfit | refused
        kind = None if deleted or refused else bytes if self.options.format == "bytes" else dict
        positions = MapPositions({**self._ids, **self._before, **taken.position}, taken.runs)
        records = Payloads(values, positions, kind, columns)
        return Reading(records, refused) if refused else records
