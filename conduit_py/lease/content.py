"""Content: the records of one piece of work, from a point on."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from conduit_py.record import Record


class Part(NamedTuple):
    """A record of an object, how far the object is read after it, and why it cannot be understood if it cannot."""

    record: Record
    offset: int
    refused: str | None = None


class Objects(Protocol):
    """Opens objects by their address. If it is `blocking`, all its work is done in a thread."""

    blocking: bool

    def open(self, address: str, offset: int) -> Iterator[Part]:
        """What follows `offset`, in order; each part of the object has the same offset every time.

        Raises FileNotFoundError when there is no such object.
        """
        ...


class Ahead:
    """Reads one part further than it gives, so that the last one is known to be the last."""

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self._next = next(parts, None)

    def take(self, count: int) -> tuple[list[Part], bool]:
        """At most `count` parts, and whether these are the last."""
        taken: list[Part] = []
        while self._next is not None and len(taken) < count:
            taken.append(self._next)
            self._next = next(self._parts, None)
        return taken, self._next is None

    def close(self) -> None:
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()
