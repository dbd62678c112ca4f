"""MessageTracker: remembers which messages were handled, in the transaction in which they are."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Literal, Protocol, TypeAlias, TypeVar

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
    if not marked(tracker.once(transaction, key), headers, repeat):
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
    if not marked(await tracker.once(transaction, key), headers, repeat):
        return None
    return await handler()


def marked(first: bool, headers: MutableMapping[str, str] | None, repeat: Repeat) -> bool:
    """Whether the message goes on to its handler; the headers say then whether it is a repeat.

    A header that came with the message is removed: it says what another has seen.
    """
    if headers is not None:
        headers.pop(REPEATED, None)
        if not first:
            headers[REPEATED] = "true"
    return first or repeat == "mark"
