"""Seen: the keys that were recorded, so that what comes again is known again."""

from collections.abc import Collection, Sequence

from conduit_py.store.tables import Access

_FORGOTTEN_AT_ONCE = 10_000


class Seen:
    """Keys by scope. Within a transaction they are recorded with `Changes.once`, elsewhere here."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        """Which of the keys are durably recorded."""
        return await self._access.look(lambda tables: tables.known(scope, keys))

    async def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        """Durably record the keys; returns those that were recorded already. Of two callers one is first."""
        return await self._access.transact(lambda tables: tables.remember(scope, keys))

    async def forget(self, scope: str, age_seconds: float) -> int:
        """Forget what was recorded longer ago than that; returns how many keys it was.

        In short transactions, so that commits of others come in between.
        """
        forgotten = 0
        while True:
            count = await self._access.transact(lambda tables: tables.forget(scope, age_seconds, _FORGOTTEN_AT_ONCE))
            forgotten += count
            if count < _FORGOTTEN_AT_ONCE:
                return forgotten
