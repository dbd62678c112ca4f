"""Destinations: plain ones, transactional ones, and those whose records executors can prepare or stage."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self, TypeAlias

import msgspec

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import RecordRefused, TransientError, text_of
from conduit_py.sdk.plugin import Connector, OptionsT
from conduit_py.sdk.source import KeptOrder

FLUSH_SECONDS = 0.005
FLUSH_RECORDS_MAX = 16_384

Refusals: TypeAlias = Mapping[int, str | Exception]
"""Index in the batch → why that record was refused. Records not mentioned are accepted."""


class AckMode(Enum):
    """When a record given to `write` counts as durably handled."""

    WRITE = "write"
    """When `write` returns."""
    FLUSH = "flush"
    """When the next `flush` returns; the runtime paces them."""
    LATER = "later"
    """When `answers` returns it."""


class WriteGuarantee(Enum):
    """What a destination offers to exactly-once delivery."""

    AT_LEAST_ONCE = "plain"
    IDEMPOTENT = "idempotent by delivery key"
    TRANSACTIONAL = "writes in the store's transaction"
    STAGED = "stages, then applies"


class Answer(msgspec.Struct, frozen=True):
    """The later result of one message: handled, or refused with a reason."""

    message: MessageId
    refused: str | None = None


class DestinationConnector(Connector[OptionsT], ABC):
    """Writes records in the order given and reports which are durably handled.

    Calls come in this order, one at a time: `open`, then `write` and `flush`, `finish`, then `teardown`. Only
    `answers` runs beside the others, a sync one in a thread of its own. After an exception from `write`
    the whole batch is written again: at once if the node has a retry policy, else after a restart.
    """

    acks: ClassVar[AckMode] = AckMode.WRITE
    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.AT_LEAST_ONCE

    @property
    def takes(self) -> Any:
        """The type of `payload.after` that it takes: dict, bytes, None for absent, or a union; Any takes all.

        `check` reports a pipeline in which every record that arrives is of another type.
        """
        return Any

    @property
    def order(self) -> KeptOrder:
        """Which of its records a reader finds in the order of `write`, if it reads them as they become visible.

        `check` prints it. A table has its rows in order if none is visible before those that were written earlier.
        """
        return KeptOrder.EVERYTHING

    @property
    def flush_seconds(self) -> float:
        """How long records wait for a `flush` while more of them follow (AckMode.FLUSH).

        More means fewer flushes. A destination whose `flush` completes a file wants few of them. In an exactly-once
        pipeline a longer time than usual has no effect: each transaction is flushed when it ends.
        """
        return FLUSH_SECONDS

    @property
    def flush_records(self) -> int:
        """How many records may wait for a `flush`. With a longer `flush_seconds`, at most half of a source's window."""
        return FLUSH_RECORDS_MAX

    def open(self) -> Awaitable[None] | None:
        """Get ready to write."""

    @abstractmethod
    def write(self, batch: Batch) -> Awaitable[Refusals | None] | Refusals | None:
        """Write the records of `batch` in order; return the refused ones, or None when there are none.

        The records are shared with other destinations: do not change them.
        """

    def flush(self) -> Awaitable[None] | None:
        """Return when everything written is durable (AckMode.FLUSH), or is on its way (AckMode.LATER)."""

    def finish(self) -> Awaitable[None] | None:
        """Called after the last `write` of a run: do not wait for more records (AckMode.LATER only).

        Not called if the run ends with an error or is stopped by force.
        """

    def answers(self) -> Awaitable[Sequence[Answer | Batch]] | Sequence[Answer | Batch]:
        """Wait for the next answers, in any order, each message once (AckMode.LATER only).

        A batch in place of an answer means that all of its messages without an answer are handled. That costs the
        same for one message and for thousands.
        """
        raise NotImplementedError(f"{type(self).__qualname__} declares AckMode.LATER but has no answers()")


def refusal_text(reason: str | Exception) -> str:
    """Return the reason as text."""
    # Text, not the exception: an exception keeps its traceback and every local in it alive for each nack.
    if isinstance(reason, str):
        return reason
    if isinstance(reason, RecordRefused):
        return f"{reason.message} ({reason.suggestion})" if reason.suggestion else reason.message
    return f"{type(reason).__name__}: {text_of(reason)}"


class StagedDestination(DestinationConnector[OptionsT]):
    """Writes records where no reader sees them, and makes them visible after the transaction is committed.

    In an exactly-once pipeline the calls come one at a time and in this order: `open`, `begin`, then for
    each transaction `write` (any number of times), `stage`, and after the commit `apply`; the next
    transaction is not written before that. A record counts as handled when `write` returns, whatever
    the value of `acks`: `stage` makes it durable. A run that ends before its commit is only torn down; `begin`
    of the next run discards what it wrote.

    In any other pipeline `begin` is not called, and `write` and `flush` do what they do in a plain
    destination: readers see the records at once.
    """

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.STAGED

    @property
    def claims(self) -> str | None:
        """What is this destination's own in an exactly-once pipeline, in words; None if nothing has to be.

        For example a table whose commits carry the id of the pipeline. Two destinations of a pipeline that claim the
        same thing are a problem: each would take the work of the other for its own, or fence it. It is asked before
        `open`, and must name the same thing in the same words whatever the way that the options name it.
        """
        return None

    @abstractmethod
    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> Awaitable[None] | None:
        """Start to work for `owner`, a pipeline, under `fence`, which grows with every start of the pipeline.

        Apply `intents`, those of the last committed transaction, which may have been applied already; then
        discard every other stage of this owner with a lower or equal fence. A process that works under a
        lower fence may still be alive: what it does from now on must have no effect, or raise Fenced.
        """

    @abstractmethod
    def stage(self) -> Awaitable[bytes | None] | bytes | None:
        """Make everything written since the last `stage` durable and keep it invisible.

        Returns the intent: bytes of any form that let `apply` make it visible. The intent is committed with the
        transaction, so data inside the intent is durable too. Returns None if nothing was written.
        """

    @abstractmethod
    def apply(self, intent: bytes) -> Awaitable[None] | None:
        """Make everything that `intent` names visible, in the order written, and durable before the return.

        Called after the commit, and again after a restart, when it must have no further effect. The intent is
        committed: an error here is repaired only by applying it again.
        """

    def apply_for(self, owner: str, intent: bytes) -> Awaitable[bool] | bool:
        """Apply the last committed intent of another pipeline, whose shared work continues here.

        `owner` may have died before it applied the intent, or may be about to apply it too: the records must become
        visible once. May be called at any time after `begin`, beside other calls. Returns False if `owner` writes
        to another place; it then applies the intent itself when it starts again.
        """
        return False


class TransactionalDestination(StagedDestination[OptionsT]):
    """Keeps records in a database that can hold the checkpoint too, so that one commit makes both durable.

    In an exactly-once pipeline `open` is followed by `claim`. The first such destination of a pipeline is
    its home, unless `locks` prevents that. There each transaction is `write` (any number of times), then `commit`;
    `begin`, `stage` and `apply` are not called. Every other one is used as a staged destination.
    """

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.TRANSACTIONAL

    @property
    def locks(self) -> str | None:
        """The name of what an open transaction here locks against all other writers; None if it locks nothing.

        If several destinations of a pipeline lock the same thing, all of them are staged: a home would block them.
        """
        return None

    @abstractmethod
    def claim(self, owner: str, fence: int) -> Awaitable[bytes | None] | bytes | None:
        """Record durably that `owner` now works under `fence`, and return the `changes` of its last `commit`.

        From now on a `commit` under a lower fence fails. Raises Fenced if this database has a higher fence of
        this owner. Returns None if the owner never committed here.
        """

    @abstractmethod
    def commit(self, changes: bytes) -> Awaitable[None] | None:
        """Commit everything written since the last `commit`, and `changes`, in one transaction of this database.

        `changes` belongs to the runtime and replaces that of the last commit. Raises Fenced, and changes nothing,
        if this owner was claimed again since; check that in the transaction itself. Also called when nothing
        was written.
        """


class PieceRefused(TransientError):
    """A destination refused a prepared piece because of one record in it. Nothing of the piece was written."""

    code = "run.piece_refused"


class PreparingDestination(DestinationConnector[OptionsT]):
    """Lets executors of Spark prepare the bytes to write, so that the driver has little left to do.

    On one machine it is a plain destination. On Spark each task calls `prepare` of its own instance, which is never
    opened and uses nothing outside its process. It sends the result of `prepared` to the driver. The driver calls
    `take` in place of `write`, in the order of the records. What `take` writes is flushed, staged, committed and
    applied as after `write`. Dead letters that are replayed still arrive through `write`, one by one.
    """

    def prepares(self, *, exactly_once: bool) -> bool:
        """Return True if it can prepare records with its options, in an exactly-once pipeline or any other."""
        return True

    def equipment(self) -> bytes:
        """Return what the instances of executors need beyond the options, for `equip`.

        Called on the driver, on an instance that is not opened, after Spark has started. It may block.
        """
        return b""

    def equip(self, equipment: bytes) -> None:
        """Receive the driver's `equipment`, before the first `prepare`."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Refusals | None:
        """Prepare records, after those of earlier calls. Returns the refused ones, as `write` does."""

    @abstractmethod
    def prepared(self) -> bytes:
        """Return everything prepared since the first `prepare`, as one piece."""

    @abstractmethod
    def take(self, pieces: Sequence[bytes]) -> Awaitable[None] | None:
        """Write the records of these pieces in order. They count as handled when those of a `write` would.

        Raises PieceRefused if one of the records is refused. The pipeline then starts again from its last commit
        and calls `write`, which reports the refused record.
        """


class PartId(msgspec.Struct, frozen=True, array_like=True):
    """A part of the input of a run, whichever attempt of a task reads it.

    `source` is the place of its source in the pipeline. The numbers of a source grow with its records.
    """

    source: int
    number: int


class StageCleared(msgspec.Struct, frozen=True):
    """How many staged files or tables a command has removed, and how many are left, which may still be needed."""

    removed: int = 0
    left: int = 0

    def plus(self, other: "StageCleared") -> "StageCleared":
        return StageCleared(self.removed + other.removed, self.left + other.left)


class ManyWriterDestination(PreparingDestination[OptionsT], StagedDestination[OptionsT]):
    """Lets tasks of Spark stage what they prepare, at a place that all of them reach: no record passes the driver.

    On one machine it is a staged destination. On Spark each task calls `open_part` of its own instance, then `prepare`,
    then `prepared`. That makes the part durable where no reader sees it, and returns its manifest: some hundred bytes,
    however many records there are. The driver calls `take` with the manifests of parts, in order, in place of `write`.
    In an exactly-once pipeline `stage` then returns an intent that names them, and `apply` makes them visible; in any
    other `flush` does.

    Spark may run a part several times, and a task may outlive its run. So each `open_part` must stage under names of
    its own, and only what a manifest names that the driver has taken may ever become visible.
    """

    @abstractmethod
    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        """Return why tasks cannot stage with these options; None if they can. `check` prints it."""

    def for_tasks(self) -> Self:
        """Return the connector that tasks get, with no credentials in its options that a task does not use."""
        return self

    @abstractmethod
    def grant(self) -> Awaitable[bytes] | bytes:
        """Return what `open_part` needs to stage for this run.

        Called on the driver, after `open` and `begin`, once for each source. What earlier runs have staged for this
        owner, and no commit names, must be gone by then.
        """

    @abstractmethod
    def open_part(self, grant: bytes, part: PartId) -> None:
        """Get ready to stage a part, on an executor, on an instance that is not opened.

        Raises PieceRefused if the place of the driver cannot be reached from here: the driver then writes everything.
        """

    @abstractmethod
    def discard_part(self) -> None:
        """Release everything, and discard what was prepared and not staged. Called at the end of each task."""

    @abstractmethod
    def clear_staged(self, age_seconds: float, owner: str | None) -> Awaitable[StageCleared] | StageCleared:
        """Remove what was staged at this place and no commit can name any more; create nothing.

        That is what a run without an owner has staged at least so long ago. It is also what any owner has staged under
        a fence below that of its last run there. With an `owner` also all that it has staged at least so long ago: a
        pipeline that is gone, whose last commit nobody will apply. Called on an instance that is not opened, for a
        command.
        """

    def prepares(self, *, exactly_once: bool) -> bool:
        return self.stages_remotely(exactly_once=exactly_once) is None
