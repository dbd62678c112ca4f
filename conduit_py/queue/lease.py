"""Lease: keeps one delivery ours for as long as we work on it, and says when it is lost."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import trio

log = logging.getLogger("conduit_py.queue")

Extend: TypeAlias = Callable[[float], Awaitable[None]]
"""Asks the queue for so many seconds from now on."""


class LeaseTerms(msgspec.Struct, frozen=True):
    """How long leases are, and how early they are extended."""

    receive_seconds: float = 180.0
    """The first lease of a message: long enough to be read and committed in the common case."""
    extension_seconds: float = 60.0
    last_extension_seconds: float = 120.0
    """After the last record was read: long enough for its commit."""
    request_seconds: float = 3.0
    """How long the queue may take to answer."""
    margin_seconds: float = 1.0
    """How much earlier than necessary to ask."""

    @property
    def longest_seconds(self) -> float:
        """No lease is longer: for queues whose leases all have one length."""
        return max(self.receive_seconds, self.extension_seconds, self.last_extension_seconds)


class Lease:
    """Extended by `keep` before it runs out, until it is released or its last extension is made.

    A lost lease is not an error: somebody else may now work on the same, and the token in the commit
    decides whose work counts. It only says that going on is not worth it.
    """

    def __init__(self, extend: Extend, deadline: float, terms: LeaseTerms) -> None:
        self.deadline = deadline
        """By the clock of trio, and no later than the queue's own."""
        self.lost = False
        self.extensions = 0
        self._extend = extend
        self._terms = terms
        self._finishing = False
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    def finish(self) -> None:
        """Everything was read: keep it just long enough for the commit."""
        self._finishing = True
        self._changed.set()

    def release(self) -> None:
        """Extend it no more."""
        self._scope.cancel()

    async def keep(self) -> None:
        """Extend it as long as it is needed."""
        with self._scope:
            while not self._finishing and not self.lost:
                with trio.move_on_at(self._due_at):
                    await self._changed.wait()
                if not self._finishing:
                    await self._ask(self._terms.extension_seconds)
            if not self.lost and trio.current_time() + self._terms.last_extension_seconds > self.deadline:
                await self._ask(self._terms.last_extension_seconds)

    @property
    def _due_at(self) -> float:
        return self.deadline - self._terms.request_seconds - self._terms.margin_seconds

    async def _ask(self, seconds: float) -> None:
        asked_at = trio.current_time()
        if asked_at >= self.deadline:
            self.lost = True
            return
        try:
            with trio.fail_at(min(asked_at + self._terms.request_seconds, self.deadline)):
                await self._extend(seconds)
        except Exception as error:  # a border: whatever the queue says, the message may be another's now
            log.warning("a lease is lost: %s", error)
            self.lost = True
            return
        # Counted from when we asked, the deadline is never later than the queue's.
        self.deadline = asked_at + seconds
        self.extensions += 1


class Cooldown:
    """Remembers when a key may be used again. When it is full of keys that still cool down it grows."""

    def __init__(self, size_max: int = 1024) -> None:
        self._size_max = size_max
        self._until: OrderedDict[str, float] = OrderedDict()

    def ready(self, key: str, now: float, seconds: float) -> bool:
        """Whether the key may be used now; if so, not again for that long."""
        if self._until.get(key, now) > now:
            return False
        self._until.pop(key, None)
        if len(self._until) >= self._size_max:
            self._make_room(now)
        self._until[key] = now + seconds
        return True

    def __len__(self) -> int:
        return len(self._until)

    def _make_room(self, now: float) -> None:
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
        if len(self._until) >= self._size_max:
            self._size_max *= 2
