"""StoreTracker: messages that were handled, in our own store, together with state, checkpoint and outbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conduit_py.store.claim import Changes, Claim, Intent


class StoreTransaction:
    """Gathers what one step of an owner makes durable; nothing is before the block of `transaction` ends."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.changes = Changes(claim.committed + 1, claim.checkpoint or b"")

    async def get(self, key: bytes) -> bytes | None:
        """The state of this owner, as this transaction has changed it."""
        return self.changes.puts[key] if key in self.changes.puts else await self._claim.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change the state; None deletes."""
        self.changes.puts[key] = value

    def intend(self, target: str, key: bytes, body: bytes) -> None:
        """Have a forwarder hand `body` to `target` after the commit."""
        self.changes.intents.append(Intent(target, key, body))

    async def once(self, scope: str, key: bytes) -> bool:
        """Record the key as seen; False when it was before."""
        if (scope, key) in self.changes.once or await self._claim.seen(scope, [key]):
            return False
        self.changes.once.append((scope, key))
        return True


@asynccontextmanager
async def transaction(claim: Claim, checkpoint: bytes | None = None) -> AsyncIterator[StoreTransaction]:
    """Commit what the block gathers in one fenced step when it ends, and nothing when it raises.

    One at a time for each claim. Raises Fenced when a newer claim exists, and Repeated when another owner
    has recorded one of the keys meanwhile: to run the block again then finds it recorded.
    """
    gathered = StoreTransaction(claim)
    yield gathered
    if checkpoint is not None:
        gathered.changes.checkpoint = checkpoint
    await claim.commit(gathered.changes)


class StoreTracker:
    """Handled messages of one scope, for handlers whose state and outgoing messages are in the same transaction."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def once(self, transaction: StoreTransaction, key: bytes) -> bool:
        return await transaction.once(self._scope, key)
