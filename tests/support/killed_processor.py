"""KilledProcessor: a processor with state, called as the runtime does, whose process is killed now and then."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from builders import batch_of
from naive_windows import Event

from conduit_py.record import Record
from conduit_py.sdk import Processor, State
from conduit_py.stream.processor_calls import with_atomic_state

T = TypeVar("T")


class KilledProcessor(Generic[T]):
    """A processor whose transactions commit now and then, and whose process is killed in between.

    With `cache_bytes`, at most so much of its state is in memory, beside what its transactions changed.

    A kill loses the processor and its state; the next one begins with what was committed, and gets the
    records since then again.
    """

    def __init__(
        self,
        processor: Processor[Any],
        sources: Sequence[str],
        record_of: Callable[[Event], Record],
        result_of: Callable[[Record], T],
        cache_bytes: float = math.inf,
        state_type: type[State] = State,
    ) -> None:
        self._state_type = state_type
        self._record_of = record_of
        self._result_of = result_of
        self._processor = processor
        self._sources = frozenset(sources)
        self._cache_bytes = cache_bytes
        self._kept: dict[str, bytes] = {}
        self._start()

    def _start(self) -> None:
        self.state = self._state_type()
        self.state.cache_bytes = self._cache_bytes
        self.state.load(self._kept, nothing_seen, DictValues(self._kept))
        self.state.sources = self._sources
        self.running = self._processor.fresh()
        self.running.state = self.state
        self.running.open()
        self._call = with_atomic_state(self.running.process, self.state, is_async=False, passes_state=False)

    def run(self, events: Sequence[Event], commits: Sequence[int], kills: Sequence[int]) -> list[T]:
        shown: list[T] = []
        pending: list[T] = []
        committed = number = 0
        left = sorted(set(kills))
        while number < len(events):
            pending += self.process(number, events[number])
            number += 1
            if left and left[0] < number:
                left.pop(0)
                number, pending = committed, []
                self._start()
            elif number in commits or number == len(events):
                for key, value in self.state.drain().puts.items():
                    self._kept.pop(key, None) if value is None else self._kept.update({key: value})
                shown, pending, committed = shown + pending, [], number
        return shown

    def process(self, number: int, event: Event) -> list[T]:
        record = self._record_of(event)
        self.state.enter(batch_of(record, first=number, source=event.source))
        result = self._call(record)
        return [
            self._result_of(each) for each in ([] if result is None else [result] if type(result) is Record else result)
        ]


async def nothing_seen(scope: str, keys: Sequence[bytes]) -> set[bytes]:
    return set()


class DictValues:
    """What was committed, in a dictionary that the test changes."""

    waits = False

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def read(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        return [(key, self._values[key]) for key in keys if key in self._values]

    async def read_async(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        return self.read(keys)

    def page(self, prefix: str, start: str, limit: int) -> list[tuple[str, bytes]]:
        return sorted(each for each in self._values.items() if each[0].startswith(prefix) and each[0] >= start)[:limit]

    def check(self) -> None:
        """A dictionary never fails."""
