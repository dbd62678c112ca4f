"""EventTime: when records happened, by a field of theirs, and the watermark: up to when all of them are there."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict

from pydantic import Field, model_validator

from conduit_py.sdk import FatalError, Options, Record, RecordRefused, State
from conduit_py.sdk.template import FieldPath, kind_of, option_error

Late: TypeAlias = Literal["drop", "pass", "refuse"]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]

LATE: Final = "window.late"
"""`true` in the metadata of a late record that is passed on."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_UNITS: Final[dict[TimeUnit, tuple[int, int]]] = {"s": (10**6, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
_STATE: Final = "~time"


class EventTimeOptions(Options):
    """Options of every processor that works by event time."""

    time: FieldPath = Field(description="the field with the time of the record: a time, ISO 8601 text, or a number")
    time_unit: TimeUnit = Field(default="s", description="the unit of a number, which counts from 1970: s, ms, us, ns")
    out_of_order_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="how much older than the newest a record may come"
    )
    late: Late = Field(
        default="drop", description="a late record: drop it, pass it on with window.late in its metadata, or refuse it"
    )
    ahead_max_seconds: float = Field(
        default=86400.0, ge=0, description="a record whose time is further ahead of the machine's clock is refused"
    )
    clock: str | None = Field(default=None, min_length=1, description="the id of the source with the clock, if any")
    idle_seconds: float | None = Field(
        default=None, gt=0, description="a source that is silent for so long, by that clock, holds nothing back"
    )

    @model_validator(mode="after")
    def _idle_needs_a_clock(self) -> "EventTimeOptions":
        if self.idle_seconds is not None and self.clock is None:
            raise option_error(
                "has idle_seconds, and no clock to tell that time passes",
                'add a source such as Source("clock", clock.Source()), and clock="clock" here',
            )
        return self


class EventTimeArguments(TypedDict, total=False):
    """EventTimeOptions as a caller writes them, for editors and type checkers."""

    time: Required[str | FieldPath]
    time_unit: TimeUnit
    out_of_order_seconds: float
    late: Late
    ahead_max_seconds: float
    clock: str | None
    idle_seconds: float | None


class EventTime:
    """The times of records, in microseconds since 1970, and the watermark. It is kept in the state of a processor.

    The watermark of a source is its highest time, less what may come out of order. The watermark is the lowest of
    all sources, and never falls. `note` and `tick` change it; nothing here fails after it has changed something.
    """

    def __init__(self, options: EventTimeOptions, state: State) -> None:
        self._state = state
        self._get = options.time.get
        self._field = options.time
        self._unit = _UNITS[options.time_unit]
        self._slack = microseconds(options.out_of_order_seconds)
        self._idle = None if options.idle_seconds is None else microseconds(options.idle_seconds)
        self._ahead = microseconds(min(options.ahead_max_seconds, 1e11))
        self._clock = options.clock
        # Read again only when it is passed: most records are of the past.
        self._wall = 0
        if options.clock is not None and state.sources and options.clock not in state.sources:
            others = ", ".join(sorted(state.sources))
            raise FatalError(
                f"clock={options.clock!r} is no source of this processor",
                suggestion=f"its sources are {others}; add Source({options.clock!r}, clock.Source())",
            )
        kept = state.get(_STATE, [None, None, {}])
        self.watermark: int | None = kept[0]
        self._now: int | None = kept[1]
        # By source: the highest time, and the time of the last tick when its last record came.
        self._seen: dict[str, tuple[int | None, int | None]] = {
            source: (highest, since)
            for source, (highest, since) in kept[2].items()
            if not state.sources or source in state.sources
        }
        for source in sorted(state.sources - {options.clock}):
            self._seen.setdefault(source, (None, self._now))
        self._show()

    @property
    def is_tick(self) -> bool:
        """True if the current record comes from the clock."""
        return self._clock is not None and self._state.source == self._clock

    def of(self, record: Record) -> int:
        """Return the time of a record. Refuses a record without one."""
        when = self._convert(self._get(record))
        if when > self._wall + self._ahead:
            self._wall = int(time.time() * 1e6)
            if when > self._wall + self._ahead:
                raise RecordRefused(
                    f"{self._field} is {shown(when).isoformat()}, which is more than ahead_max_seconds ahead of now"
                )
        return when

    def _convert(self, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise RecordRefused(f"{self._field} is {value[:60]!r}, which is no time in ISO 8601") from None
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise RecordRefused(f"{self._field} is {value.isoformat()}, which has no time zone")
            return (value - _EPOCH) // _MICROSECOND
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RecordRefused(f"{self._field} is {kind_of(value)}, which is no time")
        factor, divisor = self._unit
        when = value * factor // divisor if isinstance(value, int) else math.floor(value * factor / divisor)
        if not _EARLIEST <= when <= _LATEST:
            raise RecordRefused(f"{self._field} is {value}, which is no time between the years 1 and 9999")
        return when

    def note(self, when: int) -> None:
        """Note the time of a record of the current source, and move the watermark."""
        source = self._state.source
        highest, since = self._seen.get(source, (None, None))
        if highest is None or when > highest:
            highest = when
        elif since == self._now:
            return
        self._seen[source] = (highest, self._now)
        self._move(self._lowest())
        self._keep()

    def tick(self, record: Record) -> bool:
        """Take a tick of the clock; return True if it is the last one, after all records."""
        value = record.payload.after
        now = value.get("now") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(now, datetime) or now.tzinfo is None:
            raise RecordRefused(f"is no tick of a clock, but the source {self._clock!r} is named as one")
        at = (now - _EPOCH) // _MICROSECOND
        # A clock may be set back. And an outage is no silence: after a start, time counts from the first tick.
        first = value.get("first") is True or self._now is None
        self._now = at if self._now is None else max(at, self._now)
        if first:
            self._seen = {source: (highest, self._now) for source, (highest, _) in self._seen.items()}
        self._move(self._lowest())
        self._keep()
        return value.get("end") is True

    def move_to(self, when: int) -> None:
        """Move the watermark as far as this, whatever the sources gave."""
        self._move(when)
        self._keep()

    def _lowest(self) -> int | None:
        lowest: int | None = None
        for highest, since in self._seen.values():
            silent = 0 if self._now is None or since is None else self._now - since
            if self._idle is None or silent < self._idle:
                if highest is None:
                    return None
                silent = 0
            elif highest is None:
                continue
            reached = highest - self._slack + silent
            lowest = reached if lowest is None else min(lowest, reached)
        return lowest

    def _move(self, when: int | None) -> None:
        if when is not None and (self.watermark is None or when > self.watermark):
            self.watermark = when
            self._show()

    def _show(self) -> None:
        self._state.watermark = None if self.watermark is None else self.watermark / 1e6

    def _keep(self) -> None:
        self._state.put(_STATE, [self.watermark, self._now, self._seen])


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def shown(when: int) -> datetime:
    """Return a time as records have it. Ends of windows may be beyond the last time that there is."""
    return _EPOCH + min(max(when, _EARLIEST), _LATEST) * _MICROSECOND


def treat_late(record: Record, late: Late, why: Callable[[], str]) -> Record | None:
    """Return what becomes of a late record; it is refused by raising."""
    if late == "refuse":
        raise RecordRefused(why())
    if late == "drop":
        return None
    record.metadata[LATE] = "true"
    return record
