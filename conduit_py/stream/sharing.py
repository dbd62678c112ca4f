"""Sharing: what a source that shares its work has to record with every commit."""

import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from conduit_py.sdk.shared_source import SharedSource
from conduit_py.store.claim import ShardChange
from conduit_py.store.shards import Shards

log = logging.getLogger("conduit_py")


class Sharing:
    """The rows of a shared source in the state store: who works on what, and how far it has come."""

    def __init__(self, source: SharedSource[Any], shards: Shards, home: str) -> None:
        self._source = source
        self._shards = shards
        source.join(shards, home)

    @property
    def scope(self) -> str:
        return self._source.scope

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
