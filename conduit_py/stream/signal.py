"""How tasks wake each other, how often they commit, read or poll, and how much they write at once.

`Signal` wakes, `Pace` spaces commits and flushes, `Throttle` limits a rate, `FairShare` the batches of many
pipelines, `IdleBackoff` spaces polls.
`WriteLimit` holds records until a batch of them is due.
"""

import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from conduit_py.batch import Batch, Span
from conduit_py.payloads import Payloads, TableRows, estimated_bytes, join
from conduit_py.pipeline import Destination
from conduit_py.pipeline_settings import RateLimit
from conduit_py.record import Record

TURN_SECONDS = 0.001
"""How long a task may go from one quick call to the next without letting other tasks run."""
PROGRESS_SECONDS = 1.0
"""The shortest interval between two commits of progress without a record."""


class Signal:
    """Wakes the one waiting task. A signal that is set while no task waits is not lost."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._is_set = False

    def set(self) -> None:
        # Set several times for every batch, and mostly nobody waits.
        if not self._is_set:
            self._is_set = True
            self._event.set()

    async def wait(self) -> None:
        """Return once the signal has been set since the last return."""
        await self._event.wait()
        # Replaced before the caller goes on: what is set from here on wakes the next wait.
        self._event = trio.Event()
        self._is_set = False


class Pace:
    """Starts the first step at once, and spaces later ones by `seconds` plus ten times their duration.

    A single record has no delay. Under load one fsync or commit serves many batches, more so if it is
    slow. A light step serves only a few records, so there is nothing to gain by waiting for more: it is followed
    as soon as it leaves most of the time to others. No step is delayed by more than `SECONDS_MAX`,
    or `seconds` if that is more.
    """

    SECONDS_MAX = 0.1
    LIGHT_SHARE = 3
    """A light step is followed after this many times its duration."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.due_at = float("-inf")

    @contextmanager
    def step(self, *, light: bool = False) -> Iterator[None]:
        """Measure a step, which is the block."""
        started = trio.current_time()
        yield
        # Counted from the end of the step. Counted from its start, a slow step would be due again at once.
        ended = trio.current_time()
        seconds = self.LIGHT_SHARE * (ended - started) if light else self._seconds + 10 * (ended - started)
        self.due_at = ended + min(seconds, max(self.SECONDS_MAX, self._seconds))


class Throttle:
    """When the next record may pass, so that no more than so many records and bytes pass in a second on average."""

    CATCH_UP_SECONDS = 1.0
    """What was not used in so long a time may be used later, if the limit has no `burst`."""

    def __init__(self, rate: RateLimit) -> None:
        self._rates = (rate.records_per_second or math.inf, rate.bytes_per_second or math.inf)
        self._burst = rate.burst
        self._due_at = trio.current_time()

    @property
    def wait_seconds(self) -> float:
        """How long to wait from now on."""
        return max(0.0, self._due_at - trio.current_time())

    def count(self, records: int, size: int) -> None:
        """Count what passes now, at most what `most` returned."""
        # These records are part of the burst that an earlier pause allows.
        unused = self.CATCH_UP_SECONDS if self._burst is None else (self._burst - records) / self._rates[0]
        start = max(self._due_at, trio.current_time() - unused)
        self._due_at = start + max(records / self._rates[0], size / self._rates[1])

    def most(self, seconds: float) -> int:
        """Return how many records may pass in so many seconds, at least one."""
        return max(1, int(min(self._rates[0] * seconds, self._burst or sys.maxsize)))


class Allowance:
    """How often something may be done: so many times at once, and so many in a second after that."""

    def __init__(self, at_once: int, per_second: float) -> None:
        self._seconds, self._burst_seconds = 1 / per_second, at_once / per_second
        self._used_until = -math.inf

    def take(self, now: float) -> bool:
        """Return whether it may be done now, and count it then."""
        used_until = max(self._used_until, now - self._burst_seconds) + self._seconds
        if used_until > now:
            return False
        self._used_until = used_until
        return True


class FairShare:
    """How many records a batch may have so that a round, in which every task has a turn, does not take long.

    With many pipelines at work, whole batches make long rounds, and a request to the API needs several of them.
    """

    ROUND_SECONDS = 0.1
    RECORDS_MIN = 128
    """With fewer, what a batch costs would be more than what its records cost."""

    LONG_ROUNDS, SHORT_ROUNDS = 4, 8
    """So many in a row let it shrink, or grow. One alone may be a start, or the machine ran others; and of a long round
    a task sees only a part, which may be short."""

    def __init__(self) -> None:
        self.records = sys.maxsize
        self._long = self._short = 0

    def note_round(self, seconds: float, batch_size: int) -> bool:
        """Note how long a round took in which a batch had up to so many records; return True if the share changed."""
        self._long = self._long + 1 if seconds > self.ROUND_SECONDS else 0
        self._short = self._short + 1 if seconds < self.ROUND_SECONDS / 4 else 0
        before = self.records
        if self._long == self.LONG_ROUNDS:
            self.records, self._long = max(min(before, batch_size) // 2, self.RECORDS_MIN), 0
        elif self._short >= self.SHORT_ROUNDS and before < sys.maxsize:
            # Beyond what a batch may have, it is no limit any more.
            self.records, self._short = 2 * before if before <= batch_size else sys.maxsize, 0
        return self.records != before


class IdleBackoff:
    """The wait before an empty source is read again: doubled each time, up to `SECONDS_MAX`."""

    SECONDS = 0.01
    SECONDS_MAX = 0.5

    def __init__(self) -> None:
        self._seconds = self.SECONDS

    def next(self) -> float:
        """Return the seconds to wait now."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self.SECONDS_MAX)
        return seconds


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
        # Messages between two parts were filtered or went elsewhere: nobody asks for their positions.
        gap = part.first - first - len(positions)
        positions += [b""] * gap + list(part.positions)
        if sizes is not None:
            sizes += [0] * gap + list(part.sizes or [1] * len(part))
    span = Span(
        parts[0].pipeline, parts[0].source, first, positions, parts[0].read_at, parts[0].scope, parts[0].origin, sizes,
        parts[0].schemas, parts=parts,
    )  # fmt: skip
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
