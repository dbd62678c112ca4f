"""MessageTracker: remembers handled messages in the transaction that handles them; in memory or in the store."""

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Literal, Protocol, TypeAlias, TypeVar

from conduit_py.errors import TransientError
from conduit_py.store.claim import Changes, Claim, Intent

REPEATED = "conduit.repeated"
"""The header or metadata key of a message that was handled before: "true", or absent. It is never "false"."""

Repeat: TypeAlias = Literal["skip", "mark"]
"""What becomes of a message that was handled before: it is not handled, or handled with the header REPEATED."""

TransactionT = TypeVar("TransactionT", contravariant=True)
T = TypeVar("T")


class MessageTracker(Protocol[TransactionT]):
    """Tells the first time that a message is handled from every other.

    It writes in the transaction of whoever handles the message: rolled back with it, the message counts as
    never handled. Of two transactions that handle the same message at once, one waits for the other or
    fails with an error. Only a key that is there already means a repeat: every other error is raised, so
    that the message is tried again and not taken for one that was handled.
    """

    def once(self, transaction: TransactionT, key: bytes, /) -> bool:
        """Record the key; False when it was recorded before."""
        ...


class AsyncMessageTracker(Protocol[TransactionT]):
    """A MessageTracker for transactions that are awaited."""

    async def once(self, transaction: TransactionT, key: bytes, /) -> bool: ...


def handle_once(
    tracker: MessageTracker[TransactionT],
    transaction: TransactionT,
    key: bytes,
    handler: Callable[[], T],
    *,
    headers: MutableMapping[str, str] | None = None,
    repeat: Repeat = "skip",
) -> T | None:
    """Call `handler`, unless the message was handled before and is to be skipped; returns what it returns.

    It ends normally either way, so the caller commits and acks in both cases. With repeat="mark" the
    handler is always called, and `headers` say whether it is a repeat. An error of the handler or of the
    tracker is raised: the caller rolls back, and the message counts as never handled.
    """
    if not mark_repeat(tracker.once(transaction, key), headers, repeat):
        return None
    return handler()


async def handle_once_async(
    tracker: AsyncMessageTracker[TransactionT],
    transaction: TransactionT,
    key: bytes,
    handler: Callable[[], Awaitable[T]],
    *,
    headers: MutableMapping[str, str] | None = None,
    repeat: Repeat = "skip",
) -> T | None:
    """`handle_once` for handlers and trackers that are awaited."""
    if not mark_repeat(await tracker.once(transaction, key), headers, repeat):
        return None
    return await handler()


def mark_repeat(first: bool, headers: MutableMapping[str, str] | None, repeat: Repeat) -> bool:
    """Whether the message goes on to its handler; the headers say then whether it is a repeat.

    A header that came with the message is removed: it says what another has seen.
    """
    if headers is not None:
        headers.pop(REPEATED, None)
        if not first:
            headers[REPEATED] = "true"
    return first or repeat == "mark"


class KeyBusy(TransientError):
    """Another transaction, which has not ended, handles the same message; it must be tried again."""

    code = "tracker.busy"


class MemoryTransaction:
    """What belongs together: kept when the block of `MemoryTracker.transaction` ends, dropped when it raises."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()


class MemoryTracker:
    """For tests, and for handlers whose effects do not outlive the process either. Safe in several threads.

    A message that another open transaction handles raises KeyBusy: whether it is a repeat is not known yet.
    With `retention_seconds` keys are forgotten when they are older; choose it longer than a message may be
    delivered again.
    """

    def __init__(self, *, retention_seconds: float | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._retention = retention_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._handled: OrderedDict[bytes, float] = OrderedDict()
        self._open: set[bytes] = set()

    @contextmanager
    def transaction(self) -> Iterator[MemoryTransaction]:
        transaction = MemoryTransaction()
        try:
            yield transaction
        except BaseException:
            with self._lock:
                self._open -= transaction.keys
            raise
        with self._lock:
            self._open -= transaction.keys
            self._handled.update(dict.fromkeys(transaction.keys, self._clock()))

    def once(self, transaction: MemoryTransaction, key: bytes) -> bool:
        with self._lock:
            self._forget()
            if key in self._handled or key in transaction.keys:
                return False
            if key in self._open:
                raise KeyBusy(f"message {key!r} is being handled in another transaction")
            self._open.add(key)
            transaction.keys.add(key)
            return True

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._handled)

    def _forget(self) -> None:
        """Take away what is too old. Keys are in the order of their times."""
        if self._retention is None:
            return
        before = self._clock() - self._retention
        while self._handled and next(iter(self._handled.values())) < before:
            self._handled.popitem(last=False)


class StoreTransaction:
    """Gathers what one step of an owner makes durable; nothing is before the block of `store_transaction` ends."""

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
async def store_transaction(claim: Claim, checkpoint: bytes | None = None) -> AsyncIterator[StoreTransaction]:
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
