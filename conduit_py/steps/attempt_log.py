"""Attempts: what a step writes down about its work, and what that tells the next start.

One log per step is the only truth about it. Its entries, in the order of a step:

    Takeover   a process begins: what others write from here on is refused
    PositionSnapshot   where every tailer stands: what the step is about to read
    Choice     (alts) which tailer was read, before anything is done about it
    Sent       the index that the output or error message is to have, and where the tailers stand after it
    Decided    (fork) the messages for several outputs: from here on they are sent, whatever happens
    Nothing    the step came to its end without a message

The log is written before the queue, so the newest entry and one look at the queue tell whether the
step was delivered. The key is that of the inputs consumed, never of those merely available, and a
choice is recorded whenever none is in force: so no key ever names two different messages.
"""

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from conduit_py.errors import EnvironmentUnfit
from conduit_py.journal.journal import Journal
from conduit_py.journal.registers import Selector


class Takeover(msgspec.Struct, frozen=True, tag="T"):
    """Says nothing about the work; the registers of the journal change with it."""


class PositionSnapshot(msgspec.Struct, frozen=True, tag="S"):
    """Queue → the index that is read next. Queues of an earlier shape of the graph are carried along."""

    indices: dict[str, int]


class Choice(msgspec.Struct, frozen=True, tag="A"):
    """The queue that was read."""

    queue: str


class Sent(msgspec.Struct, frozen=True, tag="O"):
    """A message with this key is about to become number `index` of `queue`."""

    queue: str
    index: int
    key: bytes
    after: dict[str, int]
    error: bool = False


class ForkMessage(msgspec.Struct, frozen=True):
    """One message of a fork: `message` is to become number `index` of `queue`."""

    queue: str
    index: int
    message: dict[str, Any]


class Decided(msgspec.Struct, frozen=True, tag="D"):
    """The messages of a fork that are not known to be sent. None of them is ever made anew."""

    parts: list[ForkMessage]
    key: bytes
    after: dict[str, int]


class Nothing(msgspec.Struct, frozen=True, tag="N"):
    """The step for this key is done and has no message."""

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
    """How a step sets out."""

    indices: Mapping[str, int]
    """Where its tailers stand; a queue that is not named was never read."""
    retrying: bool = False
    """Whether it repeats a step that has a snapshot already."""
    choice: str | None = None
    """The queue that must be read, because that was the choice."""
    unfinished: Decided | None = None
    """A fork that is decided and may not be sent in full."""


async def find_start(newest_first: AsyncIterable[Entry], delivered: Callable[[Sent], Awaitable[bool]]) -> StartPoint:
    """What the log says about the next step. `delivered` finds out whether a message is where it was to go, for good.

    Reads back no further than the nearest snapshot, and gives the same answer when it is asked again
    after another crash.
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
        raise EnvironmentUnfit("the log of a step has attempts but no snapshot: what it was about to read is not known")
    return StartPoint({})


def key_parts(uid: str, consumed: Mapping[str, int]) -> Sequence[bytes]:
    """What the delivery key of a step is made of: the step and the messages it consumed, by queue and index."""
    parts = [uid.encode()]
    for queue in sorted(consumed):
        parts += [queue.encode(), consumed[queue].to_bytes(8, "big")]
    return parts


AUTHOR = "author"
_PRUNE_EVERY = 1024


class AttemptLog:
    """Whoever took over last may append; all others get Fenced."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._author = uuid.uuid4().hex
        self._newest: Entry | None = None
        self._snapshots = 0

    async def take_over(self) -> None:
        """From here on nobody else's entries are taken, so what is read back now is the last word."""
        await self._journal.append([encode_entry(Takeover())], union={AUTHOR: self._author})

    async def append(self, entry: Entry) -> None:
        commit = await self._journal.append([encode_entry(entry)], check=Selector({AUTHOR: self._author}))
        self._newest = entry
        if isinstance(entry, PositionSnapshot):
            self._snapshots += 1
            if self._snapshots % _PRUNE_EVERY == 0:
                await self._journal.prune(commit.begin)

    async def newest_first(self) -> AsyncIterator[Entry]:
        """The entries of the last step and of a few before it."""
        for frame in await self._journal.call(self._back):
            yield decode_entry(frame)

    @property
    def newest(self) -> Entry | None:
        """The last entry of this run."""
        return self._newest

    def _back(self) -> list[bytes]:
        """Back to the nearest snapshot: what lies before it is of no use any more."""
        found: list[bytes] = []
        for frame in self._journal.log.backward():
            found.append(frame.bodies[0])
            if isinstance(decode_entry(found[-1]), PositionSnapshot):
                break
        return found
