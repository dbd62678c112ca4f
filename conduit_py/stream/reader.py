"""Reader, ReadBuffer and Dispatcher: read the records of a source, within the window, and send them downstream."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from conduit_py import defaults
from conduit_py.batch import Batch
from conduit_py.crash_point import reach
from conduit_py.dead_letter import Failure
from conduit_py.errors import ContractBroken
from conduit_py.payloads import Payloads, Positions, TableRows, estimated_bytes, join
from conduit_py.record import Record, count_records, group_sizes
from conduit_py.sdk.source import EndOfSource, NothingYet, SourceConnector
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.fan_out import FanOut
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.plugin_calls import TURN_SECONDS, PluginCaller, PluginErrors, check_reading, is_async
from conduit_py.stream.processor_node import ProcessorNode, run_chain
from conduit_py.stream.signal import IdleBackoff, Signal


class Reader:
    """Reads a source until it ends or `stop` is called, then closes the buffer.

    Invariant 6: never requests more records than the ledger has credit for. Invariant 7: does not
    read while the window or the buffer is full. `completed` is True if the source ended without a stop.

    A source that is quick is read by the dispatcher, which calls `pull`. The task of the reader only waits for what
    the source lacks, because a change of tasks costs more than to read a batch.
    """

    def __init__(
        self,
        node: str,
        source: SourceConnector[Any],
        calls: PluginCaller,
        ledger: Ledger,
        buffer: "ReadBuffer",
        wake: Signal,
        meter: Meter,
    ) -> None:
        self._node = node
        self._source = source
        self._calls = calls
        self._ledger = ledger
        self._buffer = buffer
        self._wake = wake
        self._meter = meter
        self._stop_requested = trio.Event()
        self._stop_called = False
        self._scope = trio.CancelScope()
        self._may_pull = False
        self._idle: IdleBackoff | None = None
        self._end_of_pulls = Signal()
        self._why_ended: EndOfSource | NothingYet | None = None
        buffer.pull = self.pull
        self.completed = False

    def stop(self) -> None:
        """Stop reading. `run` returns after the current `read`."""
        # Invariant 8: a graceful stop reaches only the readers. All other nodes end by their closed channels.
        self._stop_requested.set()
        self._wake.set()
        self._may_pull = False
        self._end_of_pulls.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._interrupt_read)
            with self._scope:
                await self._read_all()
            self._buffer.close()
            # A `stop` that has begun may still talk to the upstream system. Cancel only the wait for a stop.
            if not self._stop_requested.is_set():
                nursery.cancel_scope.cancel()

    async def _read_all(self) -> None:
        while n := await self._wait_for_room():
            signal = await (self._let_pull() if self._calls.is_quick("read") else self._read(n))
            if isinstance(signal, EndOfSource):
                # A stopped source may end in the same way, but a restart would find more records.
                self.completed = not self._stop_requested.is_set()
                return
            if isinstance(signal, NothingYet):
                self._idle = self._idle or IdleBackoff()
                # Waits for a stop, not just for the time: a stop must not take as long as the back-off.
                with self._meter.waiting(WaitReason.SOURCE), trio.move_on_after(self._idle.next()):
                    await self._stop_requested.wait()

    async def _read(self, n: int) -> EndOfSource | NothingYet | None:
        """Read once; return what the source raised in place of records."""
        with PluginErrors(self._node, "read"), self._meter.waiting(WaitReason.SOURCE):
            try:
                reading = await self._calls("read", n)
            # Inside of this block, or `PluginErrors` would turn these signals into NodeFailed.
            except (EndOfSource, NothingYet) as signal:
                return signal
        self._accept(reading, n)
        return None

    def _accept(self, reading: Any, n: int) -> None:
        records, refused = check_reading(self._node, reading, n)
        self._idle, count = None, len(records)
        # Invariant 6: counted when read, not when sent. Records in the buffer are in flight too.
        self._ledger.admit(count)
        # Records in columns are never groups.
        self._meter.records += count_records(records) if isinstance(records, list) else count
        self._meter.batches += 1
        self._meter.batch_sizes.observe(count)
        self._buffer.put(records, refused)

    async def _let_pull(self) -> EndOfSource | NothingYet | None:
        """Let the dispatcher read until it cannot go on; return what the source raised, if that is why."""
        self._may_pull, self._why_ended = True, None
        # The dispatcher may be waiting for records.
        self._buffer.wake()
        await self._end_of_pulls.wait()
        self._may_pull = False
        return self._why_ended

    def pull(self) -> None:
        """Read a quick source until half a batch is there, or for as long as one turn of a task may take."""
        until = trio.current_time() + TURN_SECONDS
        while self._may_pull:
            n = min(self._buffer.room, self._ledger.credit)
            self._may_pull = n > 0 and self._calls.is_quick("read")
            if self._may_pull:
                with PluginErrors(self._node, "read"):
                    try:
                        reading = self._calls.call_here("read", n)
                    except (EndOfSource, NothingYet) as signal:
                        self._may_pull, self._why_ended = False, signal
            if not self._may_pull:
                self._end_of_pulls.set()
                return
            self._accept(reading, n)
            # A source of single records fills a batch, but no record waits for long.
            if self._buffer.half_full or trio.current_time() >= until:
                return

    async def _wait_for_room(self) -> int:
        """Wait until records may be read; return how many, or 0 after a stop."""
        while not self._stop_requested.is_set():
            # Invariants 6 and 7: credit bounds what is in flight, the buffer what waits for the dispatcher.
            if n := min(self._buffer.room, self._ledger.credit):
                return n
            with self._meter.waiting(WaitReason.CHANNEL if self._ledger.credit else WaitReason.WINDOW):
                await self._wake.wait()
        return 0

    async def _interrupt_read(self) -> None:
        """Wait for `stop`, then make a waiting `read` return."""
        await self._stop_requested.wait()
        if not self._calls.inherits("stop"):
            await self._call_stop()
        # A sync `read` cannot be interrupted: it returns by itself, or the deadline of the stop ends the run.
        elif is_async(self._source.read):
            self._scope.cancel()

    async def _call_stop(self) -> None:
        def stop() -> Any:
            # Set only here: a forceful stop may cancel the call before it begins, and `close` must then repeat it.
            self._stop_called = True
            return self._source.stop()

        with PluginErrors(self._node, "stop"):
            if is_async(self._source.stop):
                await stop()
            else:
                # Not in the thread of the node, which may be blocked in `read`.
                await trio.to_thread.run_sync(stop, abandon_on_cancel=True)

    async def close(self) -> None:
        """Tear the source down. If a cancelled run left a `read` in its thread, `stop` makes it return first."""
        try:
            if not self._stop_called and not self._calls.inherits("stop") and self._calls.busy:
                await self._call_stop()
        finally:
            # Also if `stop` failed: teardown releases what `open` acquired.
            await self._calls("teardown")


_MEASURED = 2
"""How many records of a read are measured to estimate the size of all."""


class ReadBuffer:
    """Holds at most one batch. The reader adds records; the dispatcher takes all of them at once.

    While the pipeline is busy, a source that returns single records fills a batch here. While it is
    idle, a single record passes at once.
    """

    def __init__(self, batch_size: int, taken: Signal) -> None:
        self.batch_size = batch_size
        self.pull: Callable[[], None] = lambda: None
        """Puts records into this buffer if that needs no wait."""
        self._taken = taken
        self._filled = Signal()
        self._yields_at = float("-inf")
        self._closed = False
        self._records: list[Record] | Payloads = []
        self._fitting = batch_size
        self._refused: dict[int, str] = {}
        self._read_at = 0.0

    @property
    def room(self) -> int:
        """How many records fit into the batch. Large ones make small batches."""
        return max(min(self.batch_size, self._fitting) - len(self._records), 0)

    @property
    def half_full(self) -> bool:
        return 2 * len(self._records) >= min(self.batch_size, self._fitting)

    def put(self, records: "list[Record] | Payloads", refused: Mapping[int, str]) -> None:
        """Add at most `room` records; `refused` maps indices among them to reasons."""
        assert len(records) <= self.room
        # Measured on what was read last: a size is known only when the record is there. Groups are large on purpose.
        if isinstance(records, Payloads) or type(records[0]) is Record:
            in_table = isinstance(records, Payloads) and isinstance(records.payloads, TableRows)
            most = defaults.TABLE_BYTES if in_table else defaults.BATCH_BYTES
            self._fitting = max(1, most * len(records) // estimated_bytes(records, _MEASURED))
        if self._records:
            self._refused.update((len(self._records) + index, reason) for index, reason in refused.items())
            self._records = join(self._records, records)
        else:
            self._read_at = trio.current_time()
            self._refused.update(refused)
            # Copied into our own list, because the source may reuse the one it returned.
            self._records = list(records) if isinstance(records, list) else records
        self._filled.set()

    def wake(self) -> None:
        """Let `take` call `pull` again."""
        self._filled.set()

    def close(self) -> None:
        """Let `take` return None after the last record."""
        self._closed = True
        self._filled.set()

    async def take(self) -> "tuple[list[Record] | Payloads, dict[int, str], float] | None":
        """Wait for records, then remove and return all, with the time of the first read; None when closed and empty."""
        # `pull` is no checkpoint: a dispatcher that never waits would starve every other task. But one round of all
        # tasks costs more than a small batch.
        if trio.current_time() >= self._yields_at:
            await trio.lowlevel.checkpoint()
            self._yields_at = trio.current_time() + TURN_SECONDS
        while not self._records:
            self.pull()
            if not self._records:
                if self._closed:
                    return None
                await self._filled.wait()
        taken = self._records, self._refused, self._read_at
        self._records, self._refused = [], {}
        # The reader may be waiting for this room, not for credit.
        self._taken.set()
        return taken


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
                positions = records.positions if isinstance(records, Payloads) else [each.position for each in records]
                self._check(positions)
                # Before registration: every message in the ledger counts as part of the open transaction.
                await context.commit.admit(context.node, records, positions)
                span = self._ledger.register(positions, read_at)
                sequences = range(span.first, span.first + len(positions))
                reach("dispatcher.after_register")
                if isinstance(records, Payloads):
                    batch = Batch.of_payloads(span, records.payloads, sequences, None, records.kind, records.columns)
                else:
                    span.sizes = group_sizes(records)
                    batch = Batch(span, records, sequences)
                if context.tap_point.taps:
                    context.tap_point.read(batch, refused)
                await run_chain(self._chain, self._nack(batch, refused) if refused else batch, self._fan_out)
        context.commit.finish(context.node)
        if self.on_end is not None:
            self.on_end()

    def _check(self, positions: Sequence[bytes]) -> None:
        """Check the positions: an empty one would erase the stored position, and a repeated one is ambiguous."""
        node = self._context.node
        if isinstance(positions, Positions):
            # Made from one template, so they differ exactly if their numbers do. A range never repeats one.
            numbers = positions.numbers
            distinct = positions.ascending or isinstance(numbers, range)
            repeats = not distinct and len(set(numbers)) < len(numbers)
            if repeats or positions[0] == self._last_position:
                raise ContractBroken(node, "read() returned a position twice")
            self._last_position = positions[-1]
            return
        if set(map(type, positions)) != {bytes}:
            kind = next(type(position).__name__ for position in positions if type(position) is not bytes)
            raise ContractBroken(node, f"read() returned a record whose position is {kind}, not bytes")
        if not all(positions):
            raise ContractBroken(node, "read() returned a record without a position")
        if len(set(positions)) < len(positions) or positions[0] == self._last_position:
            raise ContractBroken(node, "read() returned a position twice")
        self._last_position = positions[-1]

    def _nack(self, batch: Batch, refused: Mapping[int, str]) -> Batch:
        """Nack the records that the source could not parse; return the rest of the batch."""
        for index in sorted(refused):
            self._context.nack(batch, index, batch.record(index), Failure(self._context.node, refused[index]))
        return batch.select([index for index in range(len(batch)) if index not in refused])
