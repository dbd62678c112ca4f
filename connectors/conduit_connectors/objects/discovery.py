"""Discovery: finds the objects that a source has not read yet, with little memory however many there are."""

import logging
import time
from bisect import insort
from collections.abc import Container, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.store import ObjectInfo, ObjectStore
from conduit_py.sdk import EndOfSource, FatalError, NothingYet

_logger = logging.getLogger(__name__)

OnReplaced = Literal["reread", "new-only", "refuse"]
RECENT_MAX = 256
LATE_MICROSECONDS = 3600 * 1_000_000
"""How much older than it is a new object may seem: an upload in parts has the time at which it was begun."""
_SECOND = 1_000_000
_TICK_SECONDS = 0.05
"""Longer than the time of a file system stands still: files that are stored at once have the same time."""


class Round(msgspec.Struct, frozen=True, array_like=True):
    """Where the search for objects is. It is a part of every position, so it is small.

    One round is one listing. It takes what was stored after `floor` and until `ceiling`, without the objects
    in `known`, which the round before has read. Times are in microseconds.
    """

    number: int = 0
    """How many objects came before the current one, in all rounds."""
    floor: int = -1
    ceiling: int = 0
    known: tuple[tuple[int, int], ...] = ()
    """Objects that were read: when they were stored, and a hash of their names and marks."""
    next_floor: int = -1
    recent: tuple[tuple[int, int], ...] = ()
    """The objects that were stored after `next_floor` and are read. The next round must leave them out."""

    def with_read(self, info: ObjectInfo) -> "Round":
        """Return the round when an object is read, by this round or the one before."""
        if info.modified <= self.next_floor:
            return self
        recent = list(self.recent)
        insort(recent, (info.modified, hash_of(info)))
        made = msgspec.structs.replace(self, recent=tuple(recent))
        # More than that is not remembered: a position must stay small. Then the next round looks back less far.
        return made if len(recent) <= RECENT_MAX else made._raise_floor(recent[0][0])

    def following(self, newest: int) -> "Round":
        """Return the next round, when this one has listed everything; `newest` is the latest time in the store."""
        floor = max(self.floor, self.next_floor)
        return Round(self.number, floor, newest, self.recent, max(floor, newest - LATE_MICROSECONDS))

    def _raise_floor(self, floor: int) -> "Round":
        recent = tuple(each for each in self.recent if each[0] > floor)
        return msgspec.structs.replace(self, next_floor=floor, recent=recent)


def hash_of(info: ObjectInfo) -> int:
    """Return 63 bits that recognise an object with its content."""
    text = f"{info.mark}\0{info.name}".encode(errors="surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 1


class FoundObject(NamedTuple):
    """An object to read, and the round that found it."""

    info: ObjectInfo
    round: Round


class Discovery:
    """Returns one unread object after another, in the order in which the store lists them.

    What is unread depends on what may happen to objects:

    - "reread": what was stored since the last round, by its time, whatever its name. A replaced object is stored again.
    - "new-only": what is listed after the last object that was read. Names must grow, as with a date in them.
    - "refuse": as "new-only". An object that is stored later and listed before is an error, so none is missed.
    - "consumed": objects are removed when they are read, so everything that is there is unread.

    Without `follow` it ends after a round that began after `__init__`. The times are those of the store: the clock of
    this machine has no part in it.
    """

    def __init__(
        self,
        store: ObjectStore,
        pattern: ObjectPattern,
        mode: OnReplaced | Literal["consumed"],
        *,
        follow: bool = False,
        poll_seconds: float = 0.0,
        consumed: Container[tuple[str, str]] = (),
    ) -> None:
        self._store = store
        self._pattern = pattern
        self._mode = mode
        self._follow = follow
        self._poll_seconds = poll_seconds
        self._consumed = consumed
        self._round = Round()
        self._began_round = False
        self._listing: Iterator[ObjectInfo] | None = None
        self._listed_at = float("-inf")
        self._unsettled: tuple[int, float] | None = None
        """The latest time that a listing has shown, and when no other object can get it any more."""
        self._last: str | None = None
        self._last_mark = ""
        self._found_any = False
        self._listed_any = False

    def resume(self, found: FoundObject) -> None:
        """Go on in the round of an object, after it."""
        self.finish(found)
        self._listing = self._list(found.info.name)

    def next(self) -> FoundObject:
        """Return the next object. Raises EndOfSource or NothingYet if there is none."""
        while True:
            if self._listing is None:
                self._listing = self._begin_round()
            for info in self._listing:
                if self._is_unread(info):
                    return FoundObject(info, self._round)
            self._listing = None
            if self._follow and not self._found_any:
                raise NothingYet

    def finish(self, found: FoundObject) -> None:
        """Count an object as read."""
        round = msgspec.structs.replace(found.round, number=found.round.number + 1)
        if self._mode == "reread":
            round = round.with_read(found.info)
        elif self._mode == "refuse":
            round = msgspec.structs.replace(round, next_floor=max(round.next_floor, found.info.modified))
        self._round, self._last, self._last_mark = round, found.info.name, found.info.mark
        self._found_any = self._listed_any = True

    def _begin_round(self) -> Iterator[ObjectInfo]:
        if not self._follow and self._began_round:
            self._end()
        if self._follow and not self._found_any and time.monotonic() < self._listed_at + self._poll_seconds:
            raise NothingYet
        if self._mode in ("reread", "refuse"):
            self._round = self._round.following(self._find_newest())
        self._began_round, self._found_any, self._listed_at = True, False, time.monotonic()
        return self._list(self._last if self._mode == "new-only" else None)

    def _find_newest(self) -> int:
        """Return the latest time in the store. Raises NothingYet while objects with that time may still be stored.

        Listed twice: what is stored while a round reads is left to the next. Else an object that appears behind the
        place of the round would be missed. A time of this machine would not do as a limit: its clock is another one,
        and positions would differ after a restart.
        """
        if self._unsettled is None:
            newest, crowd = self._count_newest()
            # A quarter: more of them may be stored before the second listing.
            if newest <= self._round.ceiling or (self._mode == "reread" and crowd <= RECENT_MAX // 4):
                return newest
            # Too many to remember each: an object that is stored now, with the same time, would pass for one of them.
            wait = _TICK_SECONDS if newest % _SECOND else 1 + _TICK_SECONDS
            self._unsettled = newest, time.monotonic() + wait
        newest, settled_at = self._unsettled
        if time.monotonic() < settled_at:
            raise NothingYet
        self._unsettled = None
        return newest

    def _count_newest(self) -> tuple[int, int]:
        """Return the latest time in the store, and how many objects were stored in its second."""
        newest, crowd = 0, 0
        for info in self._list(None):
            second, last = info.modified // _SECOND, newest // _SECOND
            crowd = 1 if second > last else crowd + (second == last)
            newest = max(newest, info.modified)
        return newest, crowd

    def _end(self) -> None:
        if not self._listed_any:
            place = self._store.show(self._pattern.folder)
            if self._pattern.exact:
                hint = "correct the address, or wait for objects with follow=True"
                raise FatalError(f"there is no object at {place}", suggestion=hint)
            _logger.warning("no object below %s has a name that fits the pattern", place)
        raise EndOfSource

    def _list(self, after: str | None) -> Iterator[ObjectInfo]:
        """List the objects that the pattern names."""
        pattern = self._pattern
        if len(pattern.exact) == 1 and not pattern.has_wildcards:
            alone = self._store.find(pattern.exact[0])
            if alone is not None:
                self._listed_any = True
                return iter([alone] if after is None else [])
        return self._matching(self._store.list(pattern.folder, after))

    def _matching(self, listed: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in listed:
            if self._pattern.matches(info.name):
                self._listed_any = True
                yield info

    def _is_unread(self, info: ObjectInfo) -> bool:
        if self._mode == "consumed":
            return (info.name, info.mark) not in self._consumed
        if self._mode == "new-only":
            return True
        if self._mode == "reread":
            return self._is_new(info)
        if self._last is None or self._store.is_before(self._last, info.name):
            return info.modified <= self._round.ceiling
        same = info.name == self._last and info.mark == self._last_mark
        if info.modified > self._round.floor and not same:
            raise _stored_late(self._store.show(info.name), self._store.show(self._last))
        return False

    def _is_new(self, info: ObjectInfo) -> bool:
        if not info.modified:
            raise FatalError(
                f"{self._store.show(info.name)} has no time of change, so new objects cannot be found",
                suggestion='use on_replaced="new-only", for names that grow',
            )
        if info.modified <= self._round.floor or info.modified > self._round.ceiling:
            return False
        # By the hash alone: the time of a file also changes with its rights, and its content is the same.
        if hash_of(info) in (each[1] for each in self._round.known):
            self._round = self._round.with_read(info)
            return False
        return True


def _stored_late(name: str, last: str) -> FatalError:
    return FatalError(
        f"{name} was added or replaced, but it is not after {last}, up to which everything was read",
        suggestion='use on_replaced="reread" to read what is added or replaced, or "new-only" to leave it out',
    )
