"""Queue and Tailer: messages in a journal, and a reader of them that remembers where it is."""

import math
import time
from collections import deque
from typing import Any

import msgspec
import trio

from conduit_py.delivery.steps.metadata import Keeping, at_read, at_write
from conduit_py.delivery.steps.step import Message
from conduit_py.journal.fault import JournalFailed, WrongOffset
from conduit_py.journal.frame import Frame
from conduit_py.journal.handfuls import Handfuls
from conduit_py.journal.journal import POLL_SECONDS, Journal


class IndexTaken(Exception):
    """The index that a message was to have belongs to another one."""


class Read(msgspec.Struct, frozen=True):
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

    def __init__(self, id: str, journal: Journal, keeping: Keeping | None = None) -> None:
        self.id = id
        self.journal = journal
        self.keeping = keeping or Keeping()
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

    def read_from(self, frame: Frame) -> Read | None:
        """What a reader sees of a frame: nothing of a filler, and never the key."""
        envelope = _decode(frame)
        if envelope.message is None:
            return None
        message = at_read(envelope.message, self.id, frame.begin, self.keeping, envelope.written_at)
        return Read(frame.begin, frame.end, message)

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
        self._reader: Handfuls | None = None
        self._ahead: deque[Read] = deque()

    @property
    def ahead(self) -> bool:
        """Whether the next message is known already, so that `wait` returns at once."""
        return bool(self._ahead)

    async def peek(self) -> Read | None:
        """The next message, which stays the next; None when there is none now."""
        journal = self._queue.journal
        while not self._ahead:
            if self._reader is None:
                self._reader = Handfuls(await journal.call(journal.log.reader, self.index))
            frames = await journal.call(self._reader.read)
            if not frames:
                return None
            self._ahead += filter(None, map(self._queue.read_from, frames))
        return self._ahead[0]

    async def read(self) -> Read | None:
        """The next message; None when there is none now."""
        read = await self.peek()
        if read is not None:
            self._ahead.popleft()
            self.index = read.next
        return read

    async def wait(self) -> Read:
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
