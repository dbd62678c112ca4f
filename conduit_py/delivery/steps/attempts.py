"""Attempts: what a step writes down about its work, and what that tells the next start.

One log per step is the only truth about it. Its entries, in the order of a step:

    Takeover   a process begins: what others write from here on is refused
    Snapshot   where every tailer stands: what the step is about to read
    Choice     (alts) which tailer was read, before anything is done about it
    Sent       the index that the output or error message is to have, and where the tailers stand after it
    Decided    (fork) the messages for several outputs: from here on they are sent, whatever happens
    Nothing    the step came to its end without a message

The log is written before the queue, so the newest entry and one look at the queue tell whether the
step was delivered. The key is that of the inputs consumed, never of those merely available, and a
choice is recorded whenever none is in force: so no key ever names two different messages.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from conduit_py.errors import EnvironmentUnfit


class Takeover(msgspec.Struct, frozen=True, tag="T"):
    """Says nothing about the work; the registers of the journal change with it."""


class Snapshot(msgspec.Struct, frozen=True, tag="S"):
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


class Part(msgspec.Struct, frozen=True):
    """One message of a fork: `message` is to become number `index` of `queue`."""

    queue: str
    index: int
    message: dict[str, Any]


class Decided(msgspec.Struct, frozen=True, tag="D"):
    """The messages of a fork that are not known to be sent. None of them is ever made anew."""

    parts: list[Part]
    key: bytes
    after: dict[str, int]


class Nothing(msgspec.Struct, frozen=True, tag="N"):
    """The step for this key is done and has no message."""

    key: bytes
    after: dict[str, int]


Entry: TypeAlias = Takeover | Snapshot | Choice | Sent | Decided | Nothing

_DECODER = msgspec.msgpack.Decoder(Entry)
_ENCODER = msgspec.msgpack.Encoder()


def encode(entry: Entry) -> bytes:
    return _ENCODER.encode(entry)


def decode(frame: bytes) -> Entry:
    entry: Entry = _DECODER.decode(frame)
    return entry


class Outset(msgspec.Struct, frozen=True):
    """How a step sets out."""

    indices: Mapping[str, int]
    """Where its tailers stand; a queue that is not named was never read."""
    retrying: bool = False
    """Whether it repeats a step that has a snapshot already."""
    choice: str | None = None
    """The queue that must be read, because that was the choice."""
    unfinished: Decided | None = None
    """A fork that is decided and may not be sent in full."""


async def outset(newest_first: AsyncIterable[Entry], delivered: Callable[[Sent], Awaitable[bool]]) -> Outset:
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
                return Outset(entry.after)
            if isinstance(entry, Decided):
                return Outset(entry.after, unfinished=entry)
        if isinstance(entry, Snapshot):
            return Outset(entry.indices, retrying=True, choice=choice)
        if isinstance(entry, Choice):
            choice = entry.queue
    if newest is not None:
        raise EnvironmentUnfit("the log of a step has attempts but no snapshot: what it was about to read is not known")
    return Outset({})


def key_parts(uid: str, consumed: Mapping[str, int]) -> Sequence[bytes]:
    """What the delivery key of a step is made of: the step and the messages it consumed, by queue and index."""
    parts = [uid.encode()]
    for queue in sorted(consumed):
        parts += [queue.encode(), consumed[queue].to_bytes(8, "big")]
    return parts
