"""Reader: the sole caller of a source's `read`; reads only what the window has room for."""

from collections.abc import Mapping
from typing import Any

import trio

from conduit_py.errors import ContractBroken
from conduit_py.record import RECORD_TYPES, Record, count_records
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading, SourceConnector
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, is_async, plugin_errors
from conduit_py.stream.signal import IdleBackoff, Signal


class Reader:
    """Reads a source until it ends or the run is told to stop, then closes the buffer.

    Invariant 6: never asks for more records than the ledger has credit for. Invariant 7: does not
    read while the window or the buffer is full. `completed` tells an end of the source from a stop.
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
        self.completed = False

    def stop(self) -> None:
        """Stop reading: invariant 8, the only thing a graceful stop tells anybody."""
        # Invariant 8: a graceful stop only ends reading; everything behind the reader drains.
        self._stop_requested.set()
        self._wake.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._interrupt_read)
            with self._scope:
                await self._read_all()
            self._buffer.close()
            # A `stop` that has begun may still have something to say upstream; only a wait for one is in vain.
            if not self._stop_requested.is_set():
                nursery.cancel_scope.cancel()

    async def _read_all(self) -> None:
        idle = IdleBackoff()
        while n := await self._room():
            try:
                reading = await self._read(n)
            except EndOfSource:
                # A source that was told to stop ends in the same way, but is not completed.
                self.completed = not self._stop_requested.is_set()
                return
            except NothingYet:
                with self._meter.waiting(WaitReason.SOURCE), trio.move_on_after(idle.next()):
                    await self._stop_requested.wait()
                continue
            idle.reset()
            self._accept(reading, n)

    async def _room(self) -> int:
        """Wait until records may be read; 0 when the run is to stop."""
        while not self._stop_requested.is_set():
            # Invariants 6 and 7: no more than there is credit for, and nothing while window or buffer are full.
            if n := min(self._buffer.room, self._ledger.credit):
                return n
            with self._meter.waiting(WaitReason.CHANNEL if self._ledger.credit else WaitReason.WINDOW):
                await self._wake.wait()
        return 0

    async def _read(self, n: int) -> Any:
        with plugin_errors(self._node, "read"), self._meter.waiting(WaitReason.SOURCE):
            try:
                return await self._calls("read", n)
            except (EndOfSource, NothingYet) as signal:
                said: Exception = signal
        raise said

    async def _interrupt_read(self) -> None:
        """Once told to stop, make a waiting `read` return."""
        await self._stop_requested.wait()
        if not self._calls.inherits("stop"):
            await self._call_stop()
        elif is_async(self._source.read):
            self._scope.cancel()

    async def _call_stop(self) -> None:
        def stop() -> Any:
            # Noted only now: a forceful stop may come before the call has begun.
            self._stop_called = True
            return self._source.stop()

        with plugin_errors(self._node, "stop"):
            if is_async(self._source.stop):
                await stop()
            else:
                # Not in the node's own thread: that one may be the one inside `read`.
                await trio.to_thread.run_sync(stop, abandon_on_cancel=True)

    async def close(self) -> None:
        """Tear the source down. A `read` that a run cut short has left in its thread is made to return before."""
        try:
            if self._calls.busy and not self._stop_called and not self._calls.inherits("stop"):
                await self._call_stop()
        finally:
            await self._calls("teardown")

    def _accept(self, reading: Any, n: int) -> None:
        records, refused = (reading.records, reading.refused) if isinstance(reading, Reading) else (reading, {})
        self._check(records, n)
        if refused != {}:
            self._check_refusals(refused, len(records))
        self._ledger.admit(len(records))
        self._meter.records += count_records(records)
        self._meter.batches += 1
        self._meter.batch_sizes.observe(len(records))
        self._buffer.put(records, refused)

    def _check(self, records: Any, n: int) -> None:
        if not records:
            rule = "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource"
            raise ContractBroken(self._node, rule)
        if not isinstance(records, list) or not set(map(type, records)) <= RECORD_TYPES:
            raise ContractBroken(self._node, "read() must return a list of Record")
        if len(records) > n:
            raise ContractBroken(self._node, f"read({n}) returned {len(records)} records")

    def _check_refusals(self, refused: Any, count: int) -> None:
        """Checked for each reading: once several are put together, a wrong index would hit another's record."""
        if not isinstance(refused, Mapping):
            rule = f"read() must give refused records as a mapping of index to reason, not {type(refused).__name__}"
            raise ContractBroken(self._node, rule)
        for index in refused:
            if not isinstance(index, int) or not 0 <= index < count:
                raise ContractBroken(self._node, f"read() refused record {index!r} of {count}")


class ReadBuffer:
    """Holds at most one batch between the reader, who adds, and the dispatcher, who takes all at once.

    While the pipeline is busy a source that yields single records fills a batch by itself; while it is
    idle a single record goes through at once.
    """

    def __init__(self, batch_size: int, taken: Signal) -> None:
        self.batch_size = batch_size
        self._taken = taken
        self._filled = Signal()
        self._closed = False
        self._records: list[Record] = []
        self._refused: dict[int, str] = {}
        self._read_at = 0.0

    @property
    def room(self) -> int:
        return self.batch_size - len(self._records)

    def put(self, records: list[Record], refused: Mapping[int, str]) -> None:
        """Add records, at most `room`; `refused` maps indices among them to reasons."""
        assert len(records) <= self.room
        if not self._records:
            self._read_at = trio.current_time()
        offset = len(self._records)
        # Copied into a list of our own: the source may use the one it returned again.
        self._records += records
        self._refused.update((offset + index, reason) for index, reason in refused.items())
        self._filled.set()

    def close(self) -> None:
        """No more records will be added."""
        self._closed = True
        self._filled.set()

    async def take(self) -> tuple[list[Record], dict[int, str], float] | None:
        """Wait for records and take all of them, with the time the first was read; None when closed and empty."""
        while not self._records:
            if self._closed:
                return None
            await self._filled.wait()
        taken = self._records, self._refused, self._read_at
        self._records, self._refused = [], {}
        self._taken.set()
        return taken
