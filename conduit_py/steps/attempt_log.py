"""AttemptLog: the log of one step, from which it recovers after a crash.

The log alone decides where a step continues. Its entries, in the order of a step:

    Takeover   a process starts: later entries of other processes are refused
    PositionSnapshot   the index of every tailer: what the step is about to read
    Choice     (alts) which tailer is read, before its message is processed
    Sent       the index that the output or error message will have, and the indices of the tailers after it
    Decided    (fork) the messages for several outputs: from here on they are sent, also after a crash
    Nothing    the step ended without a message

The log is written before the queue, so the newest entry and one read of the queue show if the message was
delivered. The key is made from the inputs consumed, not from those available, and every choice is
recorded before it is used. So no key ever identifies two different messages.
"""

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from conduit_py.errors import EnvironmentUnfit
from conduit_py.journal.journal import Journal
from conduit_py.journal.registers import Selector


class Takeover(msgspec.Struct, frozen=True, tag="T"):
    """Has no content; it changes the registers of the journal, which fence earlier processes."""


class PositionSnapshot(msgspec.Struct, frozen=True, tag="S"):
    """Queue → the index to read next. It keeps queues of an earlier form of the graph."""

    indices: dict[str, int]


class Choice(msgspec.Struct, frozen=True, tag="A"):
    """The queue that was read."""

    queue: str


class Sent(msgspec.Struct, frozen=True, tag="O"):
    """A message with this key is about to be appended to `queue` at `index`."""

    queue: str
    index: int
    key: bytes
    after: dict[str, int]
    error: bool = False


class ForkMessage(msgspec.Struct, frozen=True):
    """One message of a fork, to be appended to `queue` at `index`."""

    queue: str
    index: int
    message: dict[str, Any]


class Decided(msgspec.Struct, frozen=True, tag="D"):
    """The messages of a fork that may not be sent yet. They are sent as they are; the handler is not called again."""

    parts: list[ForkMessage]
    key: bytes
    after: dict[str, int]


class Nothing(msgspec.Struct, frozen=True, tag="N"):
    """The step with this key ended without a message."""

    key: bytes
    after: dict[str, int]


Entry: TypeAlias = Takeover | PositionSnapshot | Choice | Sent | Decided | Nothing

_DECODER = msgspec.msgpack.Decoder(Entry)
_ENCODER = msgspec.msgpack.Encoder()


def encode_entry(entry: Entry) -> bytes:
    return _ENCODER.encode(entry)


def decode_entry(frame: bytes) -> Entry:
    entry: Entry = _DECODER.decode(frame)
    return entry


class StartPoint(msgspec.Struct, frozen=True):
    """Where a step starts after a restart."""

    indices: Mapping[str, int]
    """The index of each tailer; a queue that is missing was never read."""
    retrying: bool = False
    """True if it repeats a step whose snapshot is in the log."""
    choice: str | None = None
    """The queue that must be read, because the log has this choice."""
    unfinished: Decided | None = None
    """A fork that was decided, and of which some messages may not be sent."""


async def find_start(newest_first: AsyncIterable[Entry], delivered: Callable[[Sent], Awaitable[bool]]) -> StartPoint:
    """Return where the next step starts. `delivered` checks if a message is in its queue, and if not, excludes it.

    Reads back to the nearest snapshot. Returns the same result again after another crash.
    """
    newest: Entry | None = None
    choice: str | None = None
    async for entry in newest_first:
        if isinstance(entry, Takeover):
            continue
        if newest is None:
            newest = entry
            if isinstance(entry, Nothing) or (isinstance(entry, Sent) and await delivered(entry)):
                return StartPoint(entry.after)
            if isinstance(entry, Decided):
                return StartPoint(entry.after, unfinished=entry)
        if isinstance(entry, PositionSnapshot):
            return StartPoint(entry.indices, retrying=True, choice=choice)
        if isinstance(entry, Choice):
            choice = entry.queue
    if newest is not None:
        raise EnvironmentUnfit("the log of a step has attempts but no snapshot, so its input is unknown")
    return StartPoint({})


def key_parts(uid: str, consumed: Mapping[str, int]) -> Sequence[bytes]:
    """Return the parts of a delivery key: the step and the messages it consumed, by queue and index."""
    parts = [uid.encode()]
    # Sorted: the order of inputs in a definition may change between runs, and the key must not.
    for queue in sorted(consumed):
        parts += [queue.encode(), consumed[queue].to_bytes(8, "big")]
    return parts


AUTHOR = "author"
_PRUNE_EVERY = 1024


class AttemptLog:
    """The log of a step. Only the process that took over last may append; all others get Fenced."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._author = uuid.uuid4().hex
        self._newest: Entry | None = None
        self._snapshots = 0

    async def take_over(self) -> None:
        """Fence all other processes. What is read back after this can no longer change."""
        await self._journal.append([encode_entry(Takeover())], union={AUTHOR: self._author})

    async def append(self, entry: Entry) -> None:
        commit = await self._journal.append([encode_entry(entry)], check=Selector({AUTHOR: self._author}))
        self._newest = entry
        if isinstance(entry, PositionSnapshot):
            self._snapshots += 1
            # Only up to a snapshot: recovery reads back to the nearest one, and never further.
            if self._snapshots % _PRUNE_EVERY == 0:
                await self._journal.prune(commit.begin)

    async def newest_first(self) -> AsyncIterator[Entry]:
        """Yield the entries back to the nearest snapshot."""
        for frame in await self._journal.call(self._back):
            yield decode_entry(frame)

    @property
    def newest(self) -> Entry | None:
        """The last entry of this run."""
        return self._newest

    def _back(self) -> list[bytes]:
        """Read back to the nearest snapshot; earlier entries are not needed."""
        found: list[bytes] = []
        for frame in self._journal.log.backward():
            found.append(frame.bodies[0])
            if isinstance(decode_entry(found[-1]), PositionSnapshot):
                break
        return found
