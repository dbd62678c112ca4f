"""MessageTracker: records handled messages in the transaction that handles them, in memory or in the store.

MessageContext commits that transaction before it acks the message.
"""

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, get_args

from conduit_py.errors import TransientError
from conduit_py.store.claim import Changes, Claim, PublishedMessage

REPEATED = "conduit.repeated"
"""The header or metadata key of a message that was handled before: "true", or absent. It is never "false"."""

Repeat: TypeAlias = Literal["skip", "mark"]
"""What to do with a message that was handled before: skip it, or handle it with the header REPEATED."""

Moment: TypeAlias = Literal["commit", "rollback", "ack", "nack", "close"]
Action: TypeAlias = Callable[[], object]

TransactionT = TypeVar("TransactionT", contravariant=True)
T = TypeVar("T")


class MessageTracker(Protocol[TransactionT]):
    """Recognises messages that were handled before.

    It writes in the transaction that handles the message: if that is rolled back, the message counts as never
    handled. If two transactions handle the same message at once, one waits for the other or fails. Only an existing
    key means a repeat. Every other error is raised, so that the message is tried again and not skipped.
    """

    def once(self, transaction: TransactionT, key: bytes, /) -> bool:
        """Record the key. Return False if it was recorded before."""
        ...


class AsyncMessageTracker(Protocol[TransactionT]):
    """A MessageTracker for async transactions."""

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
    """Call `handler` and return its result. A message that was handled before is skipped and returns None.

    The caller commits and acks in both cases. With repeat="mark" the handler is always called, and `headers` mark
    a repeat. Errors of the handler and of the tracker are raised: the caller rolls back, and the message counts
    as never handled.
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
    """`handle_once` for async handlers and trackers."""
    if not mark_repeat(await tracker.once(transaction, key), headers, repeat):
        return None
    return await handler()


def mark_repeat(first: bool, headers: MutableMapping[str, str] | None, repeat: Repeat) -> bool:
    """Return True if the handler should be called, and mark a repeat in `headers`."""
    if headers is not None:
        # A sender, or an earlier consumer, may have set it: it would mark a message that is new here.
        headers.pop(REPEATED, None)
        if not first:
            headers[REPEATED] = "true"
    return first or repeat == "mark"


class KeyBusy(TransientError):
    """Another open transaction handles the same message. Try again later."""

    code = "tracker.busy"


class MemoryTransaction:
    """The keys of one transaction: kept when its block ends, dropped if the block raises."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()


class MemoryTracker:
    """A tracker in memory, for tests and for handlers without durable effects. Safe in several threads.

    Raises KeyBusy for a message that another open transaction handles. Keys older than `retention_seconds` are
    deleted; choose more than the longest time after which a message may be delivered again.
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
        # Also after a cancellation: a key left open would raise KeyBusy for ever.
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
            # A second time in the same transaction is a repeat, although nothing is committed.
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
        """Delete keys that are too old. Keys are in the order of their times."""
        if self._retention is None:
            return
        before = self._clock() - self._retention
        while self._handled and next(iter(self._handled.values())) < before:
            self._handled.popitem(last=False)


class StoreTransaction:
    """Collects the changes of one transaction. They become durable when the block of `store_transaction` ends."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.changes = Changes(claim.committed + 1, claim.checkpoint or b"")

    async def get(self, key: bytes) -> bytes | None:
        """Return a value of this owner's state, with the changes of this transaction."""
        return self.changes.puts[key] if key in self.changes.puts else await self._claim.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a value of the state; None deletes it."""
        self.changes.puts[key] = value

    def intend(self, target: str, key: bytes, body: bytes) -> None:
        """Let a forwarder send `body` to `target` after the commit."""
        self.changes.messages.append(PublishedMessage(target, key, body))

    async def once(self, scope: str, key: bytes) -> bool:
        """Record the key. Return False if it was recorded before."""
        if (scope, key) in self.changes.once or await self._claim.seen(scope, [key]):
            return False
        self.changes.once.append((scope, key))
        return True


@asynccontextmanager
async def store_transaction(claim: Claim, checkpoint: bytes | None = None) -> AsyncIterator[StoreTransaction]:
    """Commit the changes of the block in one fenced transaction when it ends; commit nothing if it raises.

    Use one at a time for each claim. Raises Fenced if a newer claim exists, and Repeated if another owner recorded
    one of the keys meanwhile; the block can then be run again, and finds the key recorded.
    """
    transaction = StoreTransaction(claim)
    yield transaction
    # Not in a `finally`: a block that raises must commit nothing.
    if checkpoint is not None:
        transaction.changes.checkpoint = checkpoint
    await claim.commit(transaction.changes)


class StoreTracker:
    """A tracker in the store, for handlers that keep state and outgoing messages in the same transaction."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def once(self, transaction: StoreTransaction, key: bytes) -> bool:
        return await transaction.once(self._scope, key)


class MessageContext:
    """The actions at the end of a message, for an application that reads a queue itself. Each action runs once.

    `complete` commits or rolls back, and only then acks or nacks, as set by `set_result`. If the first step fails,
    the message is nacked, so that it is delivered again, and the error is raised. Leaving the block closes the
    context: a message that was not completed is rolled back and nacked. Errors of `close` go to the `on_error`
    actions.
    """

    def __init__(self) -> None:
        self._actions: dict[Moment, list[Action]] = {moment: [] for moment in get_args(Moment)}
        self._on_error: list[Callable[[BaseException], object]] = []
        self._result: tuple[bool, bool] | None = None
        self._completed = False
        self._closed = False

    def on(self, moment: Moment, action: Action) -> None:
        """Call `action` at that moment, after the actions added before it."""
        if self._completed or self._closed:
            raise RuntimeError(f"the message is settled already: an action for {moment} would never run")
        self._actions[moment].append(action)

    def on_error(self, action: Callable[[BaseException], object]) -> None:
        self._on_error.append(action)

    def set_result(self, *, commit: bool, ack: bool) -> None:
        """Set how the message was handled. The last call counts."""
        self._result = commit, ack

    def complete(self) -> None:
        """Run the actions of the result. Raises RuntimeError if none was set."""
        if self._result is None:
            raise RuntimeError("call set_result first: it sets if the message is committed and acked")
        commit, ack = self._result
        self._completed = True
        try:
            self._run("commit" if commit else "rollback")
        # BaseException: an interrupted commit may have failed, so the message must be delivered again.
        except BaseException:
            self._run_or_report("nack")
            # The message is delivered again. An ack after this, on close, would lose it.
            self._actions["ack"].clear()
            raise
        self._run("ack" if ack else "nack")

    def close(self) -> None:
        """Roll back and nack if it was not completed, then run the close actions. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if not self._completed:
            self._run_or_report("rollback")
            self._run_or_report("nack")
        self._run_or_report("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, moment: Moment) -> None:
        # Emptied before the first action runs: after an error `close` must not repeat those that succeeded.
        actions, self._actions[moment] = self._actions[moment], []
        for action in actions:
            action()

    def _run_or_report(self, moment: Moment) -> None:
        try:
            self._run(moment)
        # The message is settled, and no caller is left to raise this to.
        except Exception as error:
            for action in self._on_error:
                action(error)
