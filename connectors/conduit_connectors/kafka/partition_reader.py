"""PartitionReader: a consumer in a thread of its own, which stays in its group however slow the pipeline is."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conduit_connectors.kafka.connection import ANSWER_SECONDS, ClientErrors, make_client
from conduit_connectors.kafka.group_offsets import GroupOffsets, given_away
from conduit_connectors.kafka.partition_name import (
    GENERATION,
    TakenMessages,
    find_runs,
    name_of,
    name_partition,
    offset_of,
    parse_partition,
)
from conduit_connectors.kafka.source_options import SourceOptions
from conduit_connectors.kafka.task_wake import TaskWake
from conduit_py.sdk import FatalError

BUFFER_MAX = 4000
"""Messages that wait to be read. With more, the consumer waits until half of them are taken, and pauses partitions."""
BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""The same for the bytes of their values: 4000 messages of a megabyte would be all the memory there is."""
_TAKE_MAX = 2000
_PAUSE_AFTER_SECONDS = 1.0
_TICK_SECONDS = 0.5
_LOOK_SECONDS = 5.0
"""How often to look for new partitions of topics that are read as a whole, without a group."""
_LOOK_MAX_SECONDS = 2.0


class PartitionReader:
    """Polls without a pause, so that rebalances are served and the group never waits for a slow pipeline.

    A partition is named `topic:number`; a position has the offset to read next of each. Invariant: a partition that is
    given away has nothing in flight. What was read of it is acked and committed to the group first, or the run
    fails: the new owner begins at the group's offset, and a record handled by both would be handled twice.
    """

    def __init__(
        self, settings: Mapping[str, Any], errors: ClientErrors, options: SourceOptions, position: Mapping[str, int]
    ) -> None:
        self._errors = errors
        self._consumer = make_client(Consumer, dict(settings))
        self._position = dict(position)
        self._start = options.start
        self._subscribed = False
        self._revoke_seconds = options.revoke_seconds
        self._changed = threading.Condition()
        self._group = GroupOffsets(self._consumer, self._changed, used=options.group is not None)
        self._ready: list[Message] = []
        self._ready_bytes = 0
        self._next_offsets: dict[str, int] = {}
        """The offset to read next of each partition that is ours."""
        # How often partitions went away. Without it a position could be that of an earlier record.
        self._generation = self._position.pop(GENERATION, 0)
        self._gone: set[str] = set()  # in the last call of the consumer
        self._wake = TaskWake()
        self._ends: dict[str, int] | None = None
        """Where to stop, if it is not for ever, of partitions that the consumer has not read so far."""
        self._all_ends: dict[str, int] = {}
        self._ticked_at = 0.0
        self._watched: Sequence[str] = ()
        """The topics of which every partition is read."""
        self._looked_at = time.monotonic()
        self._known_ends: dict[str, int] = {}
        self._error: Exception | None = None
        self._stopping = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="conduit-kafka", daemon=True)

    def assign(self, partitions: Sequence[str], *, to_end: bool, watched: Sequence[str] = ()) -> None:
        """Read these partitions, whatever others do; with `to_end` until what they have now is read.

        They are all partitions of the `watched` topics. Those that are added later are read too, from their beginning.
        """
        self._watched = watched
        if to_end:
            self._all_ends = {partition: self._watermarks(partition)[1] for partition in partitions}
            self._ends = dict(self._all_ends)
        self._consumer.assign(self._place(partitions))
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read the partitions that the group gives to this member."""
        self._subscribed = True
        self._consumer.subscribe(
            list(topics), on_assign=self._take_over, on_revoke=self._give_away, on_lost=self._drop_lost
        )
        self._thread.start()

    def position(self) -> dict[str, int]:
        """Where reading continues after all that was taken."""
        with self._changed:
            return self._make_position()

    def ends(self) -> dict[str, int]:
        """Where each partition ends that has more to take, if it is read to its end."""
        with self._changed:
            # Not `_ends`: the consumer may have read to the end of a partition of which nothing was taken.
            return {each: end for each, end in self._all_ends.items() if self._next_offsets[each] < end}

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to take, or the partitions change, or so many seconds are over."""
        with self._changed:
            if self._has_news():
                return
            came = self._wake.begin()
        with trio.move_on_after(seconds):
            await came.wait()

    def take(self, n: int) -> TakenMessages | None:
        """At most `n` of the messages that are there. None: there will be no more. It never waits for the brokers."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if not self._ready and (self._stopping or self._is_at_end()):
                return None
            position = self._make_position()
            messages = self._ready[:n]
            del self._ready[:n]
            self._ready_bytes -= sum(map(len, messages))
            runs = find_runs(messages, alike=len(self._next_offsets) == 1) if messages else []
            self._next_offsets |= {partition: offsets[-1] for partition, offsets in runs}
            if self._ends is not None:
                self._ends = {each: end for each, end in self._ends.items() if self._next_offsets[each] < end}
            if self._has_room():
                # Not for every take: to wake a thread costs as much as some hundred messages.
                self._changed.notify_all()
            return TakenMessages(position, messages, runs)

    def ack(self, position: Mapping[str, int]) -> None:
        """Everything before these offsets is durably handled."""
        with self._changed:
            self._group.ack(position)
            self._changed.notify_all()

    def unread(self) -> dict[str, int]:
        """How many offsets lie between what was taken of each partition and its end, as of a moment ago."""
        with self._changed:
            ends = self._known_ends
            return {name: max(0, ends.get(name, 0) - offset) for name, offset in self._next_offsets.items()}

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._notify()

    def close(self) -> None:
        """Commit what is acked and leave the group."""
        self._closing = True
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()
        # It polls meanwhile. In `Consumer.close` a member takes no part in the placing of members: there a commit would
        # be refused until the group has given the member up, and the others would wait so long.
        self._group.commit_until_taken(self._revoke_seconds, self._consumer.poll)
        self._consumer.close()

    def _keep(self, messages: list[Message]) -> None:
        """Only these wait to be read."""
        self._ready, self._ready_bytes = messages, sum(map(len, messages))

    def _make_position(self) -> dict[str, int]:
        generation = {GENERATION: self._generation} if self._generation else {}
        return {**self._next_offsets, **generation}

    def _notify(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.notify_all()
        self._wake.end()

    def _has_news(self) -> bool:
        return bool(self._ready or self._error or self._stopping) or self._is_at_end()

    def _is_at_end(self) -> bool:
        return self._ends is not None and not self._ends

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait_for_room()
                self._tick()
                message = self._consumer.poll(0.1)
                if message is not None:
                    self._gone.clear()
                    more = self._consumer.consume(_TAKE_MAX, 0)
                    # Its partition may have gone away in that call, and the next owner reads it.
                    self._add(more if name_of(message) in self._gone else [message, *more])
        except Exception as error:
            self._fail(error)

    def _tick(self) -> None:
        """Commit and measure now and then. Here, because a commit of another thread waits for a poll to end."""
        if time.monotonic() - self._ticked_at < _TICK_SECONDS:
            return
        self._ticked_at = time.monotonic()
        self._errors.raise_if_refused("reading")
        self._group.commit(asynchronous=True)
        if self._watched and self._ends is None and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._add_new_partitions()
        for each in self._consumer.assignment():
            _, high = self._consumer.get_watermark_offsets(each, cached=True)
            self._known_ends[name_partition(each.topic, each.partition)] = high

    def _add_new_partitions(self) -> None:
        self._looked_at = time.monotonic()
        new: list[str] = []
        for topic in self._watched:
            try:
                known = self._consumer.list_topics(topic, timeout=_LOOK_MAX_SECONDS).topics[topic].partitions
            except KafkaException:
                # The brokers are busy or away, which reading finds out by itself. The next look is soon.
                return
            names = (name_partition(topic, number) for number in known)
            new += [name for name in names if name not in self._next_offsets]
        if new:
            self._consumer.incremental_assign(self._place(new))

    def _has_room(self) -> bool:
        return self._stopping or (2 * len(self._ready) <= BUFFER_MAX and 2 * self._ready_bytes <= BUFFER_BYTES_MAX)

    def _wait_for_room(self) -> None:
        with self._changed:
            full = len(self._ready) >= BUFFER_MAX or self._ready_bytes >= BUFFER_BYTES_MAX
            if not full or self._changed.wait_for(self._has_room, _PAUSE_AFTER_SECONDS):
                return
        # Back-pressure. The member keeps polling, or the group would take it for dead.
        self._consumer.pause(self._consumer.assignment())
        while not self._has_room():
            self._tick()
            message = self._consumer.poll(0.1)
            if message is not None:
                self._add([message])
        self._consumer.resume(self._consumer.assignment())

    def _add(self, messages: Sequence[Message]) -> None:
        # Most batches have no error: no call of ours for each message.
        events = [message for message in messages if message.error()] if any(map(Message.error, messages)) else []
        if not messages:
            return
        with self._changed:
            new = [message for message in messages if message not in events] if events else messages
            self._ready += new
            self._ready_bytes += sum(map(len, new))
            for event in events:
                self._note(event)
            self._notify()

    def _note(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        if not self._errors.concerns(error):
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if self._ends is not None and offset_of(message) >= self._ends.get(name_of(message), 0):
                self._ends.pop(name_of(message), None)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise FatalError(
                f"Kafka no longer has the offset to read next: {error.str()}",
                suggestion="records were deleted before they were read; set the position of this source to continue",
            )
        elif error.fatal() or not error.retriable():
            raise self._errors.translate(error, f"reading topic {message.topic()}" if message.topic() else "reading")

    def _place(self, partitions: Sequence[str]) -> list[TopicPartition]:
        """Where to begin in each: after our position, or where the group is, or where the option says."""
        committed = self._group.find(partitions)
        placed = {}
        for partition in partitions:
            ours, of_group = self._position.get(partition), committed.get(partition)
            if ours is not None:
                # Another member may have read on since: what the group committed is handled.
                placed[partition] = max(ours, of_group or 0) if self._subscribed else ours
            elif of_group is not None:
                placed[partition] = of_group
            else:
                first = self._start == "earliest" or self._is_new(partition)
                placed[partition] = self._watermarks(partition)[0 if first else 1]
        with self._changed:
            self._next_offsets |= placed
            self._group.begin(placed)
            self._notify()
        return [parse_partition(partition, offset) for partition, offset in placed.items()]

    def _is_new(self, partition: str) -> bool:
        """True if the partition was added after others of its topic were read: all records in it are new."""
        topic = parse_partition(partition).topic
        read = (*self._position, *self._next_offsets)
        return topic in self._watched and any(parse_partition(each).topic == topic for each in read)

    def _watermarks(self, partition: str) -> tuple[int, int]:
        return self._consumer.get_watermark_offsets(parse_partition(partition), timeout=ANSWER_SECONDS)

    def _take_over(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        names = [name_partition(each.topic, each.partition) for each in partitions]
        try:
            consumer.incremental_assign(self._place(names))
        except KafkaException as error:
            self._fail(error)

    def _give_away(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {name_partition(each.topic, each.partition) for each in partitions}
        with self._changed:
            self._keep([message for message in self._ready if name_of(message) not in gone])
            read = {partition: self._next_offsets[partition] for partition in gone if partition in self._next_offsets}

            def is_acked() -> bool:
                # Not after `stop` alone: a run that ends handles what it has read, and acks it before it closes.
                return self._closing or self._group.has_acked(read)

            handled = self._changed.wait_for(is_acked, self._revoke_seconds)
        # The next owners begin at what is committed.
        committed = self._group.commit_until_taken(self._revoke_seconds, time.sleep)
        self._forget(gone)
        consumer.incremental_unassign(partitions)
        if not handled or not committed:
            self._fail(given_away("another member was given partitions before all that was read of them was handled"))

    def _drop_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {name_partition(each.topic, each.partition) for each in partitions}
        self._forget(gone)
        consumer.incremental_unassign(partitions)
        # What is in flight must not be committed: another member reads it again.
        self._fail(given_away("the group took partitions from this member, which was out of contact for too long"))

    def _forget(self, gone: set[str]) -> None:
        with self._changed:
            self._keep([message for message in self._ready if name_of(message) not in gone])
            self._group.forget(gone)
            self._gone |= gone
            for partition in gone:
                self._next_offsets.pop(partition, None)
                self._position.pop(partition, None)
            self._generation += 1
            self._notify()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, KafkaException):
            error = self._errors.translate(error.args[0], "reading")
        with self._changed:
            self._error = self._error or error
            self._notify()
