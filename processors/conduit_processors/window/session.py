"""`window.session`: windows that last as long as records of a key follow one another."""

from typing import Any, NamedTuple, Required, Unpack

from pydantic import Field

from conduit_processors.window.event_time import microseconds
from conduit_processors.window.window import Window, WindowArguments, WindowOptions, WindowProcessor
from conduit_py.sdk import Record


class SessionOptions(WindowOptions):
    """Options of window.session."""

    gap_seconds: float = Field(ge=0.001, le=1e9, description="a silence of so long ends a session")


class SessionArguments(WindowArguments, total=False):
    """SessionOptions as a caller writes them, for editors and type checkers."""

    gap_seconds: Required[float]


class _Span(NamedTuple):
    """A session as the state has it: the times of its first and last records, and its values.

    `given` is how many results it had under the name of this start, and `done` if the last one has all its records.
    """

    start: int
    last: int
    given: int
    done: bool
    accumulators: list[Any]


class Session(WindowProcessor[SessionOptions]):
    """Sessions: records of a key that are less than `gap_seconds` apart. A session ends with that gap of silence.

    The sessions of a key are `s{key}` in the state, in the order of their times.
    """

    def __init__(self, **options: Unpack[SessionArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._gap = microseconds(self.options.gap_seconds)
        super().open()

    def restore(self) -> None:
        for name, kept in self.state.scan("s"):
            for span in (_Span(*each) for each in kept):
                self.timers.count += 1
                timer = self._timer(name[1:], span)
                self.watch_again(timer) if span.done else self.watch(timer)

    def add(self, key: str, when: int, values: list[Any]) -> list[Record] | None:
        spans = self._spans(key)
        near = [span for span in spans if when < span.last + self._gap and span.start < when + self._gap]
        merged = self._merge(near, when, values)
        window = self._window(key, merged)
        # The whole session counts: a record that joins one which is still open is not late.
        if self.is_over(window.end):
            return None
        self.refuse_beyond_limit(1 - len(near))
        # A session keeps the name of its start. Results under other names are of sessions that are no more.
        results = [self.removal(self._window(key, each)) for each in near if each.given and each.start != merged.start]
        if self.has_fired(window.end):
            results.append(self.result(window, merged.accumulators, again=merged.given > 0))
            merged = merged._replace(given=merged.given + 1, done=True)
        rest = [span for span in spans if span not in near]
        self.state.put(f"s{key}", sorted([*rest, merged]))
        # Nothing fails from here on.
        self.timers.count += 1 - len(near)
        # One that has not fired has a timer already, which finds that it grew: not one for each of its records.
        if not near or (not merged.done and all(span.done for span in near)):
            self.watch(self._timer(key, merged))
        return results

    def _merge(self, near: list[_Span], when: int, values: list[Any]) -> _Span:
        if not near:
            return _Span(when, when, 0, False, self.accumulate(None, values, when))
        accumulators = near[0].accumulators
        for span in near[1:]:
            accumulators = self.merge(accumulators, span.accumulators)
        accumulators = self.accumulate(accumulators, values, when)
        start, last = min(when, near[0].start), max(when, near[-1].last)
        given = near[0].given if near[0].start == start else 0
        return _Span(start, last, given, False, accumulators)

    def state_key(self, window: Window) -> str:
        return f"s{window.key}"

    def keys_for(self, key: str, when: int) -> list[str]:
        return [f"s{key}"]

    def close_window(self, window: Window, *, forget: bool) -> list[Record]:
        spans = self._spans(window.key)
        last = window.end - self._gap
        span = next((each for each in spans if each.start <= last <= each.last), None)
        if span is None:
            return []
        if span.last != last:
            # It grew, or was joined with a later one, since it was watched.
            due = span.last + self._gap
            self.timers.add(due + self._lateness if span.done else due, self._timer(window.key, span))
            return []
        if span.done and not forget:
            # Sessions that were joined had a timer each, and another one has fired it.
            return []
        rest = [each for each in spans if each is not span]
        if forget:
            self.timers.count -= 1
        else:
            rest = sorted([*rest, span._replace(given=span.given + (not span.done), done=True)])
            self.watch_again(self._timer(window.key, span))
        if rest:
            self.state.put(f"s{window.key}", rest)
        else:
            self.state.delete(f"s{window.key}")
        if span.done:
            return []
        return [self.result(self._window(window.key, span), span.accumulators, again=span.given > 0)]

    def _spans(self, key: str) -> list[_Span]:
        return [_Span(*each) for each in self.state.get(f"s{key}", ())]

    def _window(self, key: str, span: _Span) -> Window:
        return Window(span.last + self._gap, span.start, key)

    def _timer(self, key: str, span: _Span) -> Window:
        """Return what its timer is for: without its start, which a late record may change."""
        return Window(span.last + self._gap, span.last, key)
