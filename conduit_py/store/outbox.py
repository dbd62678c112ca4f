"""Outbox: the intents of committed transactions that wait to be carried out."""

from collections.abc import Sequence

from conduit_py.store.tables import Access, Pending


class Outbox:
    """Intents by target, those of each owner in the order of its commits, leased by one holder at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def targets(self) -> list[str]:
        """The targets for which intents wait, sorted."""
        return await self._access.look(lambda tables: tables.targets())

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[Pending] | None:
        """The oldest intents of a target, which is the holder's alone for that long; None if it is another's."""
        return await self._access.transact(lambda tables: tables.lease(target, holder, seconds, limit))

    async def extend(self, target: str, holder: str, seconds: float) -> bool:
        """Have a lease last that long from now; False when it was let go of, or went to another meanwhile."""
        return await self._access.transact(lambda tables: tables.extend(target, holder, seconds))

    async def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        """Remove intents that reached the target; False, with nothing removed, if the lease is another's now."""
        return await self._access.transact(lambda tables: tables.forwarded(target, holder, numbers))

    async def release(self, target: str, holder: str) -> None:
        """Let another holder have the target at once. To release what is not held does nothing."""
        await self._access.transact(lambda tables: tables.release(target, holder))
