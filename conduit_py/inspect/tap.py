"""Tap: samples the records before and after a node while its pipeline runs, without delaying the pipeline."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.defaults import TAP_RATE
from conduit_py.errors import RunError, describe
from conduit_py.inspect.record_view import RecordView, Redact, view_record, view_schema
from conduit_py.record import CollectionSchema, Record, Structured
from conduit_py.sdk.destination import refusal_text
from conduit_py.sdk.processor import Result
from conduit_py.sdk.state import Defer
from conduit_py.wire_error import safe_text

log = logging.getLogger("conduit_py")

Outcome: TypeAlias = Literal["read", "passed", "changed", "filtered", "split", "written", "refused", "failed"]
"""What a node did with a message. `failed` means that the node failed, not that it refused the message."""

BUFFER_SIZE = 100
RECORD_SIZE_MAX = 16 * 1024
PIECES_MAX = 20
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

    A slow reader loses samples; `dropped` counts them. No node ever waits for a reader.
    """

    def __init__(self, *, rate: int = TAP_RATE, limit: int | None = None, redact: Redact = str) -> None:
        self.dropped = 0
        self._limit = limit
        self._redact = redact
        self._taken: deque[float] = deque(maxlen=rate)
        self._skipped = 0
        self._given = 0
        self._schemas: dict[str, str] = {}
        self._send, self._receive = trio.open_memory_channel[Sample](BUFFER_SIZE)

    @property
    def spent(self) -> bool:
        """True if it has taken `limit` samples."""
        return self._limit is not None and self._given >= self._limit

    async def receive(self) -> Sample:
        """Wait for the next sample. Nothing is lost when the wait is cancelled."""
        return await self._receive.receive()

    def receive_nowait(self) -> Sample | None:
        try:
            return self._receive.receive_nowait()
        except trio.WouldBlock:
            return None

    def choose(self, count: int) -> int:
        """Return how many of the next `count` messages to sample now; the others count as skipped."""
        now = trio.current_time()
        while self._taken and self._taken[0] <= now - 1:
            self._taken.popleft()
        assert self._taken.maxlen is not None
        chosen = min(count, self._taken.maxlen - len(self._taken))
        if self._limit is not None:
            chosen = min(chosen, self._limit - self._given)
        self._taken.extend([now] * chosen)
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
            self._send.send_nowait(msgspec.structs.replace(sample, skipped=self._skipped))
        # Dropped, not awaited: a node that waited for a slow reader would slow the pipeline down.
        except trio.WouldBlock:
            self.dropped += 1
            return False
        self._skipped = 0
        self._given += 1
        return True


class TapPoint:
    """The taps of one node. While `taps` is empty, the node need not call anything."""

    __slots__ = ("dropped", "taps")

    def __init__(self) -> None:
        self.taps: list[Tap] = []
        self.dropped = 0

    def look(self, batch: Batch) -> "Look":
        """Sample a batch before the node processes it."""
        look = Look(self)
        with _log_errors():
            for tap in self.taps:
                look.add(tap, batch, self._choose(tap, len(batch)))
        return look

    def read(self, batch: Batch, refused: Mapping[int, str]) -> None:
        """Sample a batch that a source has read; `refused` has the records that it could not parse."""
        with _log_errors():
            for tap in self.taps:
                for index in range(self._choose(tap, len(batch))):
                    shown = tap.show(batch.record(index))
                    made = _Outcome("refused", error=refused[index]) if index in refused else _Outcome("read", [shown])
                    self.give(tap, _Before(batch, index, shown if index in refused else None), made)

    def refuse(self, batch: Batch, index: int, error: str) -> None:
        """Sample a message that a destination refuses in a later answer."""
        with _log_errors():
            for tap in self.taps:
                if self._choose(tap, 1):
                    seen = _Before(batch, index, tap.show(batch.record(index)))
                    self.give(tap, seen, _Outcome("refused", error=error))

    def give(self, tap: Tap, seen: "_Before", made: "_Outcome") -> None:
        schema = seen.batch.schema(seen.index)
        shown = tap.show_schema(schema)
        if not tap.give(_sample(tap, seen, made, shown)):
            self.dropped += 1
        # Not if it was dropped: then the next sample has the schema.
        elif schema is not None and shown is not None:
            tap.note_schema(schema)

    def _choose(self, tap: Tap, count: int) -> int:
        chosen = tap.choose(count)
        if chosen and tap.full:
            # Views are costly, and the full buffer would drop them.
            tap.dropped += chosen
            self.dropped += chosen
            return 0
        return chosen


class Taps:
    """The taps of one pipeline. They outlive its runs, and may be attached before the first run."""

    def __init__(self) -> None:
        self._points: dict[str, TapPoint] = {}

    def point(self, node: str) -> TapPoint:
        return self._points.setdefault(node, TapPoint())

    @contextmanager
    def attach(self, node: str, tap: Tap) -> Iterator[Tap]:
        """Attach a tap to a node while the block runs."""
        # The list of the point, not a copy: the node of a running pipeline holds the same list.
        taps = self.point(node).taps
        taps.append(tap)
        try:
            yield tap
        finally:
            taps.remove(tap)


class Look:
    """The samples of one batch, from before the node processes it until their outcomes are known."""

    def __init__(self, point: TapPoint) -> None:
        self._point = point
        self._seen: list[tuple[Tap, _Before]] = []
        self._ended: dict[MessageId, _Outcome] = {}

    def add(self, tap: Tap, batch: Batch, chosen: int) -> None:
        # Viewed now: a processor may change the record in place, and `before` would then show the result.
        self._seen += [(tap, _Before(batch, index, tap.show(batch.record(index)))) for index in range(chosen)]

    def on_results(self, results: Sequence[Result]) -> None:
        """Report the results of a processor. Call this before another node can change the records.

        A deferred record has no sample yet, because it will be processed again.
        """
        self._seen = [each for each in self._seen if not isinstance(results[each[1].index], Defer)]
        self._give(lambda tap, seen: _outcome_of(tap, seen, results[seen.index]))

    def on_filter(self, batch: Batch, indices: Sequence[int]) -> None:
        self._ended.update((batch.id(index), _Outcome("filtered")) for index in indices)

    def on_refusal(self, batch: Batch, index: int, error: str) -> None:
        self._ended[batch.id(index)] = _Outcome("refused", error=error)

    def on_write(self) -> None:
        """Report the batch as written, except for messages that were filtered or refused before."""
        self._give(lambda _, seen: self._ended.get(seen.batch.id(seen.index), _Outcome("written")))

    def on_hold(self) -> None:
        """Report the messages that were filtered or refused. The others are sampled again when they are written."""
        self._seen = [each for each in self._seen if each[1].batch.id(each[1].index) in self._ended]
        self.on_write()

    def on_failure(self, error: Exception) -> None:
        """Report that the node failed, which ends the run."""
        self._give(
            lambda _, seen: self._ended.get(seen.batch.id(seen.index), _Outcome("failed", error=describe(error)))
        )

    def _give(self, made: "Callable[[Tap, _Before], _Outcome]") -> None:
        with _log_errors():
            seen, self._seen = self._seen, []
            for tap, each in seen:
                self._point.give(tap, each, made(tap, each))


@dataclass(frozen=True, slots=True)
class _Before:
    batch: Batch
    index: int
    before: RecordView | None


class _Outcome(NamedTuple):
    outcome: Outcome
    after: Sequence[RecordView] | None = None
    error: str | None = None
    pieces: int = 1


def _outcome_of(tap: Tap, seen: _Before, result: Result) -> _Outcome:
    if isinstance(result, Record):
        after = _after(tap, seen, result)
        same = seen.before is not None and seen.before.same_as(after)
        return _Outcome("passed" if same else "changed", [after])
    if result is None or result == []:
        return _Outcome("filtered")
    if isinstance(result, list):
        if len(result) == 1:
            return _outcome_of(tap, seen, result[0])
        return _Outcome("split", [_after(tap, seen, piece) for piece in result[:PIECES_MAX]], pieces=len(result))
    if isinstance(result, RunError):
        return _Outcome("failed", error=result.message)
    if isinstance(result, Exception):
        return _Outcome("refused", error=refusal_text(result))
    return _Outcome("failed", error=f"returned {type(result).__name__}")


def _after(tap: Tap, seen: _Before, record: Record) -> RecordView:
    after = tap.show(record)
    if not record.position and seen.before is not None:
        # The runtime gives a new record without a position the position of its original.
        after.value["position"] = seen.before.value["position"]
    return after


def _sample(tap: Tap, seen: _Before, made: _Outcome, schema: RecordView | None) -> Sample:
    batch, index = seen.batch, seen.index
    cut = [f"before.{path}" for path in seen.before.cut] if seen.before is not None else []
    for number, after in enumerate(made.after or ()):
        cut += [f"after[{number}].{path}" for path in after.cut]
    cut += schema.cut if schema is not None else []
    return Sample(
        at=time.time(),
        message=batch.id(index),
        position=batch.span.position(batch.sequences[index]),
        before=seen.before.value if seen.before is not None else None,
        after=[after.value for after in made.after] if made.after is not None else None,
        outcome=made.outcome,
        error=tap.show_error(made.error) if made.error is not None else None,
        pieces=made.pieces,
        cut=cut,
        source_schema=schema.value if schema is not None else None,
    )


@contextmanager
def _log_errors() -> Iterator[None]:
    """Log every error of a tap: a value that cannot be shown must not fail the pipeline."""
    try:
        yield
    except Exception:
        log.debug("a tap could not show a record", exc_info=True)
