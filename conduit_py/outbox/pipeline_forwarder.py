"""PipelineForwarder: forwards what the processors of a pipeline publish, while the pipeline runs."""

import logging
from collections.abc import Mapping

import trio

from conduit_py.batch import Batch, Span
from conduit_py.errors import RecordRefused, StateFailed
from conduit_py.outbox.forwarder import Forwarder, Outbox
from conduit_py.record import Record
from conduit_py.sdk.destination import AckMode, DestinationConnector
from conduit_py.store.tables import OutboxMessage
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, answers_about, check_refusals

log = logging.getLogger("conduit_py")

LEASE_SECONDS = 5.0
LOOK_SECONDS = 1.0


class PipelineForwarder:
    """A forwarder whose targets are connectors, which the run opens and tears down.

    It sends committed messages, in order per target, while the pipeline runs and once more after its last commit.
    What has not arrived by then, or when a run is stopped by force, stays in the store for the next run.
    """

    def __init__(self, outbox: Outbox, calls: Mapping[str, PluginCaller]) -> None:
        self._outbox = outbox
        self._calls = calls
        self._forwarder = Forwarder(
            outbox, self._send, targets=frozenset(calls), lease_seconds=LEASE_SECONDS, flush=self._flush
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
            until = until or trio.current_time() + LEASE_SECONDS
            if trio.current_time() > until:
                return
            await trio.sleep(LOOK_SECONDS)

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
