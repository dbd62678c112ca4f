"""`join.interval` joins records of two streams that have the same key and happened near each other."""

from collections.abc import Mapping
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, model_validator

from conduit_processors.exact_value import from_state, to_state
from conduit_processors.record_key import key_of
from conduit_processors.window.event_time import (
    EventTime,
    EventTimeArguments,
    EventTimeOptions,
    microseconds,
    treat_late,
)
from conduit_processors.window.timers import Timers
from conduit_py.sdk import FatalError, Payload, Processor, Record, RecordRefused, State
from conduit_py.sdk.template import FieldPath, option_error


class IntervalOptions(EventTimeOptions):
    """Options of join.interval."""

    left: str = Field(min_length=1, description="the id of the source of one side; the others are the right side")
    key: FieldPath = Field(description="the field of both sides that must be equal")
    after_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="how long after a left record a right one may be"
    )
    before_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="how long before a left record a right one may be"
    )
    records_max: int = Field(default=1_000_000, ge=1, description="how many records may be kept; more are refused")

    @model_validator(mode="after")
    def _check_sides(self) -> "IntervalOptions":
        if self.left == self.clock:
            raise option_error("has the clock as its left side")
        return self


class IntervalArguments(EventTimeArguments, total=False):
    """IntervalOptions as a caller writes them, for editors and type checkers."""

    left: Required[str]
    key: Required[str | FieldPath]
    after_seconds: float
    before_seconds: float
    records_max: int


class Interval(Processor[IntervalOptions]):
    """An inner join by time: a left record and the right ones from `before_seconds` before to `after_seconds` after it.

    Each pair is given once, as a piece of the record of it that comes last: `{"left": …, "right": …}`. A record is
    kept until the watermark has passed everything that could match it. One that is late could have lost its matches.
    """

    blocking = False
    stateful = True
    takes: ClassVar[Any] = Any
    gives: ClassVar[Any] = dict

    def __init__(self, **options: Unpack[IntervalArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        options = self.options
        if not hasattr(self, "state"):
            # Outside of a pipeline, in a test.
            self.state = State()
        if self.state.sources and options.left not in self.state.sources:
            raise FatalError(
                f"left={options.left!r} is no source of this processor",
                suggestion=f"its sources are {', '.join(sorted(self.state.sources))}",
            )
        self._time = EventTime(options, self.state)
        # How far after a record its matches may be, by its side.
        self._reach = {"l": microseconds(options.after_seconds), "r": microseconds(options.before_seconds)}
        self.timers = Timers[str](self.state, str, str, str)
        """When to forget records of a key. It counts the records that are kept."""
        for name, kept in () if self.timers.is_stored else self.state.scan("j"):
            self.timers.count += len(kept)
            for when, _ in kept:
                self.timers.add(when + self._reach[name[1]], name)
        self.timers.begin()

    def state_keys(self, record: Record) -> list[str]:
        key = "" if self._time.is_tick else key_of(record, self.options.key)
        return [f"jl{key}", f"jr{key}"]

    def process(self, record: Record) -> Record | list[Record] | None:
        if self._time.is_tick:
            self._time.tick(record)
            self._forget()
            return None
        options = self.options
        when, key = self._time.of(record), key_of(record, options.key)
        side = "l" if self.state.source == options.left else "r"
        other = "r" if side == "l" else "l"
        watermark = self._time.watermark
        if watermark is not None and when < watermark:
            return treat_late(record, options.late, lambda: "is late: records that it matches may be forgotten")
        if self.timers.count >= options.records_max:
            raise RecordRefused(f"{self.timers.count} records are kept, and records_max={options.records_max}")
        after = record.payload.after
        matches = [
            from_state(each)
            for at, each in self.state.get(f"j{other}{key}", ())
            if -self._reach[other] <= at - when <= self._reach[side]
        ]
        name = f"j{side}{key}"
        self.state.put(name, [*self.state.get(name, ()), [when, to_state(after)]])
        # Nothing fails from here on.
        self.timers.count += 1
        self.timers.add(when + self._reach[side], name)
        self._time.note(when)
        self._forget()
        return [self._pair(record, after, each, side) for each in matches]

    def _forget(self) -> None:
        watermark, head = self._time.watermark, self.timers.head
        if watermark is None or (head and head[0][0] >= watermark):
            return
        for name in self.timers.take(watermark - 1):
            kept = self.state.get(name, ())
            left = [each for each in kept if each[0] + self._reach[name[1]] >= watermark]
            if len(left) == len(kept):
                continue
            self.timers.count -= len(kept) - len(left)
            if left:
                self.state.put(name, left)
            else:
                self.state.delete(name)

    def _pair(self, record: Record, own: Any, other: Any, side: str) -> Record:
        pair: Mapping[str, Any] = {"left": own, "right": other} if side == "l" else {"left": other, "right": own}
        payload = Payload(None, dict(pair))
        return Record(record.position, record.operation, dict(record.metadata), record.key, payload)
