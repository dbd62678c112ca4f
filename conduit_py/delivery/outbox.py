"""Outbox: messages that are sent after the commit of the transaction that wrote them, and not without it."""

from collections.abc import Sequence
from typing import Protocol

from conduit_py.store.tables import Pending


class Outbox(Protocol):
    """What a Forwarder needs of an outbox. `Store.outbox` is one; SqlAlchemyOutbox is another.

    Messages have a target each, and a number that grows. A lease is of a whole target: two forwarders
    at work on the same one could not keep its order.
    """

    async def targets(self) -> list[str]:
        """The targets for which messages wait."""
        ...

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[Pending] | None:
        """The oldest messages of a target, which is the holder's alone for that long; None if it is another's."""
        ...

    async def extend(self, target: str, holder: str, seconds: float) -> bool:
        """Have a lease last that long from now; False when it was let go of, or went to another meanwhile."""
        ...

    async def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        """Remove messages that arrived; False, with nothing removed, if the lease is another's now."""
        ...

    async def release(self, target: str, holder: str) -> None:
        """Let another holder have the target at once."""
        ...
