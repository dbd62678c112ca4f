"""Destinations that take part in a transaction: staged ones, and those that can carry the commit itself."""

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import ClassVar

from conduit_py.sdk.destination import Destination, Level
from conduit_py.sdk.plugin import OptionsT


class StagedDestination(Destination[OptionsT]):
    """Writes records where no reader sees them yet, and shows them once the transaction is committed.

    In an exactly-once pipeline the calls come one at a time and in this order: `open`, `begin`, then for
    each transaction `write` (any number of times), `stage`, and after the commit `apply`; the next
    transaction is not written before that. A record counts as handled when `write` returns, whatever
    `acks` says: `stage` makes it durable. A run that ends before its commit just tears down; the next
    one's `begin` discards what it left.

    In any other pipeline `begin` is not called, and `write` and `flush` do what they do in a plain
    destination: readers see the records at once.
    """

    level: ClassVar[Level] = Level.D3

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

    level: ClassVar[Level] = Level.D2

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
