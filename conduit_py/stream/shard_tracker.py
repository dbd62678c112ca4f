"""ShardTracker: the shards of a source that shares its work with other runs, recorded with every commit."""

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
    """The rows of a shared source in the state store: who works on what, and how far it has come.

    It is the table that the source sees. A token begins with the pipeline that it stands for. `on_met` is told
    the pipeline of another before the source goes on with work of that one, or takes it as done: if it is
    dead, something that it had committed may be unseen.
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
        # From now on they commit no more of it; what they did commit must be seen before what follows it.
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
        """What a commit of these positions changes. The transaction is refused if one of the rows is not ours."""
        return [
            ShardChange(self.scope, made.shard, made.token, made.start, made.end, made.done)
            for made in self._source.progress(list(chain.from_iterable(positions)))
        ]

    async def advance(self, positions: Iterable[Sequence[bytes]]) -> None:
        """Record the progress where there is no transaction to carry it: what was lost to others stays theirs."""
        for change in await self._shards.advance(self.changes(positions)):
            log.warning("%s of %s went to somebody else, who will repeat it", change.shard, change.scope)


async def _do_nothing(owner: str) -> None:
    await trio.lowlevel.checkpoint()
