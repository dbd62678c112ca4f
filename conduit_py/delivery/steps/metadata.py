"""Metadata of messages: where and when each queue took a message in, carried from input to output."""

from collections.abc import Iterable
from typing import Any

import msgspec

from conduit_py.delivery.steps.step import Message

META = "meta"
"""The reserved key of a message."""
QUEUES = "queues"
TRANSACTION = "transaction"


class Keeping(msgspec.Struct, frozen=True):
    """What a queue adds to the metadata of its messages."""

    index: bool = False
    """The index the message has in this queue."""
    time: bool = False
    """When it was written, in seconds since 1970."""
    transaction: bool = False
    """The index it has in this queue, as a number that every message made from it carries on."""
    strip: bool = False
    """Take all metadata away instead."""


def carried(messages: Iterable[Message]) -> dict[str, Any]:
    """The metadata of the inputs, merged: what an output starts out with."""
    merged: dict[str, Any] = {}
    for message in messages:
        meta = message.get(META) or {}
        if meta.get(QUEUES):
            merged[QUEUES] = {**merged.get(QUEUES, {}), **meta[QUEUES]}
        if meta.get(TRANSACTION) is not None:
            merged.setdefault(TRANSACTION, meta[TRANSACTION])
    return merged


def at_write(message: Message, keeping: Keeping, now: float) -> tuple[Message, float | None]:
    """The message as it is stored, and the time stored beside it. The index is not known yet."""
    if keeping.strip:
        return {name: value for name, value in message.items() if name != META}, None
    if keeping.transaction and (message.get(META) or {}).get(TRANSACTION) is None:
        # True stands for the index that the message is about to get; `at_read` puts it in place.
        message = {**message, META: {**(message.get(META) or {}), TRANSACTION: True}}
    return message, now if keeping.time else None


def at_read(message: Message, queue: str, index: int, keeping: Keeping, written_at: float | None) -> Message:
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
