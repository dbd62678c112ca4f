"""Forwarder: sends what waits in an outbox, in order per target, until it has arrived."""

import inspect
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import trio

from conduit_py import crash_point
from conduit_py.backoff import Backoff
from conduit_py.errors import StateFailed, describe
from conduit_py.store.tables import OutboxMessage
from conduit_py.stream.signal import Signal


class Outbox(Protocol):
    """What a Forwarder needs of an outbox. `Store.outbox` is one; SqlAlchemyOutbox is another.

    Messages have a target each, and a number that grows. A lease is of a whole target: two forwarders
    at work on the same one could not keep its order.
    """

    async def targets(self) -> list[str]:
        """The targets for which messages wait."""
        ...

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
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


log = logging.getLogger("conduit_py")

Send: TypeAlias = Callable[[OutboxMessage], Awaitable[None] | None]
"""Hands one message to its target; returns when it has arrived, raises when it has not."""

Flush: TypeAlias = Callable[[str], Awaitable[None]]
"""Returns when all that was handed to a target has arrived."""

DELAYS = Backoff(delay_seconds=0.1, delay_max_seconds=60.0)
REMOVE_SECONDS = 5.0
RELEASE_SECONDS = 2.0
"""How long a store may hold up a forwarder that is told to end."""


@dataclass
class TargetFailure:
    """A target that does not take its first message: how often it was tried, why not, when it is tried again."""

    attempts: int
    error: str
    until: float


class Forwarder:
    """Each message is removed after `send` has returned, so it arrives at least once; `key` tells a repeat.

    Several forwarders may work on one outbox, in any number of processes: each target is leased by one of
    them, which extends the lease while it sends and stops when it has lost it. A message that does not
    arrive is tried again after a pause that grows, and those behind it wait, for they must not overtake it;
    other targets go on. A forwarder that was killed leaves its leases behind, which end by themselves.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Send,
        *,
        targets: Collection[str] | None = None,
        lease_seconds: float = 30.0,
        period_seconds: float = 1.0,
        batch_size: int = 100,
        delays: Backoff = DELAYS,
        rng: random.Random | None = None,
        flush: Flush | None = None,
    ) -> None:
        """A sync `send` is called in a thread. With `targets` others are left to other forwarders.

        With `flush` messages have arrived not when `send` returns but when that does, which is called for several.
        """
        self._outbox = outbox
        self._send = send
        self._targets = targets
        self._lease_seconds = lease_seconds
        self._period_seconds = period_seconds
        self._batch_size = batch_size
        self._delays = delays
        self._rng = rng or random.Random()
        self._flush = flush
        self.wake = Signal()
        """Set it to have `run` look for messages at once."""
        self.holder = uuid.uuid4().hex
        """By which name it holds its leases."""
        self.failing: dict[str, TargetFailure] = {}
        """The targets that do not take their messages at present."""

    async def run(self, turn: AbstractAsyncContextManager[object] | None = None) -> None:
        """Forward for ever, looking for new messages every `period_seconds`. Cancel it to end it.

        It drains only in its `turn`, if whoever runs it drains too.
        """
        while True:
            try:
                async with turn or nullcontext():
                    await self.drain()
            except StateFailed as error:
                log.warning("the outbox cannot be read and is tried again: %s", error.message)
            with trio.move_on_after(self._period_seconds):
                await self.wake.wait()

    def run_blocking(self) -> None:
        """`run` from a thread without an event loop."""
        trio.run(self.run)

    async def drain(self) -> int:
        """Forward what waits now; returns how many messages arrived. Targets in trouble are left for later."""
        targets = [target for target in await self._outbox.targets() if self._is_due(target)]
        arrived = dict.fromkeys(targets, 0)
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(self._drain_target, target, arrived)
        return sum(arrived.values())

    def _is_due(self, target: str) -> bool:
        trouble = self.failing.get(target)
        waits = trouble is not None and trouble.until > trio.current_time()
        return not waits and (self._targets is None or target in self._targets)

    async def _drain_target(self, target: str, arrived: dict[str, int]) -> None:
        try:
            while pending := await self._outbox.lease(target, self.holder, self._lease_seconds, self._batch_size):
                sent: list[int] = []
                try:
                    await self._send_all(target, pending, sent)
                finally:
                    arrived[target] += len(sent)
                    still_ours = await self._remove(target, sent)
                if not still_ours or len(sent) < len(pending):
                    break
            await self._outbox.release(target, self.holder)
        except StateFailed as error:
            self._note(target, error)
        # Nothing but a cancellation comes here, alone or as a group of them.
        except BaseException:
            await self._let_go(target)
            raise

    async def _let_go(self, target: str) -> None:
        """Told to end: another may have the target at once, and need not wait until the lease ends by itself."""
        with trio.move_on_after(RELEASE_SECONDS, shield=True), suppress(StateFailed):
            await self._outbox.release(target, self.holder)

    async def _remove(self, target: str, sent: list[int]) -> bool:
        """Remove what arrived, also when the forwarder is told to end: else it would be sent again."""
        crash_point.reach("forwarder.sent")
        ours = True
        with trio.move_on_after(REMOVE_SECONDS, shield=True) as scope:
            ours = await self._outbox.forwarded(target, self.holder, sent) if sent else True
        crash_point.reach("forwarder.removed")
        return ours and not scope.cancelled_caught

    async def _send_all(self, target: str, pending: list[OutboxMessage], sent: list[int]) -> None:
        """Send in order up to the first that does not arrive, noting the numbers of those that did."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lease, target, nursery.cancel_scope)
            handed: list[int] = []
            for each in pending:
                if not await self._arrives(each):
                    break
                (sent if self._flush is None else handed).append(each.number)
            if handed and await self._flush_target(target):
                sent += handed
            nursery.cancel_scope.cancel()

    async def _keep_lease(self, target: str, sending: trio.CancelScope) -> None:
        """Extend the lease again and again; stop the sending when it is another's, or may be."""
        while True:
            await trio.sleep(self._lease_seconds / 3)
            try:
                extended = await self._outbox.extend(target, self.holder, self._lease_seconds)
            except StateFailed:
                extended = False
            if not extended:
                log.warning("the lease of %r was lost; another forwarder may have taken over", target)
                sending.cancel()

    async def _arrives(self, message: OutboxMessage) -> bool:
        try:
            await self._call(message)
        # The border to the user's own function: whatever it raises, the message has not arrived.
        except Exception as error:
            self._note(message.target, error)
            return False
        self.failing.pop(message.target, None)
        return True

    async def _flush_target(self, target: str) -> bool:
        assert self._flush is not None
        try:
            await self._flush(target)
        # The same border: what was handed over has not arrived.
        except Exception as error:
            self._note(target, error)
            return False
        return True

    async def _call(self, message: OutboxMessage) -> None:
        if inspect.iscoroutinefunction(self._send):
            await self._send(message)
        else:
            returned = await trio.to_thread.run_sync(self._send, message)
            if returned is not None:
                await returned

    def _note(self, target: str, error: Exception) -> None:
        before = self.failing.get(target)
        attempts = before.attempts + 1 if before else 1
        delay = self._delays.delay(attempts, self._rng)
        self.failing[target] = TargetFailure(attempts, describe(error), trio.current_time() + delay)
        log.warning(
            "the outbox cannot go on with %r (attempt %d, next in %.1f s): %s", target, attempts, delay, describe(error)
        )
