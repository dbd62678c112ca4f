"""Forwarder: sends the messages of an outbox, in order per target, until each has arrived.

`PipelineForwarder` does that for what the processors of a pipeline publish, while the pipeline runs.
"""

import inspect
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import trio

from conduit_py import crash_point
from conduit_py.backoff import Backoff
from conduit_py.batch import Batch, Span
from conduit_py.errors import RecordRefused, StateFailed, describe
from conduit_py.record import Record
from conduit_py.sdk.destination import AckMode, DestinationConnector
from conduit_py.store.tables import OutboxMessage
from conduit_py.stream.ack_reader import answers_about
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, check_refusals
from conduit_py.stream.signal import Signal
from conduit_py.user_errors import as_error


class Outbox(Protocol):
    """What a Forwarder needs of an outbox. `Store.outbox` and SqlAlchemyOutbox are outboxes.

    Each message has a target and a growing number. A lease covers a whole target, because two forwarders of one
    target could not keep its order.
    """

    async def targets(self) -> list[str]:
        """Return the targets that have messages."""
        ...

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        """Lease a target for `seconds` and return its oldest messages; None if another holder has the lease."""
        ...

    async def extend(self, target: str, holder: str, seconds: float) -> bool:
        """Extend a lease to `seconds` from now. Return False if it was released or another holder has it."""
        ...

    async def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        """Remove messages that arrived. Return False, and remove nothing, if another holder has the lease."""
        ...

    async def release(self, target: str, holder: str) -> None:
        """End a lease, so that another holder can have the target at once."""
        ...


log = logging.getLogger("conduit_py")

Send: TypeAlias = Callable[[OutboxMessage], Awaitable[None] | None]
"""Sends one message to its target. Returns when it has arrived, and raises if it has not."""

Flush: TypeAlias = Callable[[str], Awaitable[None]]
"""Returns when everything sent to a target has arrived."""

DELAYS = Backoff(delay_seconds=0.1, delay_max_seconds=60.0)
REMOVE_SECONDS = 5.0
RELEASE_SECONDS = 2.0
PIPELINE_LEASE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
"""How long a slow store may delay the end of a cancelled forwarder."""


@dataclass
class TargetFailure:
    """A target whose first message does not arrive: the attempts, the last error, and the time of the next one."""

    attempts: int
    error: str
    until: float


class Forwarder:
    """Sends messages at least once: each is removed after `send` returned. The receiver finds repeats by `key`.

    Several forwarders may work on one outbox, in any number of processes. One of them leases a target, extends the
    lease while it sends, and stops if it loses the lease. A message that does not arrive is tried again after a
    growing pause. Later messages of its target wait, to keep the order; other targets continue. The leases of a
    forwarder that was killed expire.
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
        """A sync `send` runs in a thread. With `targets`, other targets are left to other forwarders.

        With `flush`, messages have arrived when `flush` returns, not when `send` does. It is called for several.
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
        """Set it to make `run` look for messages at once."""
        self.holder = uuid.uuid4().hex
        """The name under which it holds leases."""
        self.failing: dict[str, TargetFailure] = {}
        """The targets whose messages do not arrive at present."""

    async def run(self, turn: AbstractAsyncContextManager[object] | None = None) -> None:
        """Forward until cancelled, looking for new messages every `period_seconds`.

        It drains only while it holds `turn`, for a caller that also calls `drain`.
        """
        while True:
            try:
                async with turn or nullcontext():
                    await self.drain()
            except StateFailed as error:
                log.warning("the outbox cannot be read, and will be tried again: %s", error.message)
            with trio.move_on_after(self._period_seconds):
                await self.wake.wait()

    def run_blocking(self) -> None:
        """`run` from a thread without an event loop."""
        trio.run(self.run)

    async def drain(self) -> int:
        """Forward the messages that are there now; return how many arrived. Failing targets are skipped until due."""
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
                # Also after an error or a cancellation: what arrived and is not removed would be sent again.
                finally:
                    arrived[target] += len(sent)
                    still_ours = await self._remove(target, sent)
                # Not leased again at once after a failure: the target waits for its pause.
                if not still_ours or len(sent) < len(pending):
                    break
            await self._outbox.release(target, self.holder)
        except StateFailed as error:
            self._note(target, error)
        # Only a cancellation arrives here, alone or in a group.
        except BaseException:
            await self._let_go(target)
            raise

    async def _let_go(self, target: str) -> None:
        """Release the lease after a cancellation, so that another forwarder need not wait until it expires."""
        with trio.move_on_after(RELEASE_SECONDS, shield=True), suppress(StateFailed):
            await self._outbox.release(target, self.holder)

    async def _remove(self, target: str, sent: list[int]) -> bool:
        """Remove what arrived, also after a cancellation: otherwise it would be sent again."""
        crash_point.reach("forwarder.sent")
        ours = True
        # Shielded, but not for ever: a store that hangs must not keep a cancelled forwarder alive.
        with trio.move_on_after(REMOVE_SECONDS, shield=True) as scope:
            ours = await self._outbox.forwarded(target, self.holder, sent) if sent else True
        crash_point.reach("forwarder.removed")
        return ours and not scope.cancelled_caught

    async def _send_all(self, target: str, pending: list[OutboxMessage], sent: list[int]) -> None:
        """Send in order up to the first message that does not arrive, and add the numbers of the others to `sent`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lease, target, nursery.cancel_scope)
            handed: list[int] = []
            for each in pending:
                if not await self._arrives(each):
                    break
                (sent if self._flush is None else handed).append(each.number)
            # One flush for all: one for each message would wait for a slow destination every time.
            if handed and await self._flush_target(target):
                sent += handed
            nursery.cancel_scope.cancel()

    async def _keep_lease(self, target: str, sending: trio.CancelScope) -> None:
        """Extend the lease again and again. Cancel the sending if the lease is lost, or may be."""
        while True:
            # A third, so that one failed extension still leaves time for another before the lease expires.
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
        # Plugin boundary: whatever the user's function raises, the message has not arrived.
        except BaseException as error:
            self._note(message.target, as_error(error))
            return False
        self.failing.pop(message.target, None)
        return True

    async def _flush_target(self, target: str) -> bool:
        assert self._flush is not None
        try:
            await self._flush(target)
        # Plugin boundary: what was sent has not arrived.
        except BaseException as error:
            self._note(target, as_error(error))
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
            "the outbox cannot send to %r (attempt %d, next in %.1f s): %s", target, attempts, delay, describe(error)
        )


class PipelineForwarder:
    """A forwarder whose targets are connectors, which the run opens and tears down.

    It sends committed messages, in order per target, while the pipeline runs and once more after its last commit.
    What has not arrived by then, or when a run is stopped by force, stays in the store for the next run.
    """

    def __init__(self, outbox: Outbox, calls: Mapping[str, PluginCaller]) -> None:
        self._outbox = outbox
        self._calls = calls
        self._forwarder = Forwarder(
            outbox, self._send, targets=frozenset(calls), lease_seconds=PIPELINE_LEASE_SECONDS, flush=self._flush
        )
        # `run` and `finish` use one holder, so the lease does not keep them apart: without the lock both would send.
        self._turn = trio.Lock()

    def wake(self) -> None:
        """Called after a commit with new messages."""
        self._forwarder.wake.set()

    async def run(self) -> None:
        """Forward until cancelled."""
        await self._forwarder.run(turn=self._turn)

    async def finish(self) -> None:
        """Forward everything that is committed, except to failing targets.

        Waits for leases of a process that was killed, for as long as such a lease can last.
        """
        until: float | None = None
        while await self._left_after_draining():
            until = until or trio.current_time() + PIPELINE_LEASE_SECONDS
            if trio.current_time() > until:
                return
            await trio.sleep(_LOOK_SECONDS)

    async def _left_after_draining(self) -> bool:
        """Forward what is there. Return True if messages are left, whose target another forwarder has leased."""
        try:
            async with self._turn:
                await self._forwarder.drain()
            waiting = set(await self._outbox.targets()) & set(self._calls) - set(self._forwarder.failing)
        except StateFailed as error:
            log.warning("the outbox cannot be read: %s; its messages stay there for the next run", error.message)
            return False
        return bool(waiting)

    async def _send(self, message: OutboxMessage) -> None:
        calls = self._calls[message.target]
        node, batch = target_node(message.target), _PublishedBatch(message)
        with PluginErrors(node, "write"):
            refused = check_refusals(node, await calls("write", batch), 1)
        if not refused and _acks(calls) is AckMode.LATER:
            await calls("flush")
            refused = await answers_about(node, calls, batch, refused)
        if refused:
            raise RecordRefused(f"{node} refuses a record: {refused[0]}")

    async def _flush(self, target: str) -> None:
        with PluginErrors(target_node(target), "flush"):
            await self._calls[target]("flush")


def target_node(target: str) -> str:
    """Return the id of an outbox target in places where nodes are listed."""
    return f"outbox:{target}"


def _acks(calls: PluginCaller) -> AckMode:
    assert isinstance(calls.plugin, DestinationConnector)
    return calls.plugin.acks


class _PublishedBatch(Batch):
    """A published record. Its delivery key is that of the message: the same on every attempt."""

    __slots__ = ()

    def __init__(self, message: OutboxMessage) -> None:
        record = Record.from_json(message.body)
        record.position = record.position or b"%d" % message.number
        # The key in place of the position: several published records may have the same position.
        span = Span(message.owner, target_node(message.target), message.number, [message.key])
        super().__init__(span, [record], [message.number])

    def delivery_key(self, index: int) -> bytes:
        return self.positions[index]
