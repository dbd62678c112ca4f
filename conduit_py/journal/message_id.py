"""MessageUuid, ProducerId and Clock: who published a message, when, and what it means for its transaction."""

import secrets
import time
import uuid
from enum import IntEnum
from typing import NamedTuple


class Flag(IntEnum):
    """What a message means to readers. Any other value is read as OUTSIDE."""

    OUTSIDE = 0
    """Outside of any transaction: committed as soon as it is there."""
    CONTINUE = 1
    """Part of a transaction that is open until an ACK of the same producer."""
    ACK = 2
    """Commits what the producer published before it, up to its clock; or rolls back, see `Sequencer`."""


_OUTSIDE, _CONTINUE, _ACK = Flag
FLAGS_MAX = 0x3FF
_MULTICAST = 1


class ProducerId(bytes):
    """Six bytes, 47 of their bits random. Every claim has a new one."""

    __slots__ = ()

    @classmethod
    def random(cls) -> "ProducerId":
        first, *rest = secrets.token_bytes(6)
        # RFC 4122: a node that is not the address of a network card has the multicast bit.
        return cls((first | _MULTICAST, *rest))


class MessageUuid(NamedTuple):
    """Sixteen bytes in the layout of a UUID of version 1: clock, flags and producer.

    A frame of many messages has the id of its first; each further one is a tick later.
    """

    producer: ProducerId
    clock: int
    flags: int = Flag.OUTSIDE

    def to_bytes(self) -> bytes:
        if self is NO_ID:
            return _ZERO
        assert 0 <= self.flags <= FLAGS_MAX, f"{self.flags} are more than ten bits of flags"
        clock = self.clock
        time = clock >> 4
        fields = (time & 0xFFFFFFFF) << 96 | (time >> 32 & 0xFFFF) << 80 | (0x1000 | time >> 48) << 64
        rest = 0x8000 | (clock & 0xF) << 10 | self.flags
        return (fields | rest << 48).to_bytes(16, "big")[:10] + self.producer

    @classmethod
    def from_bytes(cls, raw: bytes) -> "MessageUuid":
        """The id in sixteen bytes; sixteen zeros are NO_ID."""
        if raw == _ZERO:
            return NO_ID
        number = int.from_bytes(raw[:10], "big")
        low, middle, high, rest = number >> 48, number >> 32 & 0xFFFF, number >> 16 & 0xFFFF, number & 0xFFFF
        # The version shares its bytes with the upper bits of the time.
        time = (high & 0x0FFF) << 48 | middle << 32 | low
        return cls(ProducerId(raw[10:]), time << 4 | rest >> 10 & 0xF, rest & FLAGS_MAX)

    @property
    def flag(self) -> Flag:
        """The flags as readers take them."""
        if self.flags == _CONTINUE:
            return _CONTINUE
        return _ACK if self.flags == _ACK else _OUTSIDE

    def later(self, count: int) -> "MessageUuid":
        """The id of the message `count` places further on in the same frame."""
        return self if self is NO_ID else MessageUuid(self.producer, self.clock + count * TICK, self.flags)

    def __str__(self) -> str:
        return str(uuid.UUID(bytes=self.to_bytes()))


_ZERO = bytes(16)
NO_ID = MessageUuid(ProducerId(6), 0)
"""Of messages that opted out: always delivered, never recognised as repeated."""


TICK = 160
"""One microsecond. A producer of a million messages a second stays with the wall clock; a faster one runs ahead."""

HUNDRED_NANOSECONDS = 16
"""The clock counts 100 ns units in its upper 60 bits; the lower four are a counter, as in RFC 4122."""

MAX = 2**64 - 1

_EPOCH = 122_192_928_000_000_000
"""From 1582-10-15, where the time of RFC 4122 begins, to 1970, in units of 100 ns."""


def clock_at(unix_nanoseconds: int) -> int:
    """The clock value of an instant, its counter at zero."""
    return (unix_nanoseconds // 100 + _EPOCH) * HUNDRED_NANOSECONDS


def unix_seconds(clock: int) -> float:
    """The instant of a clock value."""
    return (clock // HUNDRED_NANOSECONDS - _EPOCH) / 10_000_000


class Clock:
    """Strictly increasing values of 64 bits. Readers only compare them."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def update(self, unix_nanoseconds: int) -> None:
        """Go forward to an instant; one that has passed changes nothing."""
        # Never back, even if the wall clock is set back: readers drop a smaller clock as a repetition.
        self.value = max(self.value, clock_at(unix_nanoseconds))

    def update_to_now(self) -> None:
        """Go forward to the wall clock."""
        self.update(time.time_ns())

    def tick(self, count: int = 1) -> int:
        """The next value; with `count` the first of that many, one tick apart, all of them taken."""
        first = self.value + TICK
        self.value += TICK * count
        return first
