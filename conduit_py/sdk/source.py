"""Sources: SourceConnector, sources whose input can be split, and sources that share their work."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from conduit_py.errors import FleetError
from conduit_py.payloads import Payloads
from conduit_py.record import CollectionSchema, Record
from conduit_py.sdk.plugin import Connector, OptionsT

Records: TypeAlias = list[Record] | Payloads
"""The records of one read, as a list or in columns."""


class KeptOrder(Enum):
    """Which records of a source, or at a destination, keep their order; between two of these things there is none."""

    EVERYTHING = "everything"
    PARTITION = "partition"
    KEY = "key"
    GROUP = "message group"
    OBJECT = "object"
    NOTHING = "nothing"


class QueueCounts(msgspec.Struct):
    """Counts of a source over a queue. `held` is the number of leases held now; the others only grow."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    taken_over: int = 0
    """Shards that another worker began and abandoned."""
    duplicates: int = 0
    """Messages delivered again after their work was begun or done."""
    unreadable: int = 0
    """Messages whose body could not be parsed."""
    failed: int = 0
    """Objects that could not be opened or read."""

    def plus(self, earlier: "QueueCounts | None") -> "QueueCounts":
        """Return the counts of both runs; `held` is that of this one."""
        if earlier is None:
            return msgspec.structs.replace(self)
        counts = {name: getattr(self, name) + getattr(earlier, name) for name in self.__struct_fields__}
        return QueueCounts(**counts | {"held": self.held})


class EndOfSource(Exception):
    """Raised by `read` when a bounded source has no more records: the source is completed, not failed."""


class NothingYet(Exception):
    """Raised by `read` when there is no record now: the runtime calls `read` again after a growing pause."""


class Reading(msgspec.Struct):
    """What `read` returns, if it is more than records that could all be parsed."""

    records: Records
    refused: Mapping[int, str] = {}
    """The index of each record that could not be parsed, and the reason. Such a record has the raw bytes that were
    read and its position. It becomes a dead letter."""
    position: bytes | None = None
    """Where to continue after all of `records`, which may be empty: progress without a record, as from a keepalive.

    It is stored and acked after everything before it, like the position of a record, unless a later record or position
    comes first. It must differ from the positions of all records. A reading of positions only is stored about once
    a second.
    """
    continues: bool = False
    """True if the next read continues the group that the last of these records belongs to.

    A group is what the source's system changed at once: a transaction. A reading never has the end of one group and
    the beginning of a group that it does not end. It may have several whole groups. Declare `has_groups`.
    """
    schemas: Sequence[CollectionSchema] = ()
    """The schemas that hold from the first of these records on. A reading has no records of before a change."""


class Lag(msgspec.Struct, frozen=True):
    """How much input a source has not read yet, in the units that it can measure."""

    records: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    """The age of the oldest unread record."""
    retained_bytes: int | None = None
    """What the source's system keeps until this source has read it, such as the log behind a replication slot."""
    partitions: Mapping[str, int] = {}
    """The unread records of each partition, by a name that `locate_record` uses too."""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """What an operator wants to be read as a whole, beside the changes that a source reads."""

    collection: str
    where: str | None = None
    """Which records of the collection, in the language of the source's system; None: all of them."""


class SnapshotRefused(FleetError):
    """The source does not take a request for a snapshot; the pipeline goes on. Raised by `request_snapshot`."""

    code = "snapshot.refused"


class SourceConnector(Connector[OptionsT], ABC):
    """Reads records in a stable order, each with a position to resume from.

    Calls come in this order, never two of `open`, `read` and `teardown` at once:
    `open`, `read` again and again, `stop`, `teardown`. `ack` may be called while `read`
    waits; a sync `ack` has a thread of its own for that.
    """

    resumable: ClassVar[bool] = True
    """True if `open` with the position of a record continues exactly after that record."""
    has_groups: ClassVar[bool] = False
    """True if `read` tells by `Reading.continues` which records belong together. It allows `atomic=True`.

    With `atomic=True` such a source gets acks only for some positions, always for the last of several records.
    """
    repeatable: ClassVar[bool] = True
    """True if a record has the same position whenever it is read. False if records of several partitions mix in any
    order: then delivery keys differ too, and a destination that is idempotent by them cannot recognise a repeat."""
    repeatable_hint: ClassVar[str] = "write its records to a journal first, and read that in another pipeline"
    """What to do where it must be `repeatable` and is not. Name the options that make it so, if there are any."""
    others_may_repeat: ClassVar[bool] = False
    """True if others go on with its work when it dies, from progress that is not a part of its commit: they repeat
    records that it has committed, so no pipeline can promise more than at-least-once for it."""
    follows_others: ClassVar[bool] = False
    """True if it ends when the other sources of its pipeline have ended, as `others_done` tells."""
    others_done: Callable[[], bool] = staticmethod(lambda: False)
    """True if all sources that do not follow others have ended and everything of them is settled; set before `open`."""
    queue_counts: QueueCounts | None = None
    """The counts of a source over a shared queue, for metrics and the page."""
    payload_type: type[msgspec.Struct] | None = None
    """The type of payload that the first processor takes, set before `open`. A source that decodes into it saves the
    conversion. What does not fit stays what it is, and the processor refuses it with the reason."""

    @property
    def endless(self) -> bool:
        """True if `read` never raises EndOfSource with these options. Such a source cannot have a schedule."""
        return False

    @property
    def gives(self) -> Any:
        """The type of `payload.after` of all records: dict, bytes, None for absent, or a union; Any if it depends.

        `check` reports a pipeline in which the next node can take none of them.
        """
        return Any

    @property
    def order(self) -> KeptOrder:
        """Which of its records `read` returns in the order of the source's system. `check` prints it."""
        return KeptOrder.EVERYTHING

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
    def read(self, n: int) -> "Awaitable[Records | Reading] | Records | Reading":
        """Wait for records and return at least one and at most `n`, in order, each with its own position.

        A `Reading` may also have progress without a record, the boundaries of groups, and schemas.
        `Payloads` in place of a list saves the making of records that nobody looks at.
        Raise EndOfSource when there will never be more, NothingYet when there is none now. A read that
        is cancelled (async) or ended by `stop` must not lose a record for the next run.
        """

    def ack(self, positions: Sequence[bytes]) -> Awaitable[None] | None:
        """Everything up to the last of these positions is durably handled: called in order, once each."""

    def lag(self) -> Awaitable[Lag | None] | Lag | None:
        """Return how much input `read` has not returned yet; None if that cannot be measured.

        Called every few seconds between `open` and `teardown`, beside all other calls: a sync one runs in a
        thread of its own, and may still run while `teardown` is called. Its exceptions are logged.
        """
        return None

    async def request_snapshot(self, request: SnapshotRequest) -> None:
        """Take a request to read a collection as a whole while the pipeline runs; return when it is taken.

        Called in the event loop between `open` and `teardown`, one call at a time, while an async `read` may be
        waiting. Make that `read` return. The last position of the next reading must have the request, so that it
        survives a crash when that position is stored: use progress if there is no record to return.

        Raise SnapshotRefused, with a suggestion, for a collection or a condition that cannot be read: the pipeline
        goes on. The same request again, before it is begun, is one request. The default refuses every request.
        """
        raise SnapshotRefused(
            "this source does not read snapshots on request",
            suggestion="stop the pipeline and reset the position of the source to read everything again",
        )

    def check_position(self, position: bytes) -> None:
        """Raise FatalError if `open` can never go on after this position.

        Called on an instance that is never opened, before a position from an operator is stored. It looks at the
        bytes only and does not block. The default accepts everything.
        """

    def locate_record(self, position: bytes) -> str | None:
        """Return where the record with this position is, for people: `orders.jsonl line 17`; None if that is unknown.

        Called on an instance that is never opened, in a thread, when a message about the record is made. It may
        read, but not without a limit: after some seconds nobody waits for it.
        """
        return None

    def reads_alone(self) -> str | None:
        """Return why one process has to read all of it, with these options; None if its input can be split.

        `check` prints it for a pipeline on Spark. Only a SplittableSource may return None.
        """
        return "its records have one order, and where a part of them begins is known only by reading"

    def stop(self) -> Awaitable[None] | None:
        """Make a waiting `read` return what it has or raise EndOfSource.

        Without a `stop` of its own, an async source has its waiting `read` cancelled instead.
        """


class SplittableSource(SourceConnector[OptionsT]):
    """Can locate its next part of input without reading it, so that many machines read at once.

    On one machine it is a plain source. On Spark the driver calls `open` and then `split` in place of `read`. Each
    part goes to an executor, where another instance gets `open_part` and is read to its end. The records of all
    parts, in order, must be those that `read` would return, with the same positions: a pipeline may change
    its engine and continue from its last position.
    """

    @property
    def acks_last(self) -> bool:
        """True if the last position of a part is enough for `ack`. Else a task returns the position of each record."""
        return False

    def reads_alone(self) -> str | None:
        return None

    def splits(self) -> bool:
        """Return True if it can be split with its options: if there is no reason that it `reads_alone`."""
        return self.reads_alone() is None

    @abstractmethod
    def split(self, size: int) -> Awaitable[bytes] | bytes:
        """The next part, of about `size` bytes of input, after the position given to `open` and all parts before.

        Raises EndOfSource when there will never be more, NothingYet when there is none now. It must not wait.
        """

    @abstractmethod
    def open_part(self, part: bytes) -> Awaitable[None] | None:
        """Get ready to read one part, in place of `open`: after its last record `read` raises EndOfSource."""


class SharedShard(Protocol):
    """One shard of shared work: the token of its worker, and its last committed position."""

    @property
    def shard(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def position(self) -> bytes: ...
    @property
    def done(self) -> bool: ...


class ShardProgress(msgspec.Struct, frozen=True):
    """The progress of one shard in a commit. The commit is refused if the shard has another token now."""

    shard: str
    token: str
    start: bytes
    end: bytes
    done: bool = False


class ShardTable(Protocol):
    """The shards in the state store. All workers of the same scope share them."""

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[SharedShard]:
        """Create the missing shards with this token, leave the others; return all in the order of `names`."""
        ...

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[SharedShard]:
        """Give this token to the shards that are not done and did not change for `idle_seconds`; return them.

        Call it with names that `open` returned. Before it returns, the last committed intent of each former
        worker is applied, in case that worker died before it applied the intent.
        """
        ...

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        """Delete old shards, but no unfinished shard younger than `grace_seconds`; return how many."""
        ...


class SharedSource(SourceConnector[OptionsT]):
    """Shares its work with other workers and reports the progress of each shard.

    The runtime calls `join` before `open`. The result of `progress` for the positions of a commit becomes
    durable with that commit. In an exactly-once pipeline that is the transaction, which is refused as a whole if
    another worker has taken over a shard. `ack` follows the commit as with any source.
    """

    @property
    @abstractmethod
    def scope(self) -> str:
        """The name of the shared work. Workers with the same scope share it, in any number of processes."""

    @abstractmethod
    def join(self, shards: ShardTable, name: str) -> None:
        """Use this table from now on. `name` is that of this source in this pipeline: no other source has it.

        A token must begin with `name` and a slash, so that a later run recognises its own shards.
        """

    @abstractmethod
    def progress(self, positions: Sequence[bytes]) -> Sequence[ShardProgress]:
        """Return the progress of each shard up to these positions, which are about to be committed, in order."""

    async def background(self) -> None:
        """Run beside `read` until the run ends and cancels it. Leases are extended here."""
