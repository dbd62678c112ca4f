"""Queues: messages in journals, tailers that remember where they are, and the metadata that queues add."""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from conduit_py.journal.errors import JournalFailed, WrongOffset
from conduit_py.journal.frame import Frame
from conduit_py.journal.journal import POLL_SECONDS, Journal
from conduit_py.journal.log import FrameBatchReader, SyncPolicy
from conduit_py.steps.step import Message

META = "meta"
"""The reserved key of a message."""
QUEUES = "queues"
TRANSACTION = "transaction"


class QueueMetadata(msgspec.Struct, frozen=True):
    """What a queue adds to the metadata of its messages."""

    index: bool = False
    """The index the message has in this queue."""
    time: bool = False
    """When it was written, in seconds since 1970."""
    transaction: bool = False
    """The index it has in this queue, as a number that every message made from it carries on."""
    strip: bool = False
    """Take all metadata away instead."""


def merge_metadata(messages: Iterable[Message]) -> dict[str, Any]:
    """The metadata of the inputs, merged: what an output starts out with."""
    merged: dict[str, Any] = {}
    for message in messages:
        meta = message.get(META) or {}
        if meta.get(QUEUES):
            merged[QUEUES] = {**merged.get(QUEUES, {}), **meta[QUEUES]}
        if meta.get(TRANSACTION) is not None:
            merged.setdefault(TRANSACTION, meta[TRANSACTION])
    return merged


def at_write(message: Message, keeping: QueueMetadata, now: float) -> tuple[Message, float | None]:
    """The message as it is stored, and the time stored beside it. The index is not known yet."""
    if keeping.strip:
        return {name: value for name, value in message.items() if name != META}, None
    if keeping.transaction and (message.get(META) or {}).get(TRANSACTION) is None:
        # True stands for the index that the message is about to get; `at_read` puts it in place.
        message = {**message, META: {**(message.get(META) or {}), TRANSACTION: True}}
    return message, now if keeping.time else None


def at_read(message: Message, queue: str, index: int, keeping: QueueMetadata, written_at: float | None) -> Message:
    """The message as a reader sees it: with what this queue knows about it."""
    if keeping.strip or not (keeping.index or keeping.time or keeping.transaction):
        return message
    meta = dict(message.get(META) or {})
    own: dict[str, Any] = {}
    if keeping.index:
        own["index"] = index
    if written_at is not None:
        own["time"] = written_at
    if own:
        meta[QUEUES] = {**meta.get(QUEUES, {}), queue: own}
    if meta.get(TRANSACTION) is True:
        meta[TRANSACTION] = index
    return {**message, META: meta}


class IndexTaken(Exception):
    """The index that a message was to have belongs to another one."""


class ReadMessage(msgspec.Struct, frozen=True):
    """A message, its index, and the index from which to read on."""

    index: int
    next: int
    message: Message


class _Envelope(msgspec.Struct, array_like=True):
    """A message as a journal holds it. The key is nobody's business but the step's; no message is a filler."""

    message: dict[str, Any] | None
    key: bytes | None = None
    written_at: float | None = None


class Queue:
    """A durable sequence of messages. Indices grow, not by one, and never change their message."""

    def __init__(self, id: str, journal: Journal, keeping: QueueMetadata | None = None) -> None:
        self.id = id
        self.journal = journal
        self.keeping = keeping or QueueMetadata()
        self.appended = trio.Event()

    async def append(self, message: Message, *, key: bytes | None = None, at: int | None = None) -> int:
        """Add a message and return its index; it is durable as far as the journal's policy makes it.

        With `at`, the next index as `end` gave it, raises IndexTaken when another message has got it.
        """
        stored, written_at = at_write(message, self.keeping, time.time())
        return await self._append(_Envelope(stored, key, written_at), at)

    async def end(self) -> int:
        """The index that the next message will have."""
        return (await self.journal.barrier()).end

    async def use_up(self, index: int) -> None:
        """Make sure that no message will ever be appended at this index, by an append that readers skip."""
        try:
            await self._append(_Envelope(None), index)
        except IndexTaken:
            return

    async def key_at(self, index: int) -> bytes | None:
        """The key of what was appended at this index, None when there is nothing or it has none."""
        frame = await self.journal.call(_first, self.journal, index)
        return _decode(frame).key if frame is not None else None

    async def messages(self) -> list[Message]:
        """Every message that is there now."""
        tailer = Tailer(self)
        found: list[Message] = []
        while (read := await tailer.read()) is not None:
            found.append(read.message)
        return found

    def read_from(self, frame: Frame) -> ReadMessage | None:
        """What a reader sees of a frame: nothing of a filler, and never the key."""
        envelope = _decode(frame)
        if envelope.message is None:
            return None
        message = at_read(envelope.message, self.id, frame.begin, self.keeping, envelope.written_at)
        return ReadMessage(frame.begin, frame.end, message)

    async def _append(self, envelope: _Envelope, at: int | None) -> int:
        try:
            commit = await self.journal.append([_ENCODER.encode(envelope)], at=at)
        except WrongOffset as error:
            raise IndexTaken(str(error)) from error
        finally:
            self.appended.set()
            self.appended = trio.Event()
        return commit.begin


class Tailer:
    """Reads a queue from an index on. Reading takes nothing away: every tailer sees every message."""

    def __init__(self, queue: Queue, index: int = 0) -> None:
        self._queue = queue
        self.index = index
        """From where it reads on."""
        self._reader: FrameBatchReader | None = None
        self._ahead: deque[ReadMessage] = deque()

    @property
    def ahead(self) -> bool:
        """Whether the next message is known already, so that `wait` returns at once."""
        return bool(self._ahead)

    async def peek(self) -> ReadMessage | None:
        """The next message, which stays the next; None when there is none now."""
        journal = self._queue.journal
        while not self._ahead:
            if self._reader is None:
                self._reader = FrameBatchReader(await journal.call(journal.log.reader, self.index))
            frames = await journal.call(self._reader.read)
            if not frames:
                return None
            self._ahead += filter(None, map(self._queue.read_from, frames))
        return self._ahead[0]

    async def read(self) -> ReadMessage | None:
        """The next message; None when there is none now."""
        read = await self.peek()
        if read is not None:
            self._ahead.popleft()
            self.index = read.next
        return read

    async def wait(self) -> ReadMessage:
        """The next message, which stays the next, as soon as there is one."""
        pause = POLL_SECONDS[0]
        while True:
            # Taken before the look, so that what comes in between is not slept through.
            appended = self._queue.appended
            read = await self.peek()
            if read is not None:
                return read
            with trio.move_on_after(math.inf if self._queue.journal.log.instant else pause):
                await appended.wait()
            pause = min(2 * pause, POLL_SECONDS[1])

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _first(journal: Journal, index: int) -> Frame | None:
    reader = journal.log.reader(index)
    try:
        return reader.read()
    finally:
        reader.close()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Envelope)


def _decode(frame: Frame) -> _Envelope:
    try:
        return _DECODER.decode(frame.bodies[0])
    except msgspec.DecodeError as error:
        raise JournalFailed(f"journal {frame.journal}: what lies at {frame.begin} is no message of a step") from error


class Queues:
    """Every queue in a folder of its own under one root; without a root all of them live in memory.

    Graphs that are to share queues are given the same root or, in one process, the same Queues.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        sync: SyncPolicy = "always",
        metadata: Mapping[str, QueueMetadata] | None = None,
    ) -> None:
        self._root = Path(root) if root is not None else None
        self._sync = sync
        self._metadata = dict(metadata or {})
        self._journals: dict[str, Journal] = {}
        self._queues: dict[str, Queue] = {}

    def __getitem__(self, id: str) -> Queue:
        """A queue that has been opened."""
        return self._queues[id]

    async def open(self, id: str) -> Queue:
        """A queue, made if it is not there yet."""
        if id not in self._queues:
            self._queues[id] = Queue(id, await self.journal(f"queues/{id}"), self._metadata.get(id))
        return self._queues[id]

    async def journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = await self._open(name)
        return self._journals[name]

    async def close(self) -> None:
        """Let go of all of them; what is in memory is gone with this object."""
        journals, self._journals, self._queues = self._journals, {}, {}
        for journal in journals.values():
            await journal.close()

    async def _open(self, name: str) -> Journal:
        if self._root is None:
            return Journal.in_memory(name)
        return await Journal.open(self._root / name, sync=self._sync)
