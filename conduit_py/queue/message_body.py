"""What a message of a queue announces, and the records of an announced object.

A progress point is how far an object was read. Points are bytes that compare in reading order.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote_plus

import msgspec
import trio

from conduit_py.payloads import Payloads, kind_of
from conduit_py.queue.leased_queue import BodyKind, QueueDelivery
from conduit_py.record import Data, Record
from conduit_py.sdk.source import Reading

T = TypeVar("T")


class Announcement(msgspec.Struct, frozen=True):
    """The names of the work that a message announces: the same names at every delivery."""

    partitions: tuple[str, ...]


class Discard(msgspec.Struct, frozen=True):
    """The message announces no work: ack it."""

    reason: str


class Unreadable(msgspec.Struct, frozen=True):
    """The body cannot be parsed. The message is not acked, so that the queue's own policy for it applies."""

    reason: str


MessageBody: TypeAlias = Announcement | Discard | Unreadable


def parse_body(delivery: QueueDelivery, kind: BodyKind) -> MessageBody:
    """Return what a message announces."""
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
    # S3 sends this event once, when notifications are set up. It names no object.
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
    # Without duplicates: two events about one object are one piece of work.
    return Announcement(tuple(dict.fromkeys(addresses)))


class ObjectRecord(NamedTuple):
    """A record of an object, the offset after it, the reason if it could not be parsed, and about how large it is."""

    record: Record | Data
    """The record, or only its payload: from payloads alone no record is made until one is needed."""
    offset: int
    refused: str | None = None
    size: int = 0
    """In bytes, for `in_flight_bytes_max`; 0 if it is not known."""


def as_reading(parts: Sequence[ObjectRecord], positions: list[bytes]) -> Reading:
    """Return what was read from an object: payloads, or records if there is one among them."""
    refused = {index: part.refused for index, part in enumerate(parts) if part.refused is not None}
    values = [part.record for part in parts]
    if not any(isinstance(value, Record) for value in values):
        return Reading(Payloads(values, positions, kind_of(set(map(type, values)))), refused)
    records = [value if isinstance(value, Record) else Record.of(value) for value in values]
    for record, position in zip(records, positions, strict=True):
        record.position = position
    return Reading(records, refused)


class ObjectOpener(Protocol):
    """Opens objects by their address. If it is `blocking`, its calls run in a thread."""

    blocking: bool

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        """Yield the records after `offset`, in order. A record has the same offset at every opening.

        Raises FileNotFoundError if there is no such object.
        """
        ...


class LookAhead:
    """Reads one record ahead, so that the last record is recognised as the last.

    `close` may be called while a `take` that was given up still runs in its thread. That call then closes the object.
    """

    def __init__(self, parts: Iterator[ObjectRecord]) -> None:
        self._parts = parts
        self._in_use = threading.Lock()
        self._closed = False
        self._next = next(parts, None)

    def take(self, count: int, room: int) -> tuple[list[ObjectRecord], bool]:
        """Return at most `count` records, and True if they are the last. One that fills `room` bytes ends them."""
        taken: list[ObjectRecord] = []
        try:
            with self._in_use:
                while self._next is not None and len(taken) < count and room > 0 and not self._closed:
                    taken.append(self._next)
                    room -= self._next.size
                    self._next = next(self._parts, None)
        finally:
            if self._closed:
                self.close()
        return taken, self._next is None

    def close(self) -> None:
        self._closed = True
        if self._in_use.acquire(blocking=False):
            try:
                close = getattr(self._parts, "close", None)
                if close is not None:
                    close()
            finally:
                self._in_use.release()


_THREADS_MAX = 4


class ObjectThread:
    """Runs reads of objects in threads. A read that takes longer than `seconds` is given up with TooSlowError.

    Its thread ends when the read does. Reads that never end take at most four threads, which are not those of the
    rest of the process: with all of them taken, every further read is too slow.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limiter = trio.CapacityLimiter(_THREADS_MAX)

    async def run(self, work: Callable[[], T]) -> T:
        with trio.fail_after(self._seconds):
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)


BEGINNING = b""
_DIGITS = 20
_POINT = re.compile(rb"(\d{20})?|~(\d{20})?")


def point_at(number: int) -> bytes:
    """Return the point after `number` bytes, lines or records, in the units of the reader."""
    if not 0 <= number < 10**_DIGITS:
        raise ValueError(f"an offset must have at most {_DIGITS} digits and no sign, not {number}")
    return b"%020d" % number


def end_point(number: int | None = None) -> bytes:
    """Return the point at the end of an object. It compares greater than every offset."""
    # A tilde comes after every digit.
    return b"~" if number is None else b"~" + point_at(number)


def offset_of(point: bytes) -> int:
    """Return the offset of a point; 0 for the beginning."""
    match = _POINT.fullmatch(point)
    if match is None:
        raise ValueError(f"{point!r} is not a progress point")
    return int(match[1] or match[2] or 0)


def is_end_point(point: bytes) -> bool:
    return point.startswith(b"~")


def encode_position(partition: str, point: bytes) -> bytes:
    """Return the position of a point in a partition."""
    return msgspec.json.encode([partition, point.decode()])


_POSITION = msgspec.json.Decoder(tuple[str, str])


def decode_position(position: bytes) -> tuple[str, bytes]:
    """Return the partition and the point in it."""
    partition, point = _POSITION.decode(position)
    return partition, point.encode()
