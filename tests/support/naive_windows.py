"""Windows and watermarks by a model without an index, a heap or a state: it keeps every record, and begins again."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A record of a source, or a tick of the clock if `source` is "clock". Times are whole seconds."""

    source: str
    time: int
    key: str = "a"
    value: int = 0
    first: bool = False
    end: bool = False


class Given(NamedTuple):
    """What windows give: the operation, the window, and the values of its records; or a late record."""

    operation: str
    key: str
    start: int = 0
    end: int = 0
    values: tuple[int, ...] = ()


@dataclass
class NaiveTime:
    """The watermark of several sources."""

    sources: tuple[str, ...]
    slack: int = 0
    idle: int | None = None
    watermark: int | None = None
    now: int | None = None
    history: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)
    """By source, the time of each record and the tick before it."""
    silent_since: dict[str, int | None] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        self.history.setdefault(event.source, []).append((event.time, self.now))
        self.silent_since[event.source] = self.now
        self.move(self._lowest())

    def tick(self, event: Event) -> None:
        first = event.first or self.now is None
        self.now = event.time if self.now is None else max(self.now, event.time)
        if first:
            self.silent_since = dict.fromkeys(self.sources, self.now)
        self.move(self._lowest())

    def _lowest(self) -> int | None:
        found = []
        for source in self.sources:
            times = [time for time, _ in self.history.get(source, [])]
            since = self.silent_since.get(source)
            silent = 0 if self.now is None or since is None else self.now - since
            is_idle = self.idle is not None and silent >= self.idle
            if not times and not is_idle:
                return None
            if times:
                found.append(max(times) - self.slack + (silent if is_idle else 0))
        return min(found, default=None)

    def move(self, when: int | None) -> None:
        if when is not None:
            self.watermark = when if self.watermark is None else max(self.watermark, when)


@dataclass
class NaiveWindows(NaiveTime):
    """`size` and `slide` for windows of one size, or `gap` for sessions."""

    size: int = 0
    slide: int = 0
    gap: int = 0
    lateness: int = 0
    members: dict[tuple[str, int], list[Event]] = field(default_factory=dict)
    """Windows of one size, by key and start."""
    active: dict[str, list[Event]] = field(default_factory=dict)
    """Sessions: by key, the records of those that are not forgotten."""
    given: dict[tuple[str, int], tuple[Event, ...]] = field(default_factory=dict)
    """By key and start: the records of the last result."""

    def process(self, event: Event) -> list[Given]:
        if event.source == "clock":
            return self._tick(event)
        results = self._add_session(event) if self.gap else self._add_fixed(event)
        if results is None:
            return [Given("late", event.key, event.time, event.time, (event.value,))]
        self.note(event)
        return results + self._fire()

    def _tick(self, event: Event) -> list[Given]:
        self.tick(event)
        if event.end:
            windows = self._windows()
            self.move(max((self._end(window, windows) for window in windows), default=None))
        return self._fire()

    def _reached(self, when: int) -> bool:
        return self.watermark is not None and self.watermark >= when

    def _windows(self) -> dict[tuple[str, int], list[Event]]:
        if not self.gap:
            return self.members
        return {
            (key, cluster[0].time): cluster for key, events in self.active.items() for cluster in self._clusters(events)
        }

    def _clusters(self, events: list[Event]) -> list[list[Event]]:
        clusters: list[list[Event]] = []
        for event in sorted(events, key=lambda each: each.time):
            if clusters and event.time - clusters[-1][-1].time < self.gap:
                clusters[-1].append(event)
            else:
                clusters.append([event])
        return clusters

    def _add_fixed(self, event: Event) -> list[Given] | None:
        starts = [
            start
            for start in range(event.time - self.size - self.slide, event.time + 1)
            if start % self.slide == 0 and start <= event.time < start + self.size
        ]
        open_starts = [start for start in starts if not self._reached(start + self.size + self.lateness)]
        if not open_starts:
            return None
        results = []
        for start in open_starts:
            members = self.members.setdefault((event.key, start), [])
            members.append(event)
            # By time, and of one time in the order in which they came.
            members.sort(key=lambda each: each.time)
            if self._reached(start + self.size):
                results.append(self._give((event.key, start), start + self.size, members))
        return results

    def _add_session(self, event: Event) -> list[Given] | None:
        before = self._clusters(self.active.get(event.key, []))
        after = self._clusters([*self.active.get(event.key, []), event])
        cluster = next(each for each in after if event in each)
        end = cluster[-1].time + self.gap
        if self._reached(end + self.lateness):
            return None
        results = []
        for old in before:
            start = old[0].time
            if old[0] in cluster and start != cluster[0].time and self.given.pop((event.key, start), None) is not None:
                results.append(Given("delete", event.key, start, old[-1].time + self.gap))
        self.active.setdefault(event.key, []).append(event)
        if self._reached(end):
            results.append(self._give((event.key, cluster[0].time), end, cluster))
        return results

    def _give(self, window: tuple[str, int], end: int, events: list[Event]) -> Given:
        operation = "update" if window in self.given else "create"
        self.given[window] = tuple(events)
        return Given(operation, window[0], window[1], end, tuple(event.value for event in events))

    def _fire(self) -> list[Given]:
        results: list[Any] = []
        windows = self._windows()
        for window in sorted(windows, key=lambda each: (self._end(each, windows), each[0])):
            end = self._end(window, windows)
            if self._reached(end) and self.given.get(window) != tuple(windows[window]):
                results.append(self._give(window, end, windows[window]))
        for window in windows:
            if self._reached(self._end(window, windows) + self.lateness):
                self._forget(window, windows[window])
        return results

    def _end(self, window: tuple[str, int], windows: dict[tuple[str, int], list[Event]]) -> int:
        return windows[window][-1].time + self.gap if self.gap else window[1] + self.size

    def _forget(self, window: tuple[str, int], events: list[Event]) -> None:
        self.given.pop(window, None)
        if self.gap:
            self.active[window[0]] = [each for each in self.active[window[0]] if not any(each is old for old in events)]
        else:
            self.members = {each: held for each, held in self.members.items() if each != window}
