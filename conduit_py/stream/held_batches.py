"""HeldBatches: messages that wait until a batch of them is due, before a processor or, as WriteLimit, a write.

`join_batches` makes one batch of several, in which every message keeps its identity.
"""

import math
import sys
from collections import deque
from collections.abc import Sequence

import trio

from conduit_py.batch import Batch, Span
from conduit_py.payloads import Payloads, TableRows, estimated_bytes, join
from conduit_py.pipeline import Destination
from conduit_py.record import Record
from conduit_py.stream.signal import Throttle


class HeldBatches:
    """Holds messages until a batch of them is due.

    A batch is due when it is full, or `seconds` after its first message came. Invariant 1: the messages of a
    source leave in the order in which they came. The windows of the sources bound how many are held.
    """

    def __init__(self, seconds: float, records_max: int, bytes_max: int = sys.maxsize) -> None:
        self._seconds = seconds
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._held: dict[str, _Held] = {}
        self.due_at = math.inf
        """When the oldest message must leave; infinite if there is none."""

    def hold(self, batch: Batch) -> None:
        """Take over a batch, which leaves by `next_batches`."""
        self._held.setdefault(batch.span.source, _Held()).add(batch)
        self._note_oldest()

    def next_batches(self, *, everything: bool = False) -> list[Batch]:
        """Remove and return what is due next, of one source: batches that fit together, or none.

        With `everything` all messages are due.
        """
        everything = everything or trio.current_time() >= self.due_at
        for source, held in self._held.items():
            if everything or held.seams or held.records >= self._records_max or held.bytes >= self._bytes_max:
                part = held.take(self._records_max, self._bytes_max)
                if not held.records:
                    del self._held[source]
                self._note_oldest()
                return part
        return []

    def _note_oldest(self) -> None:
        self.due_at = min((each.oldest_at for each in self._held.values()), default=math.inf) + self._seconds


class WriteLimit(HeldBatches):
    """Holds the messages of a destination until a write is due; says how many records and bytes one may have."""

    def __init__(self, declared: Destination) -> None:
        self._throttle = Throttle(declared.rate) if declared.rate is not None else None
        records_max = declared.batch_size or sys.maxsize
        if self._throttle is not None:
            records_max = min(records_max, self._throttle.most(1.0))
        super().__init__(declared.batch_seconds or 0.0, records_max, declared.batch_bytes or sys.maxsize)

    def next_part(self, *, everything: bool = False) -> Batch | None:
        """Remove and return the next batch that is due, if there is one. With `everything` all messages are due."""
        batches = self.next_batches(everything=everything)
        return join_batches(batches) if batches else None

    async def wait(self, part: Batch) -> None:
        """Wait until the rate allows to write this part."""
        if self._throttle is not None:
            await trio.sleep(self._throttle.wait_seconds)
            self._throttle.count(len(part), _record_size(part) * len(part))


class _Held:
    """The messages of one source that wait for a write, in the batches in which they came."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Batch, float, int]] = deque()
        """Oldest first, with the time at which each came and the bytes of one record."""
        self.records = self.bytes = 0
        self.seams = 0
        """How often neighbours cannot be joined: a batch has one owner, and one schema for each collection."""

    @property
    def oldest_at(self) -> float:
        return self._batches[0][1]

    def add(self, batch: Batch) -> None:
        size = _record_size(batch)
        self.seams += bool(self._batches) and not _fit_together(self._batches[-1][0], batch)
        self._batches.append((batch, trio.current_time(), size))
        self.records += len(batch)
        self.bytes += size * len(batch)

    def take(self, records_max: int, bytes_max: int) -> list[Batch]:
        """Remove and return the oldest messages, as many as one batch may have; a record too large leaves alone."""
        taken: list[Batch] = []
        while self._batches:
            batch, came_at, size = self._batches[0]
            if taken and not _fit_together(taken[-1], batch):
                self.seams -= 1
                break
            count = min(len(batch), records_max, max(bytes_max // size, 0 if taken else 1))
            if count < len(batch):
                rest = batch.select(range(count, len(batch)))
                self._batches[0] = (rest, came_at, size)
            else:
                self._batches.popleft()
            if count:
                taken.append(batch.select(range(count)) if count < len(batch) else batch)
                self.records, self.bytes = self.records - count, self.bytes - count * size
                records_max, bytes_max = records_max - count, bytes_max - count * size
            if count < len(batch) or not records_max:
                break
        return taken


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Return the messages of consecutive batches of one source as one batch. They keep their identities."""
    if len(batches) == 1:
        return batches[0]
    parts = list(dict.fromkeys(batch.span for batch in batches))
    first, positions = parts[0].first, list[bytes]()
    sizes: list[int] | None = None if all(part.sizes is None for part in parts) else []
    for part in parts:
        # Messages between two parts were filtered or went elsewhere: their positions are not needed.
        gap = part.first - first - len(positions)
        positions += [b""] * gap + list(part.positions)
        if sizes is not None:
            sizes += [0] * gap + list(part.sizes or [1] * len(part))
    head = parts[0]
    span = Span(
        head.pipeline,
        head.source,
        first,
        positions,
        head.read_at,
        head.scope,
        head.origin,
        sizes,
        head.schemas,
        parts=parts,
    )
    sequences = [sequence for batch in batches for sequence in batch.sequences]
    pieces = None
    if any(batch.pieces is not None for batch in batches):
        pieces = [batch.piece(index) for batch in batches for index in range(len(batch))]
    values = join([_values(batch) for batch in batches])
    if isinstance(values, Payloads):
        return Batch.of_payloads(span, values.payloads, sequences, pieces, values.kind, values.columns)
    return Batch(span, values, sequences, pieces)


def _values(batch: Batch) -> Payloads | list[Record]:
    if batch.holds_records:
        return batch.records
    rows = TableRows(batch.table) if batch.table is not None else batch.payloads
    return Payloads(rows, batch.positions, batch.kind, batch.columns)


def _fit_together(batch: Batch, following: Batch) -> bool:
    span, other = batch.span, following.span
    return (span.origin, span.scope, span.schemas) == (other.origin, other.scope, other.schemas)


def _record_size(batch: Batch) -> int:
    whole = batch.table.nbytes if batch.table is not None else estimated_bytes(batch.payloads, sample_size=8)
    return max(1, whole // len(batch))
