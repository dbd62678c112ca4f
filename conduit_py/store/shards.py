"""Shards: pieces of leased work, whose they are and how far they have come."""

from collections.abc import Sequence

from conduit_py.store.claim import ShardChange
from conduit_py.store.tables import Access, Shard


class Shards:
    """Shards by scope. Progress is recorded with `Changes.shards`, in the transaction that holds its output."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def all(self, scope: str) -> list[Shard]:
        """Every shard of a scope, sorted by name."""
        return await self._access.look(lambda tables: tables.shards(scope))

    async def open(self, scope: str, names: Sequence[str], token: str) -> list[Shard]:
        """Create those that are missing with this token, leave the others, return all in the order asked."""
        return await self._access.transact(lambda tables: tables.open_shards(scope, names, token))

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float = 0) -> list[Shard]:
        """Put this token on those whose last change is at least that long ago, and return them as they are now.

        Shards that are missing or done are left out. Whoever held one before fails at its next commit.
        """
        return await self._access.transact(lambda tables: tables.acquire_shards(scope, names, token, idle_seconds))

    async def advance(self, changes: Sequence[ShardChange]) -> list[ShardChange]:
        """Record progress where no transaction carries it; gives the changes that were refused."""
        return await self._access.transact(lambda tables: tables.advance_shards(changes))

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Forget shards older than that, then the oldest beyond `count_max`; returns how many.

        An unfinished one is kept while its last change is younger than the grace, whatever the rest says.
        """
        return await self._access.transact(
            lambda tables: tables.prune_shards(scope, age_seconds, count_max, grace_seconds)
        )
