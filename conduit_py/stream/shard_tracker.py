"""ShardTracker: records the shards of a source that shares its work with other runs, with every commit."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import trio

from conduit_py.sdk.source import SharedShard, SharedSource
from conduit_py.store.claim import ShardChange
from conduit_py.store.tables import Shards

log = logging.getLogger("conduit_py")


class ShardTracker:
    """The rows of a shared source in the state store: the owner and the progress of each shard.

    The source uses it as its table. A token begins with the id of its pipeline. `on_met` is called with the
    pipeline of another worker before the source continues a shard of that worker, or takes one as done. If that
    worker died, a staged destination may not show its last commit yet.
    """

    def __init__(self, source: SharedSource[Any], shards: Shards, home: str) -> None:
        self._source = source
        self._shards = shards
        self._pipeline = home.partition("/")[0]
        self._holders: dict[str, str] = {}
        self.on_met: Callable[[str], Awaitable[None]] = _do_nothing
        source.join(self, home)

    @property
    def scope(self) -> str:
        return self._source.scope

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[SharedShard]:
        rows = await self._shards.open(scope, names, token)
        self._holders = {row.shard: row.token for row in rows if row.token != token}
        await self._meet([row.shard for row in rows if row.done])
        return rows

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[SharedShard]:
        rows = await self._shards.acquire(scope, names, token, idle_seconds)
        # The former owners can commit nothing more. Their last commit must be visible before what follows it.
        await self._meet([row.shard for row in rows])
        return rows

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        return await self._shards.prune(
            scope, age_seconds=age_seconds, count_max=count_max, grace_seconds=grace_seconds
        )

    async def _meet(self, names: Iterable[str]) -> None:
        owners = {self._holders[name].partition("/")[0] for name in names if name in self._holders}
        for owner in sorted(owners - {self._pipeline}):
            await self.on_met(owner)

    def changes(self, positions: Iterable[Sequence[bytes]]) -> list[ShardChange]:
        """Return the changes for a commit of these positions, which is refused if another worker owns a row."""
        # I14: each change carries our token, and the store checks it inside the commit.
        return [
            ShardChange(self.scope, made.shard, made.token, made.start, made.end, made.done)
            for made in self._source.progress(list(chain.from_iterable(positions)))
        ]

    async def advance(self, positions: Iterable[Sequence[bytes]]) -> None:
        """Record the progress without a transaction. Shards that other workers have taken over are left to them."""
        for change in await self._shards.advance(self.changes(positions)):
            log.warning("another worker took over %s of %s and will repeat it", change.shard, change.scope)


async def _do_nothing(owner: str) -> None:
    await trio.lowlevel.checkpoint()
