"""What a message of a queue announces, and the records of an announced object.

A progress point says how far an object was read. Points are bytes that compare in reading order.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote_plus

import msgspec

from conduit_py.queue.leased_queue import BodyKind, QueueDelivery
from conduit_py.record import Record


class Announcement(msgspec.Struct, frozen=True):
    """The pieces of work that a message stands for: their names, which are the same whenever they are announced."""

    partitions: tuple[str, ...]


class Discard(msgspec.Struct, frozen=True):
    """There is nothing to do about the message: ack it."""

    reason: str


class Unreadable(msgspec.Struct, frozen=True):
    """The message is not what it should be: leave it to the queue's own policy for such messages."""

    reason: str


MessageBody: TypeAlias = Announcement | Discard | Unreadable


def parse_body(delivery: QueueDelivery, kind: BodyKind) -> MessageBody:
    """What a message is about."""
    if kind is BodyKind.RECORD:
        return Announcement((delivery.id,))
    if kind is BodyKind.URI:
        return _address(delivery.body)
    return _s3(delivery.body)


def _address(body: bytes) -> MessageBody:
    try:
        address = body.decode().strip()
    except UnicodeDecodeError:
        return Unreadable("the body is not text")
    if not address or any(character in address for character in "\n\r\0"):
        return Unreadable("the body is not one address")
    return Announcement((address,))


class _Bucket(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    key: str


class _S3(msgspec.Struct):
    bucket: _Bucket
    object: _Object


class _Event(msgspec.Struct):
    event_name: str = msgspec.field(name="eventName")
    s3: _S3


class _Events(msgspec.Struct):
    records: list[_Event] = msgspec.field(name="Records")


class _TestEvent(msgspec.Struct):
    event: str = msgspec.field(name="Event")


def _s3(body: bytes) -> MessageBody:
    try:
        if msgspec.json.decode(body, type=_TestEvent).event == "s3:TestEvent":
            return Discard("a test event")
    except msgspec.DecodeError:
        pass
    try:
        events = msgspec.json.decode(body, type=_Events).records
    except msgspec.DecodeError as error:
        return Unreadable(f"not an S3 event notification: {error}")
    if not events:
        return Unreadable("an S3 event notification without events")
    created = [event.s3 for event in events if event.event_name.removeprefix("s3:").startswith("ObjectCreated:")]
    if not created:
        return Discard(f"no object was created: {events[0].event_name}")
    # Keys are encoded as in a form: a plus is a space.
    addresses = [f"s3://{each.bucket.name}/{unquote_plus(each.object.key)}" for each in created]
    return Announcement(tuple(dict.fromkeys(addresses)))


class ObjectRecord(NamedTuple):
    """A record of an object, how far the object is read after it, and why it cannot be understood if it cannot."""

    record: Record
    offset: int
    refused: str | None = None


class ObjectOpener(Protocol):
    """Opens objects by their address. If it is `blocking`, all its work is done in a thread."""

    blocking: bool

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        """What follows `offset`, in order; each part of the object has the same offset every time.

        Raises FileNotFoundError when there is no such object.
        """
        ...


class LookAhead:
    """Reads one part further than it gives, so that the last one is known to be the last."""

    def __init__(self, parts: Iterator[ObjectRecord]) -> None:
        self._parts = parts
        self._next = next(parts, None)

    def take(self, count: int) -> tuple[list[ObjectRecord], bool]:
        """At most `count` parts, and whether these are the last."""
        taken: list[ObjectRecord] = []
        while self._next is not None and len(taken) < count:
            taken.append(self._next)
            self._next = next(self._parts, None)
        return taken, self._next is None

    def close(self) -> None:
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()


BEGINNING = b""


_DIGITS = 20


_POINT = re.compile(rb"(\d{20})?|~(\d{20})?")


def point_at(number: int) -> bytes:
    """So far: bytes, lines or records, as the reader counts them."""
    if not 0 <= number < 10**_DIGITS:
        raise ValueError(f"an offset must have at most {_DIGITS} digits and no sign, not {number}")
    return b"%020d" % number


def end_point(number: int | None = None) -> bytes:
    """At the end, after so much. Any end comes after any offset."""
    # A tilde comes after every digit.
    return b"~" if number is None else b"~" + point_at(number)


def offset_of(point: bytes) -> int:
    """The offset that a point stands for; 0 for the beginning."""
    match = _POINT.fullmatch(point)
    if match is None:
        raise ValueError(f"{point!r} is no progress point")
    return int(match[1] or match[2] or 0)


def is_end_point(point: bytes) -> bool:
    return point.startswith(b"~")
