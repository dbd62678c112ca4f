"""SharedSource: a source whose work several processes share, through a table in the state store."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import msgspec

from conduit_py.sdk.plugin import OptionsT
from conduit_py.sdk.source import Source


class Shard(Protocol):
    """One piece of work: whose it is, and how far it has come. Times are those of the store."""

    @property
    def shard(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def position(self) -> bytes: ...
    @property
    def done(self) -> bool: ...


class Progress(msgspec.Struct, frozen=True):
    """How far one piece of work has come with a commit. Refused if it does not carry the token any more."""

    shard: str
    token: str
    start: bytes
    end: bytes
    done: bool = False


class ShardTable(Protocol):
    """The pieces of work that are known, in the state store; shared by all who work on the same scope."""

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[Shard]:
        """Create those that are missing with this token, leave the others, return all in the order asked."""
        ...

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[Shard]:
        """Put this token on those that are not done and did not change for that long; return them.

        To be called with what the last `open` gave. What their last holder had committed is seen by then.
        """
        ...

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Forget old ones, never unfinished ones younger than the grace; returns how many."""
        ...


class SharedSource(Source[OptionsT]):
    """Takes its work from a place that others take from too, and reports progress piece by piece.

    The runtime calls `join` before `open`. What `progress` says about the positions of a commit becomes
    durable with that commit: in an exactly-once pipeline within the transaction, which is refused whole if
    a piece of work has gone to somebody else. `ack` follows the commit as with any source.
    """

    @property
    @abstractmethod
    def scope(self) -> str:
        """Names the work: those with the same scope, in whatever process, share it."""

    @abstractmethod
    def join(self, shards: ShardTable, home: str) -> None:
        """Use this table from now on. `home` names this source of this pipeline: a scope nobody else has.

        A token must begin with `home` and a slash, so that it tells whose it is.
        """

    @abstractmethod
    def progress(self, positions: Sequence[bytes]) -> Sequence[Progress]:
        """What these positions, which are about to be committed, mean for each piece of work, in order."""

    async def background(self) -> None:
        """Run beside `read` for as long as the run does, and be cancelled at its end: leases are kept here."""
