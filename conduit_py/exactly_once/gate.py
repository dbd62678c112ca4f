"""TransactionGate: keeps the transactions of a run apart: what belongs to one, and when the next may be written."""

from collections.abc import Sequence

import msgspec
import trio

from conduit_py.batch import Batch
from conduit_py.record import Record
from conduit_py.stream.signal import Pace, Signal
from conduit_py.transaction import Transaction

COMMIT_SECONDS = 0.005
SAMPLE_SIZE = 8


class TransactionGate:
    """Dispatchers enter with what they read, writers ask before they write, one committer closes and opens.

    A transaction is what has entered since the gate was opened. The committer closes it, waits until all of
    that is settled, and opens it for the next transaction while it commits this one; writers are held until
    that is done. So neither the state of processors nor the stages of destinations ever hold parts of two
    transactions (I5), though the next one is read and processed meanwhile.
    """

    def __init__(self, limits: Transaction) -> None:
        self.limits = limits
        self.changed = Signal()
        """Something happened that the committer may be waiting for."""
        self.records = 0
        self.bytes = 0
        self.full = False
        self.opened_at = 0.0
        self.last: tuple[str, bytes] = ("", b"")
        """The source and position of the record that entered last."""
        self.pace = Pace(COMMIT_SECONDS)
        self.entrants = 0
        """How many sources may still have something to bring."""
        self._closed = False
        self._opened = trio.Event()
        self._held = False
        self._released = trio.Event()

    async def enter(self, source: str, records: Sequence[Record], position: bytes) -> None:
        """Wait for room in the open transaction. On return the records are part of it, the last at `position`."""
        size = estimated_bytes(records)
        while not self._admits(len(records), size):
            if not self._closed and not self.full:
                self.full = True
                self.changed.set()
            await self._opened.wait()
        if not self.records:
            self.opened_at = trio.current_time()
            self.changed.set()
        self.records += len(records)
        self.bytes += size
        self.last = (source, position)

    def leave(self) -> None:
        """One of the sources has nothing more to bring."""
        self.entrants -= 1
        self.changed.set()

    def _admits(self, count: int, size: int) -> bool:
        if self._closed or self.full:
            return False
        if not self.records:
            # What does not fit into any transaction has one of its own.
            return True
        limits = self.limits
        fits = self.records + count <= limits.max_records and self.bytes + size <= limits.max_bytes
        return fits and trio.current_time() < self.opened_at + limits.max_seconds

    def due_at(self, *, stalled: bool) -> float:
        """When the open transaction is to be closed if nothing else happens: at once when it is full.

        An input that stalls closes it after the minimum, but commits keep the distance that their cost asks for.
        """
        if not self.records:
            return float("inf")
        if self.full or self.records >= self.limits.max_records or self.bytes >= self.limits.max_bytes:
            return float("-inf")
        latest = self.opened_at + self.limits.max_seconds
        if not stalled:
            return latest
        return min(latest, max(self.opened_at + self.limits.min_seconds, self.pace.due_at))

    def close(self) -> None:
        """Nothing more enters the open transaction."""
        self._closed = True

    def defer(self) -> trio.Event:
        """End the transaction as soon as what has entered is settled or held; set when the next one begins."""
        self.full = True
        self.changed.set()
        return self._opened

    def seal(self, held: Sequence[Batch] = ()) -> int:
        """The closed transaction is complete: how many records it has. What is held is in the next one."""
        carried = sum(len(set(batch.sequences)) for batch in held)
        records, self.records = self.records - carried, carried
        self.bytes = sum(estimated_bytes(batch.records) for batch in held)
        if held:
            last = held[-1]
            self.last = (last.source, last.span.position(last.sequences[-1]))
        return records

    def open_next(self) -> None:
        """Let the next transaction begin, whose records are read and processed but not written yet."""
        self.full = self._closed = False
        self.opened_at = trio.current_time()
        self._held, self._released = True, trio.Event()
        self._opened.set()
        self._opened = trio.Event()

    def release(self) -> None:
        """Let the records of the open transaction be written: the last one is committed."""
        self._held = False
        self._released.set()

    async def wait_writable(self) -> None:
        """Wait until the transaction before the open one is committed."""
        while self._held:
            await self._released.wait()


def estimated_bytes(records: Sequence[Record]) -> int:
    """About how large these are, judged by a few of them: to measure each would cost more than to move it."""
    step = -(-len(records) // SAMPLE_SIZE)
    sample = records[::step]
    return sum(map(_bytes, sample)) * len(records) // len(sample)


def _bytes(record: Record) -> int:
    after = record.payload.after
    if isinstance(after, bytes) and record.payload.before is None:
        return len(after) + 64
    try:
        return len(_ENCODER.encode(record))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 1024  # A value that has no JSON is refused, if at all, where it is written.


_ENCODER = msgspec.json.Encoder()
