"""KilledProcessor: a processor with state, called as the runtime does, whose process is killed now and then."""

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

    A kill loses the processor and its state; the next one begins with what was committed, and gets the
    records since then again.
    """

    def __init__(
        self,
        processor: Processor[Any],
        sources: Sequence[str],
        record_of: Callable[[Event], Record],
        result_of: Callable[[Record], T],
    ) -> None:
        self._record_of = record_of
        self._result_of = result_of
        self._processor = processor
        self._sources = frozenset(sources)
        self._kept: dict[str, bytes] = {}
        self._start()

    def _start(self) -> None:
        self.state = State()
        self.state.load(self._kept, lambda scope, keys: None)  # type: ignore[arg-type, return-value]
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
