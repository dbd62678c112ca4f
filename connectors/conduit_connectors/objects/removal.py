"""ObjectRemoval: removes or moves objects when their records are durable, and finishes that after a crash."""

import os
import threading
from collections.abc import Iterable
from hashlib import blake2b
from posixpath import basename, dirname, join, relpath

from conduit_connectors.objects.object_position import ConsumedObject, ObjectPosition
from conduit_connectors.objects.store import ObjectInfo, ObjectStore

WAITING_MAX = 64
WAITING_BYTES_MAX = 8 * 1024
"""How many objects may wait for their removal, and how long their names may be: they are in every position."""


class ObjectRemoval:
    """The objects that were read to their end, until they are gone.

    A position names those that may still be there when it is stored. So the next run removes them, and never one that
    was not read. An object that was replaced meanwhile has another mark, and stays.
    """

    def __init__(self, store: ObjectStore, folder: str, move_to: str | None) -> None:
        self._store = store
        self._folder = folder
        self._move_to = move_to
        # `ack` has a thread of its own.
        self._lock = threading.Lock()
        self._waiting: dict[int, ObjectInfo] = {}

    def __contains__(self, named: object) -> bool:
        with self._lock:
            return any((info.name, info.mark) == named for info in self._waiting.values())

    @property
    def waiting(self) -> tuple[ConsumedObject, ...]:
        with self._lock:
            return tuple(ConsumedObject(os.fsencode(info.name), info.mark) for info in self._waiting.values())

    @property
    def is_full(self) -> bool:
        waiting = self.waiting
        return len(waiting) >= WAITING_MAX or sum(len(each.name) for each in waiting) > WAITING_BYTES_MAX

    def add(self, number: int, info: ObjectInfo) -> None:
        """An object was read to its end. It is removed when a position behind it is acked."""
        with self._lock:
            self._waiting[number] = info

    def handle_ack(self, position: ObjectPosition) -> None:
        """Remove what is durable with this position."""
        number = position.found.round.number
        with self._lock:
            ready = [each for each in self._waiting if each < number or (each == number and position.done)]
            infos = [self._waiting[each] for each in ready]
        for each, info in zip(ready, infos, strict=True):
            self._remove(info.name, info.mark)
            # Only now: until it is gone, the positions must name it, and the listing must leave it out.
            with self._lock:
                del self._waiting[each]

    def finish_last_run(self, objects: Iterable[ConsumedObject]) -> None:
        for each in objects:
            self._remove(os.fsdecode(each.name), each.mark)

    def _remove(self, name: str, mark: str) -> None:
        info = self._store.find(name)
        if info is None or info.mark != mark:
            return
        if self._move_to is None:
            self._store.remove(name)
            return
        try:
            self._store.move(name, self._target(name, mark))
        except FileNotFoundError:
            return

    def _target(self, name: str, mark: str) -> str:
        """Return the new name. It is another one if an object is there already, and the same one after a crash."""
        assert self._move_to is not None
        below = basename(name) if name == self._folder else relpath(name, self._folder or ".")
        target = join(self._move_to, below)
        there = self._store.find(target)
        if there is None or there.mark == mark:
            return target
        stem, dot, suffix = basename(target).partition(".")
        tag = blake2b(mark.encode(), digest_size=4).hexdigest()
        return join(dirname(target), f"{stem}-{tag}{dot}{suffix}")
