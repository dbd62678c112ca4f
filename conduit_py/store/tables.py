"""Tables: what a store keeps for transactions (claims, state, outbox, seen keys, shards) and how it changes.

`Tables` is synchronous and runs inside a transaction of the store. `IntentOutbox`, `StoredKeys` and `Shards` are its
async interfaces: each call is one transaction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

import msgspec

from conduit_py.errors import Fenced, StaleToken
from conduit_py.store.claim import Changes, ClaimState, ShardChange

T = TypeVar("T")


class ShardState(msgspec.Struct, frozen=True):
    """One shard of leased work: the token of its owner, and how far it has come."""

    shard: str
    token: str
    position: bytes = b""
    done: bool = False
    updated: float = 0.0


class OutboxMessage(msgspec.Struct, frozen=True):
    """A message that waits in the outbox."""

    number: int
    """Grows with every message of a target."""
    owner: str
    target: str
    key: bytes
    body: bytes


class Tables(ABC):
    """The rules, the same for every store. Each method is one step of a transaction that the store runs.

    A method that raises one of our errors leaves the transaction unusable: the store undoes it whole.
    Times are seconds by the clock of the store, the same for all processes that share it.
    """

    @abstractmethod
    def claim(self, owner: str) -> ClaimState:
        """Raise the fence of the owner by one, so that nobody who claimed it before can commit."""

    @abstractmethod
    def claim_state(self, owner: str) -> ClaimState | None:
        """The current claim, unchanged; None when the owner was never claimed."""

    @abstractmethod
    def commit(self, owner: str, fence: int, changes: Changes) -> None:
        """Apply the changes of one transaction, as `Claim.commit` promises."""

    @abstractmethod
    def start_position(self, owner: str, source: str, position: bytes) -> None:
        """Save where a source starts, unless it has a position already."""

    @abstractmethod
    def reset(self, owner: str) -> None:
        """Let the owner start from the beginning: no checkpoint, state or positions. Earlier claims are fenced.

        Keys recorded in its own scopes, named OWNER/…, are forgotten too. The outbox stays. Fences and numbers go on
        growing, and one number is left out: another database may carry a transaction with that number, and that
        transaction must not be adopted any more.
        """

    @abstractmethod
    def get(self, owner: str, key: bytes) -> bytes | None: ...

    @abstractmethod
    def scan(self, owner: str, prefix: bytes) -> list[tuple[bytes, bytes]]: ...

    @abstractmethod
    def get_all(self, owner: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Those of the keys that are there, with their values, in any order."""

    @abstractmethod
    def page(self, owner: str, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The first keys with this prefix from `start` on, sorted, with their values."""

    @abstractmethod
    def measure(self, owner: str, prefixes: Sequence[bytes]) -> list[tuple[int, int]]:
        """For each prefix, how many keys begin with it, and the bytes of those keys and their values."""

    @abstractmethod
    def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        """Which of the keys are recorded in the scope."""

    @abstractmethod
    def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        """Record the keys; returns those that were recorded already."""

    @abstractmethod
    def forget(self, scope: str, age_seconds: float, limit: int) -> int:
        """Forget at most `limit` of the keys recorded longer ago than that, oldest first; returns how many."""

    @abstractmethod
    def targets(self) -> list[str]:
        """The targets for which messages wait, sorted."""

    @abstractmethod
    def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        """Lease a target for so many seconds and return its oldest messages; None if another holder has the lease.

        The lease covers the whole target, because two holders could not keep its order.
        """

    @abstractmethod
    def extend(self, target: str, holder: str, seconds: float) -> bool:
        """Have a lease last that long from now; False when it was let go of, or went to another meanwhile."""

    @abstractmethod
    def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        """Remove messages that reached the target; False, with nothing removed, if the lease is another's now."""

    @abstractmethod
    def release(self, target: str, holder: str) -> None:
        """Give up the lease at once. Releasing what is not held has no effect."""

    @abstractmethod
    def shards(self, scope: str) -> list[ShardState]:
        """Every shard of a scope, sorted by name."""

    @abstractmethod
    def open_shards(self, scope: str, names: Sequence[str], token: str) -> list[ShardState]:
        """Create those that are missing with this token, leave the others, return all in the order asked."""

    @abstractmethod
    def acquire_shards(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> list[ShardState]:
        """Put this token on those whose last change is at least that long ago, and return them as they are now.

        Shards that are missing or done are left out. A process that held one before fails at its next commit.
        """

    @abstractmethod
    def advance_shards(self, changes: Sequence[ShardChange]) -> list[ShardChange]:
        """Record progress outside of any transaction of a claim; gives the changes that were refused."""

    @abstractmethod
    def prune_shards(self, scope: str, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Forget shards older than that, then the oldest beyond `count_max`; returns how many.

        An unfinished shard is always kept while its last change is younger than `grace_seconds`.
        """


class TableAccess(Protocol):
    """Runs work on the tables: a store, or a stand-in for one."""

    async def transact(self, work: Callable[[Tables], T]) -> T:
        """Run `work` in one transaction, durable on return; one of our errors undoes it and is raised."""
        ...

    async def look(self, work: Callable[[Tables], T]) -> T:
        """Run `work`, which only reads, on what is durable."""
        ...


def shard_after(change: ShardChange, before: ShardState | None, now: float) -> ShardState:
    """The shard after the change, or StaleToken saying why there is none."""
    if before is None:
        raise StaleToken(change.scope, change.shard, "does not exist any more")
    if before.token != change.token:
        raise StaleToken(change.scope, change.shard, f"was acquired by {before.token!r}")
    if before.done:
        raise StaleToken(change.scope, change.shard, "is finished already")
    # A repetition of recorded progress: its output is committed already, and would be there twice.
    if change.start < before.position:
        raise StaleToken(change.scope, change.shard, f"has come to {before.position!r}, past {change.start!r}")
    return ShardState(change.shard, change.token, change.end, change.done, now)


def fenced_error(owner: str, fence: int, newer: int) -> Fenced:
    """The error for a commit under an earlier claim of `owner`."""
    return Fenced(
        f"{owner!r} was claimed again (fence {newer}) after this claim (fence {fence}); nothing was committed",
        suggestion="run a pipeline in one place at a time",
    )


class IntentOutbox:
    """Intents by target, those of each owner in the order of its commits, leased by one holder at a time."""

    def __init__(self, access: TableAccess) -> None:
        self._access = access

    async def targets(self) -> list[str]:
        """The targets for which messages wait, sorted."""
        return await self._access.look(lambda tables: tables.targets())

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        """Lease a target for so many seconds and return its oldest messages; None if another holder has the lease."""
        return await self._access.transact(lambda tables: tables.lease(target, holder, seconds, limit))

    async def extend(self, target: str, holder: str, seconds: float) -> bool:
        """Have a lease last that long from now; False when it was let go of, or went to another meanwhile."""
        return await self._access.transact(lambda tables: tables.extend(target, holder, seconds))

    async def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        """Remove messages that reached the target; False, with nothing removed, if the lease is another's now."""
        return await self._access.transact(lambda tables: tables.forwarded(target, holder, numbers))

    async def release(self, target: str, holder: str) -> None:
        """Give up the lease at once. Releasing what is not held has no effect."""
        await self._access.transact(lambda tables: tables.release(target, holder))


_FORGOTTEN_AT_ONCE = 10_000


class StoredKeys:
    """Keys by scope. Within a transaction they are recorded with `Changes.once`, elsewhere here."""

    def __init__(self, access: TableAccess) -> None:
        self._access = access

    async def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        """Which of the keys are durably recorded."""
        return await self._access.look(lambda tables: tables.known(scope, keys))

    async def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        """Durably record the keys; returns those that were recorded already.

        If two callers record a key at the same time, it is new to exactly one of them.
        """
        return await self._access.transact(lambda tables: tables.remember(scope, keys))

    async def forget(self, scope: str, age_seconds: float) -> int:
        """Forget what was recorded longer ago than that; returns how many keys it was."""
        forgotten = 0
        # In short transactions: one that deletes millions of keys would hold up every commit.
        while True:
            count = await self._access.transact(lambda tables: tables.forget(scope, age_seconds, _FORGOTTEN_AT_ONCE))
            forgotten += count
            if count < _FORGOTTEN_AT_ONCE:
                return forgotten


class Shards:
    """Shards by scope. Progress is recorded with `Changes.shards`, in the transaction that holds its output."""

    def __init__(self, access: TableAccess) -> None:
        self._access = access

    async def all(self, scope: str) -> list[ShardState]:
        """Every shard of a scope, sorted by name."""
        return await self._access.look(lambda tables: tables.shards(scope))

    async def open(self, scope: str, names: Sequence[str], token: str) -> list[ShardState]:
        """Create those that are missing with this token, leave the others, return all in the order asked."""
        return await self._access.transact(lambda tables: tables.open_shards(scope, names, token))

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float = 0) -> list[ShardState]:
        """Put this token on those whose last change is at least that long ago, and return them as they are now.

        Shards that are missing or done are left out. A process that held one before fails at its next commit.
        """
        return await self._access.transact(lambda tables: tables.acquire_shards(scope, names, token, idle_seconds))

    async def advance(self, changes: Sequence[ShardChange]) -> list[ShardChange]:
        """Record progress where no transaction carries it; gives the changes that were refused."""
        return await self._access.transact(lambda tables: tables.advance_shards(changes))

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Forget shards older than that, then the oldest beyond `count_max`; returns how many.

        An unfinished shard is always kept while its last change is younger than `grace_seconds`.
        """
        return await self._access.transact(
            lambda tables: tables.prune_shards(scope, age_seconds, count_max, grace_seconds)
        )
