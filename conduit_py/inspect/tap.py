"""Tap: samples the records before and after a node while its pipeline runs, without delaying the pipeline."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.defaults import TAP_RATE
from conduit_py.inspect.record_view import RecordCondition, RecordView, Redact, view_record, view_schema
from conduit_py.record import CollectionSchema, Record, Structured
from conduit_py.wire_error import safe_text

log = logging.getLogger("conduit_py")

Outcome: TypeAlias = Literal["read", "passed", "changed", "filtered", "split", "written", "refused", "failed"]
"""What a node did with a message. `failed` means that the node failed, not that it refused the message."""

BUFFER_SIZE = 100
RECORD_SIZE_MAX = 16 * 1024
SCHEMAS_MAX = 1000


class Sample(msgspec.Struct, frozen=True):
    """One message before and after a node. A source has no `before`; a message that ended there has no `after`."""

    at: float
    message: MessageId
    position: bytes
    before: Structured | None
    after: list[Structured] | None
    outcome: Outcome
    error: str | None = None
    pieces: int = 1
    """The number of records after the node; `after` has at most the first PIECES_MAX of them."""
    cut: list[str] = []
    """The paths of values that are too long to be shown in full, such as before.payload.after.text."""
    skipped: int = 0
    """The number of messages since the previous sample that were not sampled."""
    source_schema: Structured | None = None
    """The schema of its collection as its source announced it, if this tap has not shown that version before."""


class Tap:
    """Takes at most `rate` samples a second, `limit` in all, and buffers at most BUFFER_SIZE of them.

    A slow reader loses samples; `dropped` counts them. No node ever waits for a reader. With `when`, only records for
    which it is true are sampled: those before the node. Records that it has no time for count as skipped.
    """

    def __init__(
        self,
        *,
        rate: int = TAP_RATE,
        limit: int | None = None,
        redact: Redact = str,
        when: Callable[[Record], bool] | None = None,
    ) -> None:
        self.dropped = 0
        self.rate = rate
        self._limit = limit
        self._redact = redact
        self._when = None if when is None else RecordCondition(when, redact)
        self._taken: deque[float] = deque(maxlen=rate)
        self._skipped = 0
        self._given = 0
        self._schemas: dict[str, str] = {}
        self._send, self._receive = trio.open_memory_channel[Sample](BUFFER_SIZE)

    @property
    def spent(self) -> bool:
        """True if it has taken `limit` samples."""
        return self._limit is not None and self._given >= self._limit

    @property
    def left(self) -> int | None:
        """How many samples it may still take; None if there is no limit."""
        return None if self._limit is None else self._limit - self._given

    async def receive(self) -> Sample:
        """Wait for the next sample. Nothing is lost when the wait is cancelled."""
        return await self._receive.receive()

    def receive_nowait(self) -> Sample | None:
        try:
            return self._receive.receive_nowait()
        except trio.WouldBlock:
            return None

    def choose(self, batch: Batch) -> Sequence[int]:
        """Return which messages of a batch to sample now, by index; the others count as skipped."""
        if self._when is None:
            return range(self._admit(len(batch)))
        # Not those that the rate has no room for: to evaluate a condition costs as much as many a processor.
        room = 0 if self.spent else self._room()
        found = self._when.find(batch.record, len(batch), room)
        self._skipped += len(batch) - len(found)
        return found[: self._admit(len(found))]

    def _room(self) -> int:
        """Return how many samples the rate allows now."""
        now = trio.current_time()
        while self._taken and self._taken[0] <= now - 1:
            self._taken.popleft()
        assert self._taken.maxlen is not None
        return self._taken.maxlen - len(self._taken)

    def _admit(self, count: int) -> int:
        chosen = min(count, self._room())
        if self._limit is not None:
            chosen = min(chosen, self._limit - self._given)
        self._taken.extend([trio.current_time()] * chosen)
        self._skipped += count - chosen
        return chosen

    @property
    def full(self) -> bool:
        return self._send.statistics().current_buffer_used == BUFFER_SIZE

    def show(self, record: Record) -> RecordView:
        return view_record(record, RECORD_SIZE_MAX, self._redact)

    def show_schema(self, schema: CollectionSchema | None) -> RecordView | None:
        """Return the view of a schema that no sample has shown yet."""
        # Once: the schema of a wide table is larger than its records.
        if schema is None or self._schemas.get(schema.collection) == schema.version:
            return None
        return view_schema(schema, RECORD_SIZE_MAX, self._redact)

    def note_schema(self, schema: CollectionSchema) -> None:
        """Remember that a sample with this schema is with the reader."""
        self._schemas = {**self._schemas, schema.collection: schema.version}
        while len(self._schemas) > SCHEMAS_MAX:
            del self._schemas[next(iter(self._schemas))]

    def show_error(self, error: str) -> str:
        # Redacted first: an error message may quote the record, and the record a secret.
        return safe_text(self._redact(error))

    def give(self, sample: Sample) -> bool:
        """Buffer a sample for the reader; return False if the buffer is full."""
        if self.spent:
            return True
        try:
            # A sample of another process has its own count of those before it.
            self._send.send_nowait(msgspec.structs.replace(sample, skipped=sample.skipped + self._skipped))
        # Dropped, not awaited: a node that waited for a slow reader would slow the pipeline down.
        except trio.WouldBlock:
            self.dropped += 1
            return False
        self._skipped = 0
        self._given += 1
        return True
