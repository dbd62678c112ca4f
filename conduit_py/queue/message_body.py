"""Announcement: what a message of a queue is about, found out with as little work as possible."""

from enum import Enum
from typing import TypeAlias
from urllib.parse import unquote_plus

import msgspec

from conduit_py.queue.leased_queue import QueueDelivery


class Kind(Enum):
    """What the bodies of messages are."""

    RECORD = "record"
    """The message is the record."""
    URI = "uri"
    """The body is the address of an object whose content is the records."""
    S3 = "s3"
    """The body is an S3 event notification about such objects."""


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


def parse_body(delivery: QueueDelivery, kind: Kind) -> MessageBody:
    """What a message is about."""
    if kind is Kind.RECORD:
        return Announcement((delivery.id,))
    if kind is Kind.URI:
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
