"""`window.tumbling` and `window.sliding`: windows of one size, side by side or overlapping."""

from datetime import UTC, datetime
from typing import Any, Required, TypeVar, Unpack

from pydantic import AwareDatetime, Field, model_validator

from conduit_processors.window.event_time import microseconds
from conduit_processors.window.window import SizeArguments, Window, WindowOptions, WindowProcessor
from conduit_py.sdk import Record
from conduit_py.sdk.template import option_error

OVERLAP_MAX = 1000
"""In how many windows a record may be: each of them costs a change of state."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TumblingOptions(WindowOptions):
    """Options of window.tumbling."""

    size_seconds: float = Field(ge=0.001, le=1e9, description="how long a window is")
    align_to: AwareDatetime = Field(default=_EPOCH, description="a time at which a window begins")


class TumblingArguments(SizeArguments, total=False):
    """TumblingOptions as a caller writes them, for editors and type checkers."""

    align_to: datetime


class SlidingOptions(TumblingOptions):
    """Options of window.sliding."""

    slide_seconds: float = Field(ge=0.001, le=1e9, description="how long after a window the next one begins")

    @model_validator(mode="after")
    def _check_slide(self) -> "SlidingOptions":
        if self.slide_seconds > self.size_seconds:
            raise option_error("has slide_seconds above size_seconds: records between windows would be in none")
        if self.size_seconds / self.slide_seconds > OVERLAP_MAX:
            raise option_error(f"puts each record into more than {OVERLAP_MAX} windows", "raise slide_seconds")
        return self


class SlidingArguments(TumblingArguments, total=False):
    """SlidingOptions as a caller writes them, for editors and type checkers."""

    slide_seconds: Required[float]


FixedT = TypeVar("FixedT", bound=TumblingOptions)


class _FixedWindows(WindowProcessor[FixedT]):
    """A window is `w{start}:{key}` in the state: how often it fired, and its accumulators."""

    @property
    def slide_seconds(self) -> float:
        return self.options.size_seconds

    def open(self) -> None:
        options = self.options
        self._size = microseconds(options.size_seconds)
        self._slide = microseconds(self.slide_seconds)
        self._align = (options.align_to - _EPOCH) // datetime.resolution % self._slide
        super().open()

    def restore(self) -> None:
        for name, (fired, _) in self.state.scan("w"):
            start, _, key = name[1:].partition(":")
            window = Window(int(start) + self._size, int(start), key)
            self.timers.count += 1
            self.watch_again(window) if fired else self.watch(window)

    def add(self, key: str, when: int, values: list[Any]) -> list[Record] | None:
        # The last window that has begun, and those before it that have not ended.
        start = (when - self._align) // self._slide * self._slide + self._align
        size, state = self._size, self.state
        over = self.over_until
        changed: list[tuple[int, str, Any]] = []
        new: list[Window] = []
        while start + size > when:
            if over is None or start + size > over:
                name = f"w{start}:{key}"
                kept = state.get(name)
                if kept is None:
                    new.append(Window(start + size, start, key))
                changed.append((start, name, kept or (0, None)))
            start -= self._slide
        if not changed:
            return None
        if new:
            self.refuse_beyond_limit(len(new))
        results = []
        for start, name, (fired, accumulators) in reversed(changed):
            # Within the allowed lateness: its result changes at once.
            now = self.has_fired(start + size)
            accumulated = self.accumulate(accumulators, values, when)
            state.put(name, [fired + now, accumulated])
            if now:
                results.append(self.result(Window(start + size, start, key), accumulated, again=fired > 0))
        # Nothing fails from here on.
        self.timers.count += len(new)
        for window in new:
            self.watch(window)
        return results

    def state_key(self, window: Window) -> str:
        return f"w{window.start}:{window.key}"

    def keys_for(self, key: str, when: int) -> list[str]:
        last = (when - self._align) // self._slide * self._slide + self._align
        return [f"w{start}:{key}" for start in range(last, when - self._size, -self._slide)]

    def close_window(self, window: Window, *, forget: bool) -> list[Record]:
        name = self.state_key(window)
        kept = self.state.get(name)
        if kept is None:
            return []
        fired, accumulators = kept
        if forget:
            self.state.delete(name)
            self.timers.count -= 1
        else:
            self.state.put(name, [fired or 1, accumulators])
            self.watch_again(window)
        return [] if fired else [self.result(window, accumulators, again=False)]


class Tumbling(_FixedWindows[TumblingOptions]):
    """Windows of one size, one after the other: every record is in one of them."""

    def __init__(self, **options: Unpack[TumblingArguments]) -> None:
        super().__init__(**options)


class Sliding(_FixedWindows[SlidingOptions]):
    """Windows of one size that overlap: one begins every `slide_seconds`, so a record is in several."""

    def __init__(self, **options: Unpack[SlidingArguments]) -> None:
        super().__init__(**options)

    @property
    def slide_seconds(self) -> float:
        return self.options.slide_seconds
