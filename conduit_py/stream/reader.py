"""Reader, ReadBuffer and Dispatcher: read the records of a source, within the window, and send them downstream."""

from collections.abc import Callable, Mapping
from typing import Any

import trio
from msgspec.structs import replace

from conduit_py import defaults
from conduit_py.batch import Batch
from conduit_py.crash_point import reach
from conduit_py.errors import ContractBroken
from conduit_py.payloads import Payloads, TableRows, estimated_bytes, join
from conduit_py.record import CollectionSchema, Record, count_records, group_sizes
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading, Records, SourceConnector
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.fan_out import FanOut, start_chain
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, check_positions, check_reading, is_async
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.signal import TURN_SECONDS, FairShare, IdleBackoff, Signal


class Reader:
    """Reads a source until it ends or `stop` is called, then closes the buffer.

    Invariant 6: never requests more records than the ledger has credit for. Invariant 7: does not
    read while the window or the buffer is full. `completed` is True if the source ended without a stop.

    A quick source is read by the dispatcher, which calls `pull`: a change of tasks costs more than to read a batch.
    With `reads_ahead` it is read here, while processes have the batch before.
    """

    def __init__(
        self,
        context: NodeContext,
        source: SourceConnector[Any],
        calls: PluginCaller,
        ledger: Ledger,
        buffer: "ReadBuffer",
        wake: Signal,
    ) -> None:
        self._node, self._meter = context.node, context.meter
        self._source, self._calls = source, calls
        self._ledger, self._buffer, self._wake = ledger, buffer, wake
        self._errors = PluginErrors(context.node, "read")
        self._stop_requested, self._scope = trio.Event(), trio.CancelScope()
        self._stop_called = self._may_pull = self._in_group = self.reads_ahead = self.completed = False
        self._idle: IdleBackoff | None = None
        self._end_of_pulls = Signal()
        self._why_ended: EndOfSource | NothingYet | None = None
        self._progress: bytes | None = None
        buffer.pull = self.pull

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
            if "read" in self._calls.quick and not self.reads_ahead:
                # The dispatcher may be waiting for records. It reads until it cannot go on.
                self._may_pull, self._why_ended = True, None
                self._buffer.filled.set()
                await self._end_of_pulls.wait()
                self._may_pull, signal = False, self._why_ended
            elif self.reads_ahead and self._buffer.was_taken:
                # The parts of that batch are sent to their processes first.
                self._buffer.was_taken = False
                await trio.sleep(TURN_SECONDS)
                continue
            else:
                signal = await self._read(n)
            if isinstance(signal, EndOfSource):
                # A stopped source may end in the same way, but a restart would find more records.
                self.completed = not self._stop_requested.is_set()
                if self.completed and self._in_group:
                    rule = "read() raised EndOfSource inside a group: the reading before it has continues=True"
                    raise ContractBroken(self._node, rule)
                return
            if isinstance(signal, NothingYet):
                self._idle = self._idle or IdleBackoff()
                # Waits for a stop, not just for the time: a stop must not take as long as the back-off.
                with self._meter.waiting(WaitReason.SOURCE), trio.move_on_after(self._idle.next()):
                    await self._stop_requested.wait()

    async def _read(self, n: int) -> EndOfSource | NothingYet | None:
        """Read once; return what the source raised in place of records."""
        with self._errors, self._meter.waiting(WaitReason.SOURCE):
            try:
                reading = await self._calls("read", n)
            # Inside of this block, or `PluginErrors` would turn these signals into NodeFailed.
            except (EndOfSource, NothingYet) as signal:
                return signal
        return self._accept(reading, n)

    def _accept(self, returned: Any, n: int) -> NothingYet | None:
        """Put what was read into the buffer; return NothingYet if that is nothing new."""
        reading = check_reading(self._node, returned, n)
        records, self._in_group = reading.records, reading.continues
        if isinstance(records, Payloads):
            # Records in columns are never groups.
            count = read = len(records.payloads)
        else:
            count, read = len(records), count_records(records)
        is_known, self._progress = reading.position == self._progress, reading.position
        if count:
            self._idle = None
            # Invariant 6: counted when read, not when sent. Records in the buffer are in flight too.
            self._ledger.admit(count)
            self._meter.count_batch(count)
            self._meter.records += read - count
        self._buffer.put(reading, count)
        # The same progress again is none: a source that returns it without a wait would never let others run.
        return NothingYet() if is_known and not count else None

    def pull(self) -> None:
        """Read a quick source until half a batch is there, or the turn of the dispatcher is over."""
        while self._may_pull:
            n = min(self._buffer.room, self._ledger.credit)
            self._may_pull = n > 0 and "read" in self._calls.quick
            if self._may_pull:
                try:
                    reading = self._calls.call_here("read", n)
                except (EndOfSource, NothingYet) as signal:
                    self._may_pull, self._why_ended = False, signal
                except BaseException as error:  # plugin boundary: the source is the user's
                    self._errors.translate(error)
                    raise
            if self._may_pull and (idle := self._accept(reading, n)) is not None:
                self._may_pull, self._why_ended = False, idle
            if not self._may_pull:
                self._end_of_pulls.set()
                return
            # A source of single records fills a batch, but no record waits for long.
            if self._buffer.half_full or self._buffer.clock() >= self._buffer.turn_ends_at:
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


class ReadBuffer:
    """Holds at most one batch, which the reader fills and the dispatcher takes; and one reading that must not join it.

    While the pipeline is busy, a source of single records fills a batch here. While it is idle, one passes at once.
    """

    def __init__(self, batch_size: int, taken: Signal, *, atomic: bool = False) -> None:
        self._atomic = atomic
        self.pull: Callable[[], None] = lambda: None
        """Puts records into this buffer if that needs no wait."""
        # That of the run, found once: `trio.current_time` looks for it each time.
        self.clock = trio.lowlevel.current_clock().current_time
        self.turn_ends_at = float("-inf")
        """When the dispatcher must let other tasks run."""
        self._taken = taken
        self.filled = Signal()
        """Set when there may be something to take."""
        self.was_taken, self._closed, self._reads = False, False, list[Records]()
        self._held: Reading | None = None
        """All reads as one; their records are joined when they are taken."""
        self._next: Reading | None = None
        self._count, self._read_at, self._fitting, self._share = 0, 0.0, batch_size, FairShare()
        self.resize(batch_size)

    def resize(self, batch_size: int) -> None:
        """Let a batch have at most this many records, fewer if they are large or others wait; `room` is for more."""
        self.batch_size, self._most = batch_size, min(batch_size, self._fitting, self._share.records)
        self.room = max(self._most - self._count, 0) if self._next is None else 0
        self.half_full = 2 * self._count >= self._most

    def put(self, reading: Reading, count: int) -> None:
        """Add a reading of `count` records, for which there is room."""
        records = reading.records
        # Measured on what was read last: a size is known only when the record is there. Groups are large on purpose.
        if count and (isinstance(records, Payloads) or type(records[0]) is Record):
            in_table = isinstance(records, Payloads) and type(records.payloads) is TableRows
            most = defaults.TABLE_BYTES if in_table else defaults.BATCH_BYTES
            self._fitting = max(1, most * count // estimated_bytes(records, sample_size=2))
        # Copied into our own list, because the source may reuse the one it returned.
        own, held = list(records) if isinstance(records, list) else records, self._held
        if held is not None and (reading.schemas or (self._atomic and reading.continues and not held.continues)):
            # A batch has one schema for each collection. And it ends where a transaction can: if each ended inside
            # of some group, no transaction would ever end.
            self._next = replace(reading, records=own)
        else:
            if held is None:
                held = self._held = Reading([], {}, schemas=reading.schemas)
                self._read_at = self.clock()
            if reading.refused:
                later = {self._count + index: reason for index, reason in reading.refused.items()}
                held.refused = {**held.refused, **later}
            if count:
                self._reads.append(own)
                self._count += count
            # Progress before a record is not lost: the position of that record is beyond it.
            held.position, held.continues = reading.position, reading.continues
        self.resize(self.batch_size)
        self.filled.set()

    def close(self) -> None:
        """Let `take` return None after the last record."""
        self._closed = True
        self.filled.set()

    async def take(self) -> tuple[Reading, float] | None:
        """Wait for a reading; remove and return it, with the time of the first read. None when closed and empty."""
        # `pull` is no checkpoint, and would starve all tasks. But one round of them costs more than a small batch.
        if (began := self.clock()) >= self.turn_ends_at:
            await trio.lowlevel.checkpoint()
            self.turn_ends_at = (ended := self.clock()) + TURN_SECONDS
            if self._share.note_round(ended - began, self.batch_size):
                self.resize(self.batch_size)
        while (held := self._held) is None:
            self.pull()
            if self._held is None:
                if self._closed:
                    return None
                self.was_taken = False
                await self.filled.wait()
        # Joined only here: joined at every read, a source of single records would copy all of them each time.
        if self._reads:
            held.records = self._reads[0] if len(self._reads) == 1 else join(self._reads)
        taken = held, self._read_at
        self._reads, self._count, self._held, self.room = [], 0, None, self._most
        if (following := self._next) is not None:
            self._next = None
            self.put(following, len(following.records))
        # The reader may be waiting for this room, not for credit.
        self.was_taken = True
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
        self._schemas: Mapping[str, CollectionSchema] = {}
        self.on_end: Callable[[], None] = lambda: None
        """Called after the last record of the source was sent downstream."""

    async def run(self) -> None:
        context = self._context
        with self._fan_out:
            while (taken := await self._buffer.take()) is not None:
                reading, read_at = taken
                if reading.schemas:
                    self._schemas = {**self._schemas, **{each.collection: each for each in reading.schemas}}
                records = reading.records
                if not (records.payloads if isinstance(records, Payloads) else records):
                    self._advance(reading, read_at)
                    continue
                positions = records.positions if isinstance(records, Payloads) else [each.position for each in records]
                self._last_position = check_positions(context.node, positions, self._last_position)
                # Before registration: every message in the ledger counts as part of the open transaction.
                if not context.commit.admits_at_once:
                    await context.commit.admit(context.node, records, positions, reading.continues)
                span = self._ledger.register(positions, read_at)
                span.schemas = self._schemas
                if reading.position is not None:
                    self._advance(reading, read_at)
                reach("dispatcher.after_register")
                if isinstance(records, list):
                    span.sizes = group_sizes(records)
                batch, refused = Batch.whole(span, records), reading.refused
                if context.tap_point.taps:
                    context.tap_point.read(batch, refused)
                own = [context.refuse(batch, refused) if refused else batch]
                # From here on only the chain holds the batch.
                del taken, reading, records, batch
                if (sending := start_chain(self._chain, own.pop(), self._fan_out)) is not None:
                    await sending
        context.commit.finish(context.node)
        self._ledger.is_closed = True
        self.on_end()

    def _advance(self, reading: Reading, read_at: float) -> None:
        """Register the progress of a reading. No await: it belongs to the transaction of the records before it."""
        position = reading.position
        # A keepalive may repeat the last position.
        if (new := position != self._last_position) and position is not None:
            self._last_position = position
            self._ledger.register_progress(position, read_at)
        self._context.commit.advance(self._context.node, reading.continues, new=new)
