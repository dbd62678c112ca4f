"""TransactionGate: keeps the transactions of a run apart, and decides when the next one may be written."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter
from conduit_py.graph.node import Graph
from conduit_py.payloads import estimated_bytes
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.store.claim import Changes, PublishedMessage, ShardChange
from conduit_py.store.stored_letter import SettledLetter
from conduit_py.stream.ledger import SettledRange
from conduit_py.stream.signal import PROGRESS_SECONDS, Pace, Signal

COMMIT_SECONDS = 0.005


class TransactionGate:
    """Dispatchers enter with their records, writers wait before they write, and one committer opens and closes.

    A transaction is everything that entered since the gate was opened. The committer closes the gate and waits
    until all of that is settled. Then it opens the gate for the next transaction and commits this one, while
    writers wait. The next one is read and processed meanwhile, but neither state nor stages ever hold parts of
    two transactions (I5).
    """

    def __init__(self, limits: TransactionLimits) -> None:
        self.limits = limits
        self.changed = Signal()
        """Wakes the committer to check its conditions again."""
        self.records = 0
        self.bytes = 0
        self.full = False
        self.opened_at = 0.0
        self.last: tuple[str, bytes] = ("", b"")
        """The source and position of the record that entered last."""
        self.pace = Pace(COMMIT_SECONDS)
        self.entrants = 0
        """The number of sources that have not ended, plus one for the replay of dead letters."""
        self.units = 0
        """How many times a source entered that was not inside of a group."""
        self.in_group: set[str] = set()
        """The atomic sources whose last records do not end their group."""
        self.has_progress = False
        """True if a source has progress without a record in the open transaction."""
        self.abandoned = False
        """True if the open transaction has a part of a group, and will never have the rest."""
        self._sealed_at = float("-inf")
        self._closed = False
        self._opened = trio.Event()
        self.holds_writes = False
        self._released = trio.Event()

    async def enter(self, source: str, records: Sequence[Record], position: bytes, continues: bool = False) -> None:
        """Wait for room in the open transaction. On return the records are part of it, the last at `position`.

        With `continues` the transaction cannot end before this source enters with the rest of the group.
        """
        size = estimated_bytes(records)
        # I18: the rest of a group enters whatever the limits, even when the gate is closed, or half of it could be
        # committed. For all others a loop: another source may fill the next transaction before this task runs again.
        while not self.abandoned and source not in self.in_group and not self._admits(len(records), size):
            # Records that do not fit end the transaction, or they would wait for `max_seconds`.
            if not self._closed and not self.full:
                self.full = True
                self.changed.set()
            await self._opened.wait()
        if not self.records:
            self.opened_at = trio.current_time()
            self.changed.set()
        self.units += source not in self.in_group
        self.records += len(records)
        self.bytes += size
        self.last = (source, position)
        if continues:
            self.in_group.add(source)
        elif source in self.in_group:
            self._end_group(source)

    def advance(self, source: str, continues: bool, *, new: bool) -> None:
        """Note progress of a source without a record, if it is `new`. It may end a group, but does not begin one."""
        if new and not self.has_progress:
            self.has_progress = True
            self.changed.set()
        if not continues and source in self.in_group:
            self._end_group(source)

    def _end_group(self, source: str) -> None:
        self.in_group.discard(source)
        self.changed.set()

    def leave(self, source: str) -> None:
        """Count a source that has ended. If it was stopped inside of a group, the open transaction is abandoned."""
        self.entrants -= 1
        if source in self.in_group:
            self.abandoned = True
            self._opened.set()
        self.changed.set()

    def _admits(self, count: int, size: int) -> bool:
        if self.closing:
            return False
        if not self.records:
            # An empty transaction admits any size. A record larger than `max_bytes` would otherwise wait for ever.
            return True
        limits = self.limits
        fits = self.records + count <= limits.max_records and self.bytes + size <= limits.max_bytes
        return fits and trio.current_time() < self.opened_at + limits.max_seconds

    def due_at(self, *, stalled: bool) -> float:
        """Return the time at which to close the open transaction: at once when it is full.

        Without more input it closes after `min_seconds`, but not before the pace allows the next commit.
        """
        if not self.records:
            # A commit of nothing would still cost a write to the disk, and so does one of progress alone.
            return self._sealed_at + PROGRESS_SECONDS if self.has_progress else float("inf")
        if self.full or self.records >= self.limits.max_records or self.bytes >= self.limits.max_bytes:
            return float("-inf")
        latest = self.opened_at + self.limits.max_seconds
        if not stalled:
            return latest
        return min(latest, max(self.opened_at + self.limits.min_seconds, self.pace.due_at))

    @property
    def closing(self) -> bool:
        """True if no more records are admitted to the open transaction."""
        return self._closed or self.full

    def close(self) -> None:
        """Admit no more records to the open transaction."""
        self._closed = True

    def defer(self) -> trio.Event:
        """End the transaction once its records are settled or held. The event is set when the next one begins."""
        self.full = True
        self.changed.set()
        return self._opened

    def seal(self, held: Sequence[Batch] = ()) -> int:
        """Complete the closed transaction; return its number of records. Held records count in the next one."""
        # Pieces of a split record have one sequence, and the record was counted once when it entered.
        carried = sum(len(set(batch.sequences)) for batch in held)
        self.has_progress, self._sealed_at = False, trio.current_time()
        records, self.records = self.records - carried, carried
        self.bytes = sum(estimated_bytes(batch.records) for batch in held)
        if held:
            last = held[-1]
            self.last = (last.source, last.span.position(last.sequences[-1]))
        return records

    def open_next(self) -> None:
        """Begin the next transaction. Its records are read and processed, but not written before `release`."""
        self.full = self._closed = False
        self.units = 0
        self.opened_at = trio.current_time()
        self.holds_writes, self._released = True, trio.Event()
        self._opened.set()
        # Replaced at once: a task that waits on an event that stays set would spin.
        self._opened = trio.Event()

    def release(self) -> None:
        """Allow writes of the open transaction. Call this when the one before is committed and applied."""
        self.holds_writes = False
        self._released.set()

    async def wait_writable(self) -> None:
        """Wait until the transaction before the open one is committed and applied."""
        # I5: a loop, because the next transaction may be opened, and held, before this task runs again.
        while self.holds_writes:
            await self._released.wait()


@dataclass(frozen=True)
class Sealed:
    """A closed transaction in which every record is settled, with all its changes."""

    records: int
    ranges: dict[str, list[SettledRange]]
    letters: list[DeadLetter]
    replayed: list[SettledLetter]
    puts: dict[bytes, bytes | None]
    once: list[tuple[str, bytes]]
    outbox: list[PublishedMessage]

    @property
    def positions(self) -> dict[str, bytes]:
        return {source: ranges[-1].positions[-1] for source, ranges in self.ranges.items() if ranges}

    def changes(self, number: int, checkpoint: bytes, shards: list[ShardChange]) -> Changes:
        """Return what one commit makes durable: all of this, with the checkpoint and the progress of shared work."""
        return Changes(
            number,
            checkpoint,
            puts=self.puts,
            once=self.once,
            messages=self.outbox,
            positions=self.positions,
            shards=shards,
        )


class HeldRecords:
    """Passes the batches of an inbox to a processor, and holds them from a deferred record on.

    Held records have changed neither state nor destinations, because no processor with state and no fan-out comes
    before this processor. The transaction is complete when all other records are settled, and its commit does not
    have the positions of held ones (I17). While it holds, it also receives new batches: only then are they known
    to be held. `open` passes everything held, in order, to the next transaction.
    """

    def __init__(self, gate: TransactionGate, voters: int) -> None:
        self._gate = gate
        self._voters = voters.bit_count()
        self._inbox: deque[Batch] = deque()
        self._shut = False

    async def receive(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """Return the next batch: a held one first, then one from the inbox. Raises EndOfChannel."""
        return self._inbox.popleft() if self._inbox else await inbox.receive()

    async def next_transaction(self, rest: Batch, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """End the transaction before these records. Returns them when the next transaction has begun.

        Raises EndOfChannel after the last batch of a run that was stopped inside of a group.
        """
        # I17: in front of what is held already, so that the next transaction keeps the order.
        self._inbox.appendleft(rest)
        self._shut = True
        opened = self._gate.defer()
        async with trio.open_nursery() as nursery:
            # A batch left in the channel counts as unsettled, and this transaction would never end.
            nursery.start_soon(self._take_in, inbox)
            await opened.wait()
            nursery.cancel_scope.cancel()
        if self._gate.abandoned:
            # I18: no transaction follows, so these records would be deferred for ever. The next run reads them again.
            async for _ in inbox:
                pass
            raise trio.EndOfChannel
        return self._inbox.popleft()

    async def _take_in(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> None:
        async for batch in inbox:
            self._inbox.append(batch)
            self._gate.changed.set()

    @property
    def held(self) -> list[Batch]:
        """The batches that wait for the next transaction."""
        return list(self._inbox) if self._shut else []

    @property
    def votes(self) -> dict[tuple[str, int], int]:
        """The votes outstanding on held batches, by the source and first sequence of their span."""
        return {(batch.span.source, batch.span.first): len(batch) * self._voters for batch in self.held}

    def open(self) -> None:
        """Pass the held batches to the transaction that begins now."""
        self._shut = False


def within_windows(graph: Graph, limits: TransactionLimits) -> TransactionLimits:
    """Limit transactions to half of the smallest window: two are in flight, and a full window blocks its source.

    They may be open as long as records wait for others before a processor.
    """
    fits = max(1, min(source.window for source in graph.pipeline.sources) // 2)
    seconds = max((node.collects for node in graph.nodes.values()), default=0.0)
    changes = {"max_records": min(limits.max_records, fits), "max_seconds": max(limits.max_seconds, seconds)}
    return limits.model_copy(update=changes)
