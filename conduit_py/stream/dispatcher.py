"""Dispatcher: gives the records of a source their identities and sends them on their way."""

from collections.abc import Awaitable, Callable, Mapping

from conduit_py.batch import Batch, Span
from conduit_py.bundle import sizes_of
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import ContractBroken
from conduit_py.inspect.tap import TapPoint
from conduit_py.killpoint import reach
from conduit_py.record import Record
from conduit_py.stream.fan_out import FanOut
from conduit_py.stream.gate import Gate
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter
from conduit_py.stream.processor_node import ProcessorNode, run_chain
from conduit_py.stream.reader import ReadBuffer


class Dispatcher:
    """Takes what the reader has read as one batch, registers it in the ledger and sends it downstream.

    The processors that only this source feeds run here, without a channel in between. With
    `before_sending` (at-most-once) progress is made durable before the batch sets out; with a gate
    (exactly-once) it sets out when its transaction has room for it.
    """

    def __init__(
        self,
        node: str,
        intake: ReadBuffer,
        ledger: Ledger,
        voters: int,
        stages: list[ProcessorNode],
        outlet: FanOut,
        meter: Meter,
        point: TapPoint,
        before_sending: Callable[[Span], Awaitable[None]] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._node = node
        self._intake = intake
        self._ledger = ledger
        self._voters = voters
        self._stages = stages
        self._outlet = outlet
        self._meter = meter
        self._point = point
        self._before_sending = before_sending
        self._gate = gate
        self._last_position = b""

    async def run(self) -> None:
        with self._outlet:
            while (taken := await self._intake.take()) is not None:
                if self._gate is not None:
                    await self._gate.enter(self._node, taken[0])
                batch = self._register(*taken)
                if self._before_sending is not None:
                    await self._before_sending(batch.span)
                await run_chain(self._stages, batch, self._outlet)

    def _register(self, records: list[Record], refused: Mapping[int, str], read_at: float) -> Batch:
        positions = [record.position for record in records]
        self._check(positions)
        span = self._ledger.register(positions, read_at)
        span.sizes = sizes_of(records)
        reach("dispatcher.after_register")
        batch = Batch.whole(span, records)
        if self._point.taps:
            self._point.read(batch, refused)
        return self._without(batch, refused) if refused else batch

    def _check(self, positions: list[bytes]) -> None:
        """Acking an empty position would wipe the stored one; a repeated one could not be told apart."""
        if set(map(type, positions)) != {bytes}:
            kind = next(type(position).__name__ for position in positions if type(position) is not bytes)
            raise ContractBroken(self._node, f"read() returned a record whose position is {kind}, not bytes")
        if not all(positions):
            raise ContractBroken(self._node, "read() returned a record without a position")
        if len(set(positions)) < len(positions) or positions[0] == self._last_position:
            raise ContractBroken(self._node, "read() returned a position twice")
        self._last_position = positions[-1]

    def _without(self, batch: Batch, refused: Mapping[int, str]) -> Batch:
        """The batch less the records that the source itself could not understand."""
        for index in sorted(refused):
            letter = DeadLetter.about(batch, index, batch[index], Failure(self._node, refused[index]))
            self._ledger.nack(batch.span, letter, self._voters)
        self._meter.refused += len(refused)
        return batch.select([index for index in range(len(batch)) if index not in refused])
