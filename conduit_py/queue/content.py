"""The records of one announced object from any point on, and progress points: bytes that compare in reading order."""

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from conduit_py.record import Record


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
