"""Queue: messages in a journal, tailers that read them, and the metadata that queues add."""

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
    """The index in this queue, which every message made from it keeps."""
    strip: bool = False
    """Remove all metadata instead."""


def merge_metadata(messages: Iterable[Message]) -> dict[str, Any]:
    """Return the merged metadata of the inputs, with which an output starts."""
    merged: dict[str, Any] = {}
    for message in messages:
        meta = message.get(META) or {}
        if meta.get(QUEUES):
            merged[QUEUES] = {**merged.get(QUEUES, {}), **meta[QUEUES]}
        if meta.get(TRANSACTION) is not None:
            merged.setdefault(TRANSACTION, meta[TRANSACTION])
    return merged


def at_write(message: Message, keeping: QueueMetadata, now: float) -> tuple[Message, float | None]:
    """Return the message as stored, and the time stored with it. It has no index yet."""
    if keeping.strip:
        return {name: value for name, value in message.items() if name != META}, None
    if keeping.transaction and (message.get(META) or {}).get(TRANSACTION) is None:
        # True stands for the index that the message is about to get; `at_read` puts it in place.
        message = {**message, META: {**(message.get(META) or {}), TRANSACTION: True}}
    return message, now if keeping.time else None


def at_read(message: Message, queue: str, index: int, keeping: QueueMetadata, written_at: float | None) -> Message:
    """Return the message as a reader gets it: with the metadata of this queue."""
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
    """Another message already has the index."""


class ReadMessage(msgspec.Struct, frozen=True):
    """A message, its index, and the index from which to read on."""

    index: int
    next: int
    message: Message


class _Envelope(msgspec.Struct, array_like=True):
    """A message as stored in a journal. Only steps read the key. Without a message it is a filler."""

    message: dict[str, Any] | None
    key: bytes | None = None
    written_at: float | None = None


class Queue:
    """A durable sequence of messages. Indices grow, not by one, and always name the same message."""

    def __init__(self, id: str, journal: Journal, keeping: QueueMetadata | None = None) -> None:
        self.id = id
        self.journal = journal
        self.keeping = keeping or QueueMetadata()
        self.appended = trio.Event()

    async def append(self, message: Message, *, key: bytes | None = None, at: int | None = None) -> int:
        """Append a message and return its index. The sync policy of the journal decides when it is durable.

        With `at`, an index from `end`, raises IndexTaken if another message has that index.
        """
        stored, written_at = at_write(message, self.keeping, time.time())
        return await self._append(_Envelope(stored, key, written_at), at)

    async def end(self) -> int:
        """The index that the next message will have."""
        return (await self.journal.barrier()).end

    async def use_up(self, index: int) -> None:
        """Append a filler, which readers skip, so that no message can ever get this index."""
        try:
            await self._append(_Envelope(None), index)
        except IndexTaken:
            return

    async def key_at(self, index: int) -> bytes | None:
        """Return the key of the message at this index; None if there is no message or it has no key."""
        frame = await self.journal.call(_first, self.journal, index)
        return _decode(frame).key if frame is not None else None

    async def messages(self) -> list[Message]:
        """Return every message that is there now."""
        tailer = Tailer(self)
        found: list[Message] = []
        while (read := await tailer.read()) is not None:
            found.append(read.message)
        return found

    def read_from(self, frame: Frame) -> ReadMessage | None:
        """Return the message of a frame without its key; None for a filler."""
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
        # Also after an error: another process may have appended, and a tailer would sleep through its message.
        finally:
            self.appended.set()
            self.appended = trio.Event()
        return commit.begin


class Tailer:
    """Reads a queue from an index. Reading removes nothing: every tailer reads every message."""

    def __init__(self, queue: Queue, index: int = 0) -> None:
        self._queue = queue
        self.index = index
        """The index to read next."""
        self._reader: FrameBatchReader | None = None
        self._ahead: deque[ReadMessage] = deque()

    @property
    def ahead(self) -> bool:
        """True if the next message is in memory, so that `wait` returns at once."""
        return bool(self._ahead)

    async def peek(self) -> ReadMessage | None:
        """Return the next message without moving on; None if there is none now."""
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
        """Return the next message and move on; None if there is none now."""
        read = await self.peek()
        if read is not None:
            self._ahead.popleft()
            self.index = read.next
        return read

    async def wait(self) -> ReadMessage:
        """Wait for the next message and return it without moving on."""
        pause = POLL_SECONDS[0]
        while True:
            # Taken before the read: after it, a message appended in between would not wake this task.
            appended = self._queue.appended
            read = await self.peek()
            if read is not None:
                return read
            # Polled on disk: a process that appends there does not set the event of this one.
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
        raise JournalFailed(f"journal {frame.journal}: the frame at {frame.begin} is not a step's message") from error


class Queues:
    """The queues below one folder, each in its own; without a folder all of them are in memory.

    Graphs share queues if they have the same folder or, in one process, the same Queues.
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
        """Return a queue that is open."""
        return self._queues[id]

    async def open(self, id: str) -> Queue:
        """Open a queue; create it if it does not exist."""
        if id not in self._queues:
            self._queues[id] = Queue(id, await self.journal(f"queues/{id}"), self._metadata.get(id))
        return self._queues[id]

    async def journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = await self._open(name)
        return self._journals[name]

    async def close(self) -> None:
        """Close all of them. Queues in memory are lost."""
        journals, self._journals, self._queues = self._journals, {}, {}
        for journal in journals.values():
            await journal.close()

    async def _open(self, name: str) -> Journal:
        if self._root is None:
            return Journal.in_memory(name)
        return await Journal.open(self._root / name, sync=self._sync)
