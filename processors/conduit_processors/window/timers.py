"""Timers: when a processor looks at its keys again, by event time. Those of a large state are in the state."""

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from conduit_py.sdk import FatalError, State

FORMAT: Final = 1
HEAD_TIMERS: Final = 1000
"""How many of the next timers are in memory, if all of them are in the state."""
AHEAD_TIMERS: Final = 100
"""Of how many timers that are not due yet the keys are fetched with those of timers that are due."""
_MARK: Final = "~timers"
_PREFIX: Final = "~timer:"
# Times of the years 1 to 9999, in microseconds, are beyond neither end: as text they sort as numbers do.
_SHIFT: Final = 10**18
_LATEST: Final = 8 * 10**18
"""As good as never: a lateness or an interval may be without end."""

T = TypeVar("T")


class Timers(Generic[T]):
    """Timers in the order of their times. A timer is a time and what it is for, which can be compared.

    As long as the state of the processor is in memory, so are its timers: the processor adds all of them when it
    opens, and then calls `begin`. Once the state is larger than its cache, each timer is a key of the state, which
    sorts by its time. The next ones are in memory too. Then `is_stored` is True, also after a restart, and `count` is
    kept in the state.

    `add` and `take` are called only when nothing can fail any more, because memory is not undone with a record.
    """

    def __init__(
        self,
        state: State,
        to_text: Callable[[T], str],
        of_text: Callable[[str], T],
        key_of: Callable[[T], str],
        head_max: int = HEAD_TIMERS,
    ) -> None:
        """`to_text` sorts as T does. `key_of` is the key of the state that a timer is about."""
        self._state = state
        self._head_max = head_max
        self._to_text = to_text
        self._of_text = of_text
        self._key_of = key_of
        self.head: list[tuple[int, T]] = []
        """A heap: the next timers. If they are stored, all up to `_until`, or all that there are if it is None."""
        self._until: tuple[()] | tuple[int, T] | None = None
        mark = state.get(_MARK)
        if mark is not None and mark[0] != FORMAT:
            raise FatalError(
                f"the timers in the state have format version {mark[0]}; this conduit-py can read version {FORMAT}",
                suggestion="use the version of conduit-py that wrote the state",
            )
        self.is_stored = mark is not None
        self._count: int = mark[1] if mark is not None else 0
        self._fetched: tuple[int, T] | None = None
        """The last timer whose key was fetched."""
        self._begun = False
        if self.is_stored:
            self._until = ()
            if state.evicted is None:
                # It is in memory again, where a scan sorts all keys: once, not for each thousand timers.
                self.head, self._until = list(self._scan()), None

    @property
    def count(self) -> int:
        """How much the processor has timers for, as it counts."""
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        if self.is_stored:
            self._state.put(_MARK, [FORMAT, count])

    def begin(self) -> None:
        """Called when all timers are added that were there before."""
        self._begun = True

    def add(self, when: int, what: T) -> None:
        timer = min(when, _LATEST), what
        # Not before a record is processed: only with one are changes of the state committed.
        if self._state.evicted is not None and self._begun and not self.is_stored:
            self._store_all()
        if self.is_stored:
            self._state.put(self._name(timer), None)
            if self._until is not None and timer > self._until:
                return
        heapq.heappush(self.head, timer)
        if self.is_stored and len(self.head) > 2 * self._head_max and self._state.evicted is not None:
            # Sorted, so it is still a heap.
            self.head = heapq.nsmallest(self._head_max, self.head)
            self._until = self.head[-1]

    def take(self, until: int) -> Iterator[T]:
        """Remove the timers up to this time and yield them, in order, also those that are added meanwhile."""
        while (timer := self._take_next(until)) is not None:
            if self._state.evicted is not None and (self._fetched is None or timer > self._fetched):
                self._fetch(timer, until)
            yield timer[1]

    def _fetch(self, timer: tuple[int, T], until: int) -> None:
        """Fetch the keys of a timer and of those behind it in one step: each read waits for the store."""
        following = heapq.nsmallest(self._head_max, self.head)
        # Of those that are not due yet too: often one timer is due for each record.
        due = sum(each[0] <= until for each in following)
        wanted = [timer, *following[: due + AHEAD_TIMERS]]
        self._state.fetch(self._key_of(what) for _, what in wanted)
        self._fetched = wanted[-1]

    def last(self, value: Callable[[T], int]) -> int | None:
        """Return the highest value of all timers; None if there are none."""
        timers = self._scan() if self.is_stored and self._until is not None else iter(self.head)
        return max((value(what) for _, what in timers), default=None)

    def _take_next(self, until: int) -> tuple[int, T] | None:
        if not self.head and self._until is not None and (not self._until or self._until[0] <= until):
            self._load_head()
        if not self.head or self.head[0][0] > until:
            return None
        timer = heapq.heappop(self.head)
        if self.is_stored:
            self._state.delete(self._name(timer))
        return timer

    def _load_head(self) -> None:
        after = "" if not self._until else self._name(self._until) + "\0"
        self.head = list(islice(self._scan(after), self._head_max))
        self._until = self.head[-1] if len(self.head) == self._head_max else None

    def _store_all(self) -> None:
        # With the record that is processed: what was committed before is found by `restore` of the processor.
        self.is_stored = True
        self.count = self._count
        for timer in self.head:
            self._state.put(self._name(timer), None)

    def _scan(self, start: str = "") -> Iterator[tuple[int, T]]:
        for name, _ in self._state.scan(_PREFIX, start):
            text = name[len(_PREFIX) :]
            yield time_of(text[:19]), self._of_text(text[19:])

    def _name(self, timer: tuple[int, T]) -> str:
        return f"{_PREFIX}{time_text(timer[0])}{self._to_text(timer[1])}"


def time_text(when: int) -> str:
    """Return a time as text of 19 digits that sorts as the time does."""
    return f"{when + _SHIFT:019d}"


def time_of(text: str) -> int:
    return int(text) - _SHIFT
