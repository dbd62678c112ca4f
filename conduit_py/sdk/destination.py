"""Destinations: plain ones, those that take part in transactions, and those whose records can be prepared elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import ClassVar, TypeAlias

import msgspec

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import RecordRefused, TransientError
from conduit_py.sdk.plugin import Connector, OptionsT

Refusals: TypeAlias = Mapping[int, str | Exception]
"""Index in the batch → why that record was refused. Records not mentioned are accepted."""


class AckMode(Enum):
    """When a record given to `write` counts as durably handled."""

    WRITE = "write"
    """When `write` returns."""
    FLUSH = "flush"
    """When the next `flush` returns; the runtime paces them."""
    LATER = "later"
    """When `answers` says so."""


class WriteGuarantee(Enum):
    """What a destination offers to exactly-once delivery."""

    AT_LEAST_ONCE = "plain"
    IDEMPOTENT = "idempotent by delivery key"
    TRANSACTIONAL = "writes in the store's transaction"
    STAGED = "stages, then applies"


class Answer(msgspec.Struct, frozen=True):
    """What a destination says later about one message: handled, or refused with a reason."""

    message: MessageId
    refused: str | None = None


class DestinationConnector(Connector[OptionsT], ABC):
    """Writes records in the order given and says which are durably handled.

    Calls come in this order, one at a time: `open`, then `write` and `flush`, `finish`, then `teardown`. Only
    `answers` runs beside the others, a sync one in a thread of its own. An exception from `write` means
    that nothing is known about the batch: the whole batch is written again, now if the node has a retry
    policy, else after a restart.
    """

    acks: ClassVar[AckMode] = AckMode.WRITE
    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.AT_LEAST_ONCE

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
        """Nothing more will be written in this run: do not wait for more (AckMode.LATER only).

        A run that ends with an error, or by force, ends without it.
        """

    def answers(self) -> Awaitable[Sequence[Answer | Batch]] | Sequence[Answer | Batch]:
        """Wait for the next answers, in any order, each message once (AckMode.LATER only).

        A batch in place of an answer says that all of its messages that had no answer yet are handled: that costs
        the same for one message and for thousands.
        """
        raise NotImplementedError(f"{type(self).__qualname__} says AckMode.LATER but has no answers()")


def refusal_text(reason: str | Exception) -> str:
    """The reason as text: tracebacks held for every nack cost more than the work itself."""
    if isinstance(reason, str):
        return reason
    if isinstance(reason, RecordRefused):
        return f"{reason.message} ({reason.suggestion})" if reason.suggestion else reason.message
    return f"{type(reason).__name__}: {reason}"


class StagedDestination(DestinationConnector[OptionsT]):
    """Writes records where no reader sees them yet, and shows them once the transaction is committed.

    In an exactly-once pipeline the calls come one at a time and in this order: `open`, `begin`, then for
    each transaction `write` (any number of times), `stage`, and after the commit `apply`; the next
    transaction is not written before that. A record counts as handled when `write` returns, whatever
    `acks` says: `stage` makes it durable. A run that ends before its commit just tears down; the next
    one's `begin` discards what it left.

    In any other pipeline `begin` is not called, and `write` and `flush` do what they do in a plain
    destination: readers see the records at once.
    """

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.STAGED

    @abstractmethod
    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> Awaitable[None] | None:
        """Start to work for `owner`, a pipeline, under `fence`, which grows with every start of it.

        Apply `intents`, those of the last committed transaction, which may have been applied already; then
        discard every other stage of this owner with a lower or equal fence. A process that works under a
        lower fence may still be alive: what it does from now on must have no effect, or raise Fenced.
        """

    @abstractmethod
    def stage(self) -> Awaitable[bytes | None] | bytes | None:
        """Make everything written since the last `stage` durable and keep it invisible.

        Returns the intent that will make it visible, in whatever form; it is committed with the transaction.
        None when nothing was written. What the intent itself carries is durable with it.
        """

    @abstractmethod
    def apply(self, intent: bytes) -> Awaitable[None] | None:
        """Make what `intent` stands for visible, in full, in the order written; durable on return.

        Called after the commit, and again after a restart, when it must have no further effect. The intent is
        committed: an error here is repaired only by applying it again.
        """

    def apply_for(self, owner: str, intent: bytes) -> Awaitable[bool] | bool:
        """Make visible what another pipeline committed last and may not have shown: work that it shared goes on here.

        `owner` may be dead, or alive and about to apply it as well; either way it becomes visible once. It may
        come at any time after `begin`, beside other calls. False when `owner` does not write to the same
        place as this: then it is for itself to show it when it starts again.
        """
        return False


class TransactionalDestination(StagedDestination[OptionsT]):
    """Keeps records in a database that can hold the checkpoint too, so that one commit makes both durable.

    In an exactly-once pipeline `open` is followed by `claim`. The first one of a pipeline, unless `locks` keeps it
    from that, is its home: there each transaction is `write` (any number of times), then `commit`; `begin`,
    `stage` and `apply` are not called. Any further one is then used as a staged destination.
    """

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.TRANSACTIONAL

    @property
    def locks(self) -> str | None:
        """What nobody else can write to while a transaction is open here, by a name; None if others can.

        Where several destinations of a pipeline lock the same, none of them is its home: all are staged.
        """
        return None

    @abstractmethod
    def claim(self, owner: str, fence: int) -> Awaitable[bytes | None] | bytes | None:
        """Note durably that `owner` now works under `fence`, and return what its last `commit` was given.

        From now on `commit` under a lower fence fails. Raises Fenced when this database knows a higher
        fence of this owner. None when the owner never committed here.
        """

    @abstractmethod
    def commit(self, changes: bytes) -> Awaitable[None] | None:
        """Commit everything written since the last `commit`, and `changes`, in one transaction of this database.

        `changes` is the runtime's, in place of those of the last commit. Raises Fenced, with nothing
        changed, when another claim of this owner was made here since; that is checked in the
        transaction itself. Called also when nothing was written.
        """


class PieceRefused(TransientError):
    """A destination does not take a piece because of some record in it. Nothing of the piece was written."""

    code = "run.piece_refused"


class PreparingDestination(DestinationConnector[OptionsT]):
    """Can have the work of writing done elsewhere, up to the bytes, so that little is left to do in its own place.

    On one machine it is a destination like any other. On Spark a task gives its records to `prepare` of an instance
    of its own, which is never opened and reaches nothing outside of its process, and sends what `prepared`
    returns to the driver. There `take` comes in place of `write`, in the order of the records, between the same
    calls: what it writes is flushed, staged, committed and applied as if it had been given the records. In between,
    `write` is called too: with dead letters that are sent again, which come one by one.
    """

    def prepares(self, *, exactly_once: bool) -> bool:
        """Whether it can do so with the options it has, in a pipeline of that kind."""
        return True

    def equipment(self) -> bytes:
        """What instances elsewhere have to know beyond the options. Asked of one that is not opened either.

        It is asked on the driver, when that has its Spark, and may take its time.
        """
        return b""

    def equip(self, equipment: bytes) -> None:
        """Get to know it, before anything is prepared."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Refusals | None:
        """Make records ready, after those of the calls before. Which of them are refused, and why, as of `write`."""

    @abstractmethod
    def prepared(self) -> bytes:
        """Everything since `prepare` was first called, as one piece."""

    @abstractmethod
    def take(self, pieces: Sequence[bytes]) -> Awaitable[None] | None:
        """Write the records of these pieces, in order; they are handled when those of a `write` would be.

        Raises PieceRefused when one of the records is not taken: the pipeline then goes back to where it was and
        gives them to `write`, which can say which one.
        """
