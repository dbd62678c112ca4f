"""Dispatcher: gives the records of a source their identities and sends them downstream."""

from collections.abc import Callable, Mapping

from conduit_py.batch import Batch
from conduit_py.crash_point import reach
from conduit_py.dead_letter import Failure
from conduit_py.errors import ContractBroken
from conduit_py.record import Record, group_sizes
from conduit_py.stream.fan_out import FanOut
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.node_context import NodeContext
from conduit_py.stream.processor_node import ProcessorNode, run_chain
from conduit_py.stream.reader import ReadBuffer


class Dispatcher:
    """Takes everything in the read buffer as one batch, registers it in the ledger and sends it downstream.

    The processors that receive records only from this source run in this task, without a channel.
    """

    def __init__(
        self, context: NodeContext, ledger: Ledger, buffer: ReadBuffer, chain: list[ProcessorNode], fan_out: FanOut
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._buffer = buffer
        self._chain = chain
        self._fan_out = fan_out
        self._last_position = b""
        self.on_end: Callable[[], None] | None = None
        """Called after the last record of the source was sent downstream."""

    async def run(self) -> None:
        context = self._context
        with self._fan_out:
            while (taken := await self._buffer.take()) is not None:
                records, refused, read_at = taken
                positions = [record.position for record in records]
                self._check(positions)
                # Before registration: every message in the ledger counts as part of the open transaction.
                await context.commit.admit(context.node, records, positions)
                batch = self._register(records, positions, read_at)
                if context.tap_point.taps:
                    context.tap_point.read(batch, refused)
                await run_chain(self._chain, self._nack(batch, refused) if refused else batch, self._fan_out)
        context.commit.finish(context.node)
        if self.on_end is not None:
            self.on_end()

    def _check(self, positions: list[bytes]) -> None:
        """Check the positions: an empty one would erase the stored position, and a repeated one is ambiguous."""
        node = self._context.node
        if set(map(type, positions)) != {bytes}:
            kind = next(type(position).__name__ for position in positions if type(position) is not bytes)
            raise ContractBroken(node, f"read() returned a record whose position is {kind}, not bytes")
        if not all(positions):
            raise ContractBroken(node, "read() returned a record without a position")
        if len(set(positions)) < len(positions) or positions[0] == self._last_position:
            raise ContractBroken(node, "read() returned a position twice")
        self._last_position = positions[-1]

    def _register(self, records: list[Record], positions: list[bytes], read_at: float) -> Batch:
        span = self._ledger.register(positions, read_at)
        span.sizes = group_sizes(records)
        reach("dispatcher.after_register")
        return Batch.whole(span, records)

    def _nack(self, batch: Batch, refused: Mapping[int, str]) -> Batch:
        """Nack the records that the source could not parse; return the rest of the batch."""
        for index in sorted(refused):
            self._context.nack(batch, index, batch[index], Failure(self._context.node, refused[index]))
        return batch.select([index for index in range(len(batch)) if index not in refused])
