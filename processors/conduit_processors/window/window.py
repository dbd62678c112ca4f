"""WindowProcessor: what all windows have in common: options, results, and the order in which windows fire."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Required, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from conduit_processors.record_key import key_of, key_value
from conduit_processors.window.aggregate import Aggregate, aggregates_of
from conduit_processors.window.event_time import (
    EventTime,
    EventTimeArguments,
    EventTimeOptions,
    microseconds,
    shown,
    treat_late,
)
from conduit_processors.window.timers import Timers, time_of, time_text
from conduit_py.sdk import Operation, Payload, Processor, Record, RecordRefused, State
from conduit_py.sdk.template import FieldPath, option_error

START, END = "window_start", "window_end"


class WindowOptions(EventTimeOptions):
    """Options of every window."""

    key: FieldPath | None = Field(default=None, description="windows of their own for each value of this field")
    aggregate: Annotated[dict[str, Aggregate], BeforeValidator(aggregates_of)] = Field(
        default_factory=lambda: {"count": Aggregate.of("count")},
        description="name to function: count, sum, min, max, mean, first, last, collect; or text: n:count,total:sum(x)",
    )
    allowed_lateness_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="for how long a window that fired still takes records"
    )
    windows_max: int = Field(default=1_000_000, ge=1, description="how many windows may be open; more are refused")

    @field_validator("aggregate")
    @classmethod
    def _check_aggregate(cls, aggregate: dict[str, Aggregate]) -> dict[str, Aggregate]:
        if not aggregate:
            raise option_error("must have at least one function, such as count")
        return aggregate

    @model_validator(mode="after")
    def _check_names(self) -> "WindowOptions":
        for name in (START, END, key_name(self.key)):
            if name in self.aggregate:
                raise option_error(f"has {name!r} twice in its results", f"give {name!r} in aggregate another name")
        return self


class WindowArguments(EventTimeArguments, total=False):
    """WindowOptions as a caller writes them, for editors and type checkers."""

    key: str | FieldPath | None
    aggregate: Mapping[str, str | Aggregate] | str
    allowed_lateness_seconds: float
    windows_max: int


class SizeArguments(WindowArguments, total=False):
    """The same for windows of one size."""

    size_seconds: Required[float]


OptionsT = TypeVar("OptionsT", bound=WindowOptions)


class Window(NamedTuple):
    """One window of one key. It holds times from `start` up to, but not including, `end`."""

    end: int
    start: int
    key: str


class WindowProcessor(Processor[OptionsT], ABC):
    """Puts records into windows by their time, and gives a result for each window when the watermark is at its end.

    The state has everything. What is in memory is an index of it, which is changed only when nothing can fail any
    more: the changes of a refused record are undone in the state, and must not stay in the index.
    """

    blocking = False
    stateful = True
    takes: ClassVar[Any] = Any
    gives: ClassVar[Any] = Any

    def open(self) -> None:
        if not hasattr(self, "state"):
            # Outside of a pipeline, in a test.
            self.state = State()
        options = self.options
        self._time = EventTime(options, self.state)
        self._aggregates = list(options.aggregate.items())
        # What each record needs, found once.
        self._key = options.key
        self._values = [aggregate.value for aggregate in options.aggregate.values()]
        self._adders = [aggregate.add for aggregate in options.aggregate.values()]
        self._lateness = microseconds(options.allowed_lateness_seconds)
        self._name = key_name(options.key)
        self.timers = Timers(self.state, _text_of, _window_of, self.state_key)
        """When to look at a window again, to fire it or to forget it. Some are out of date. It counts open windows."""
        if not self.timers.is_stored:
            self.restore()
        self.timers.begin()

    def process(self, record: Record) -> Record | list[Record] | None:
        if self._time.is_tick:
            return self._tick(record)
        when = self._time.of(record)
        key = key_of(record, self._key)
        values = [value(record) for value in self._values]
        results = self.add(key, when, values)
        if results is None:
            return treat_late(record, self.options.late, lambda: self._why_late(when))
        self._time.note(when)
        return self._answer(record, results + self._fire())

    def _tick(self, record: Record) -> list[Record]:
        is_last = self._time.tick(record)
        results = self._fire()
        # After all records every open window is at its end. A session that grew is found when its timer is due.
        while is_last and (end := self.timers.last(lambda window: window.end)) is not None and not self.has_fired(end):
            self._time.move_to(end)
            results += self._fire()
        return self._answer(record, results)

    def _fire(self) -> list[Record]:
        """Return the results of the windows whose end the watermark has reached; forget those that are too old."""
        watermark, head = self._time.watermark, self.timers.head
        # Asked here, without a call: for most records none is due.
        if watermark is None or (head and head[0][0] > watermark):
            return []
        results: list[Record] = []
        for window in self.timers.take(watermark):
            results += self.close_window(window, forget=watermark >= window.end + self._lateness)
        return results

    def _answer(self, record: Record, results: list[Record]) -> list[Record]:
        for result in results:
            result.position = record.position
        return results

    def _why_late(self, when: int) -> str:
        assert self._time.watermark is not None
        return f"is late: it is of {shown(when).isoformat()}, and the watermark is {shown(self._time.watermark)}"

    @property
    def watermark(self) -> int | None:
        return self._time.watermark

    @property
    def over_until(self) -> int | None:
        """Windows that end then or before take no more records; None if all do."""
        watermark = self._time.watermark
        return None if watermark is None else watermark - self._lateness

    def is_over(self, end: int) -> bool:
        """True if a window with this end takes no more records."""
        over = self.over_until
        return over is not None and end <= over

    def has_fired(self, end: int) -> bool:
        return self.watermark is not None and end <= self.watermark

    def watch(self, window: Window) -> None:
        """Fire the window at its end, or forget it if that has passed."""
        due = window.end + self._lateness if self.has_fired(window.end) else window.end
        self.timers.add(due, window)

    def watch_again(self, window: Window) -> None:
        """Forget a window that fired when it takes no more records."""
        self.timers.add(window.end + self._lateness, window)

    def refuse_beyond_limit(self, more: int) -> None:
        if more > 0 and self.timers.count + more > self.options.windows_max:
            raise RecordRefused(
                f"{self.timers.count} windows are open, and windows_max={self.options.windows_max}",
                suggestion="raise windows_max, or choose a key with fewer values",
            )

    def accumulate(self, accumulators: list[Any] | None, values: list[Any], when: int) -> list[Any]:
        olds = accumulators or [None] * len(values)
        return [add(old, value, when) for add, old, value in zip(self._adders, olds, values, strict=True)]

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return [
            aggregate.merge(one, other)
            for (_, aggregate), one, other in zip(self._aggregates, earlier, later, strict=True)
        ]

    def result(self, window: Window, accumulators: list[Any], *, again: bool) -> Record:
        """Make the result of a window; `again` if it had one before."""
        names = {self._name: key_value(window.key), START: shown(window.start)}
        results = {
            name: aggregate.result(each) for (name, aggregate), each in zip(self._aggregates, accumulators, strict=True)
        }
        operation = Operation.UPDATE if again else Operation.CREATE
        return Record(b"", operation, {}, dict(names), Payload(None, {**names, END: shown(window.end), **results}))

    def removal(self, window: Window) -> Record:
        """Make the record that deletes the result of a window that is no more."""
        names = {self._name: key_value(window.key), START: shown(window.start)}
        return Record(b"", Operation.DELETE, {}, dict(names), Payload({**names, END: shown(window.end)}, None))

    def state_keys(self, record: Record) -> list[str]:
        return [] if self._time.is_tick else self.keys_for(key_of(record, self._key), self._time.of(record))

    @abstractmethod
    def restore(self) -> None:
        """Count and watch the windows that are in the state."""

    @abstractmethod
    def state_key(self, window: Window) -> str:
        """Return the key of the state that has this window."""

    @abstractmethod
    def keys_for(self, key: str, when: int) -> list[str]:
        """Return the keys of the state that `add` reads."""

    @abstractmethod
    def add(self, key: str, when: int, values: list[Any]) -> list[Record] | None:
        """Add a record to its windows; return the results that change at once. None if it is late for all of them."""

    @abstractmethod
    def close_window(self, window: Window, *, forget: bool) -> list[Record]:
        """Return the result of a window if it has not fired; remove it if `forget`, else watch it again.

        Nothing for a window that is not there any more.
        """


def key_name(key: FieldPath | None) -> str:
    """Return the name of the key in results: the last one of its path."""
    return key.names[-1] if key is not None and key.names else "key"


def _text_of(window: Window) -> str:
    return f"{time_text(window.end)}{time_text(window.start)}{window.key}"


def _window_of(text: str) -> Window:
    return Window(time_of(text[:19]), time_of(text[19:38]), text[38:])
