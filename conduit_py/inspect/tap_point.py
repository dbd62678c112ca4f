"""TapPoint: where the taps of a node see its batches, before it processes them and when their outcomes are known."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import RunError, describe
from conduit_py.inspect.record_view import RecordView
from conduit_py.inspect.tap import Outcome, Sample, Tap
from conduit_py.record import Record
from conduit_py.sdk.destination import refusal_text
from conduit_py.sdk.processor import Result
from conduit_py.sdk.state import Defer

log = logging.getLogger("conduit_py")

PIECES_MAX = 20


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
                look.add(tap, batch, self._choose(tap, batch))
        return look

    def read(self, batch: Batch, refused: Mapping[int, str]) -> None:
        """Sample a batch that a source has read; `refused` has the records that it could not parse."""
        with _log_errors():
            for tap in self.taps:
                for index in self._choose(tap, batch):
                    shown = tap.show(batch.record(index))
                    made = _Outcome("refused", error=refused[index]) if index in refused else _Outcome("read", [shown])
                    self.give(tap, _Before(batch, index, shown if index in refused else None), made)

    def refuse(self, batch: Batch, index: int, error: str) -> None:
        """Sample a message that a destination refuses in a later answer."""
        with _log_errors():
            for tap in self.taps:
                if self._choose(tap, batch.select([index])):
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

    def _choose(self, tap: Tap, batch: Batch) -> Sequence[int]:
        chosen = tap.choose(batch)
        if chosen and tap.full:
            # Views are costly, and the full buffer would drop them.
            tap.dropped += len(chosen)
            self.dropped += len(chosen)
            return ()
        return chosen


class Taps:
    """The taps of one pipeline. They outlive its runs, and may be attached before the first run."""

    def __init__(self) -> None:
        self._points: dict[str, TapPoint] = {}
        self.changed = trio.Event()
        """Set, and replaced by another, when a tap is attached or detached."""

    def point(self, node: str) -> TapPoint:
        return self._points.setdefault(node, TapPoint())

    @property
    def attached(self) -> list[tuple[str, Tap]]:
        """Every tap, with its node."""
        return [(node, tap) for node, point in self._points.items() for tap in point.taps]

    @contextmanager
    def attach(self, node: str, tap: Tap) -> Iterator[Tap]:
        """Attach a tap to a node while the block runs."""
        # The list of the point, not a copy: the node of a running pipeline holds the same list.
        taps = self.point(node).taps
        taps.append(tap)
        self._announce()
        try:
            yield tap
        finally:
            taps.remove(tap)
            self._announce()

    def _announce(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Look:
    """The samples of one batch, from before the node processes it until their outcomes are known."""

    def __init__(self, point: TapPoint) -> None:
        self._point = point
        self._seen: list[tuple[Tap, _Before]] = []
        self._ended: dict[MessageId, _Outcome] = {}

    def add(self, tap: Tap, batch: Batch, chosen: Sequence[int]) -> None:
        # Viewed now: a processor may change the record in place, and `before` would then show the result.
        self._seen += [(tap, _Before(batch, index, tap.show(batch.record(index)))) for index in chosen]

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
