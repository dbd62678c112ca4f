"""TransactionGate: keeps the transactions of a run apart: what belongs to one, and when the next may be written."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import trio

from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.store.claim import Intent
from conduit_py.store.stored_letter import SettledLetter
from conduit_py.stream.ledger import SettledRange
from conduit_py.stream.signal import Pace, Signal

COMMIT_SECONDS = 0.005
SAMPLE_SIZE = 8


class TransactionGate:
    """Dispatchers enter with what they read, writers ask before they write, one committer closes and opens.

    A transaction is what has entered since the gate was opened. The committer closes it, waits until all of
    that is settled, and opens it for the next transaction while it commits this one; writers are held until
    that is done. So neither the state of processors nor the stages of destinations ever hold parts of two
    transactions (I5), though the next one is read and processed meanwhile.
    """

    def __init__(self, limits: TransactionLimits) -> None:
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


@dataclass(frozen=True)
class Sealed:
    """A transaction that nothing more enters, everything in which is settled."""

    records: int
    ranges: dict[str, list[SettledRange]]
    letters: list[DeadLetter]
    replayed: list[SettledLetter]
    puts: dict[bytes, bytes | None]
    once: list[tuple[str, bytes]]
    outbox: list[Intent]

    @property
    def positions(self) -> dict[str, bytes]:
        return {source: ranges[-1].positions[-1] for source, ranges in self.ranges.items() if ranges}


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


class HeldRecords:
    """Gives a processor the batches of its inbox, and shuts behind the record before a deferred one.

    What has not passed the door has touched neither state nor destination, for there is no processor with state
    and no fan-out before it: so the transaction is complete when everything else is settled, and the positions
    of what is held are not in its commit. Shut, the door takes in what comes, for only there it is known to be
    held. The committer opens it with the next transaction, which begins with what was held, in order.
    """

    def __init__(self, gate: TransactionGate, voters: int) -> None:
        self._gate = gate
        self._voters = voters.bit_count()
        self._inbox: deque[Batch] = deque()
        self._shut = False

    async def receive(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """The next batch: one that was held, or one that comes. Raises EndOfChannel."""
        return self._inbox.popleft() if self._inbox else await inbox.receive()

    async def next_transaction(self, rest: Batch, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """Have the transaction end before these records; they are given back when the next one has begun."""
        self._inbox.appendleft(rest)
        self._shut = True
        opened = self._gate.defer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_in, inbox)
            await opened.wait()
            nursery.cancel_scope.cancel()
        return self._inbox.popleft()

    async def _take_in(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> None:
        async for batch in inbox:
            self._inbox.append(batch)
            self._gate.changed.set()

    @property
    def held(self) -> list[Batch]:
        """What waits for the next transaction."""
        return list(self._inbox) if self._shut else []

    @property
    def votes(self) -> dict[tuple[str, int], int]:
        """How many votes are outstanding on what is held, by the source and first sequence of its span."""
        return {(batch.span.source, batch.span.first): len(batch) * self._voters for batch in self.held}

    def open(self) -> None:
        """What is held belongs to the transaction that begins now."""
        self._shut = False
