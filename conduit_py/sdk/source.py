"""Sources: SourceConnector, and what one may offer beyond it (input that can be split, work that is shared)."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec

from conduit_py.record import Record
from conduit_py.sdk.plugin import Connector, OptionsT


class QueueCounts(msgspec.Struct):
    """`held` is how many leases are kept just now; the others only grow while a source runs."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    taken_over: int = 0
    """Pieces of work that somebody else had begun and left."""
    duplicates: int = 0
    """Messages that were delivered though their work was done, or begun, already."""
    unreadable: int = 0
    """Messages that are not what they should be."""
    failed: int = 0
    """Objects that could not be opened or read."""

    def plus(self, earlier: "QueueCounts | None") -> "QueueCounts":
        """A new one with the counts of both; what is held is held now."""
        if earlier is None:
            return msgspec.structs.replace(self)
        counts = {name: getattr(self, name) + getattr(earlier, name) for name in self.__struct_fields__}
        return QueueCounts(**counts | {"held": self.held})


class EndOfSource(Exception):
    """Raised by `read` when a bounded source has no more records: the source is completed, not failed."""


class NothingYet(Exception):
    """Raised by `read` when there is no record now: the runtime asks again after a growing pause."""


class Reading(msgspec.Struct):
    """Records of which some could not be understood: `refused` maps their index to the reason.

    A refused record carries what was read, as raw bytes, and its position: it becomes a dead letter.
    """

    records: list[Record]
    refused: Mapping[int, str]


class Lag(msgspec.Struct, frozen=True):
    """How much there is that a source has not read yet: what of it is known, in units that it knows."""

    records: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    """How long ago the oldest of it came to be."""


class SourceConnector(Connector[OptionsT], ABC):
    """Reads records in a stable order and can say where it is.

    Calls come in this order, never two of `open`, `read` and `teardown` at once:
    `open`, `read` again and again, `stop`, `teardown`. `ack` may be called while `read`
    waits; a sync `ack` has a thread of its own for that.
    """

    resumable: ClassVar[bool] = True
    """Whether `open` with the position of a record continues exactly after that record."""
    tally: QueueCounts | None = None
    """What a source over a shared queue counts while it runs, for metrics and the page."""

    def open(self, position: bytes | None) -> Awaitable[None] | None:
        """Get ready to read what follows `position`; None is from the beginning."""

    def start_position(self) -> Awaitable[bytes | None] | bytes | None:
        """Return the position just before the first record, after `open(None)` and before the first `read`.

        The runtime makes it durable before it reads. Return one if the beginning may move before the first
        commit, as that of a log which is rotated. `open` with it must read what `open(None)` would have read.
        None, the default: the beginning is the same at every start.
        """
        return None

    @abstractmethod
    def read(self, n: int) -> "Awaitable[list[Record] | Reading] | list[Record] | Reading":
        """Wait for records and return at least one and at most `n`, in order, each with its own position.

        Raise EndOfSource when there will never be more, NothingYet when there is none now. A read that
        is cancelled (async) or told to `stop` must not have lost a record for the next run.
        """

    def ack(self, positions: Sequence[bytes]) -> Awaitable[None] | None:
        """Everything up to the last of these positions is durably handled: called in order, once each."""

    def lag(self) -> Awaitable[Lag | None] | Lag | None:
        """How much there is that `read` has not returned yet; None if that is not known.

        Asked every few seconds between `open` and `teardown`, beside all other calls: a sync one runs in a
        thread of its own, and may be under way while `teardown` is called. What it raises is logged.
        """
        return None

    def stop(self) -> Awaitable[None] | None:
        """Make a waiting `read` return what it has or raise EndOfSource.

        Without a `stop` of its own, an async source has its waiting `read` cancelled instead.
        """


class SplittableSource(SourceConnector[OptionsT]):
    """Can say where its next stretch of input lies without reading it, so that many machines read at once.

    On one machine it is a source like any other. On Spark the driver calls `open` and then `split` in place of
    `read`; each part goes to an executor, where another instance is given it with `open_part` and then read to its
    end. The records of all parts, one after another, must be those that `read` would have given, with the same
    positions: so a pipeline may go from one engine to the other and on from where it was.
    """

    def splits(self) -> bool:
        """Whether it can be split with the options it has."""
        return True

    @abstractmethod
    def split(self, size: int) -> Awaitable[bytes] | bytes:
        """The next part, of about `size` bytes of input, after the position given to `open` and all parts before.

        Raises EndOfSource when there will never be more, NothingYet when there is none now. It must not wait.
        """

    @abstractmethod
    def open_part(self, part: bytes) -> Awaitable[None] | None:
        """Get ready to read one part, in place of `open`: after its last record `read` raises EndOfSource."""


class SharedShard(Protocol):
    """One piece of work: whose it is, and how far it has come. Times are those of the store."""

    @property
    def shard(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def position(self) -> bytes: ...
    @property
    def done(self) -> bool: ...


class ShardProgress(msgspec.Struct, frozen=True):
    """How far one piece of work has come with a commit. Refused if it does not carry the token any more."""

    shard: str
    token: str
    start: bytes
    end: bytes
    done: bool = False


class ShardTable(Protocol):
    """The pieces of work that are known, in the state store; shared by all who work on the same scope."""

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[SharedShard]:
        """Create those that are missing with this token, leave the others, return all in the order asked."""
        ...

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[SharedShard]:
        """Put this token on those that are not done and did not change for that long; return them.

        To be called with what the last `open` gave. What their last holder had committed is seen by then.
        """
        ...

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Forget old ones, never unfinished ones younger than the grace; returns how many."""
        ...


class SharedSource(SourceConnector[OptionsT]):
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
    def progress(self, positions: Sequence[bytes]) -> Sequence[ShardProgress]:
        """What these positions, which are about to be committed, mean for each piece of work, in order."""

    async def background(self) -> None:
        """Run beside `read` for as long as the run does, and be cancelled at its end: leases are kept here."""
