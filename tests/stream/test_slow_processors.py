"""Sync processors that wait: they leave the event loop before they hold it up, and return when they are quick."""

import threading
import time

import pytest
from builders import batch_of

from conduit_py import Batch, DeadLetters, Destination, Pipeline, Record, Source, processor, sdk
from conduit_py.owned_thread import OwnClock
from conduit_py.stream.plugin_calls import ThreadStay
from conduit_py.stream.processor_calls import finish
from conduit_py.stream.worker import ProcessorWorker
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, run_to_end


def pipeline(log: EventLog, step: object) -> Pipeline:
    return Pipeline(
        "slow",
        sources=[Source("source", ScriptedSource(records=40, log=log), batch_size=20)],
        processors=[step],  # type: ignore[list-item]
        destinations=[Destination("destination", ScriptedDestination(log=log))],
        dead_letters=DeadLetters("drop"),
    )


async def test_a_processor_that_proves_slow_takes_the_rest_of_its_batch_to_a_thread() -> None:
    here: list[bool] = []
    loop = threading.current_thread()

    def step(record: Record) -> Record:
        here.append(threading.current_thread() is loop)
        if len(here) == 1:
            time.sleep(0.1)
        return record

    log = EventLog()
    await run_to_end(pipeline(log, step))

    assert here == [True] + [False] * 39
    assert log.numbers() == list(range(40))


async def test_an_error_in_the_rest_of_the_batch_refuses_its_record_alone() -> None:
    def step(record: Record) -> Record:
        time.sleep(0.1 if record.position == b"0" else 0)
        if record.position == b"7":
            raise ValueError("unlucky")
        return record

    log = EventLog()
    await run_to_end(pipeline(log, step))

    assert log.numbers() == [number for number in range(40) if number != 7]


async def test_a_batch_processor_that_proves_slow_is_in_a_thread_from_the_next_batch_on() -> None:
    here: list[bool] = []
    loop = threading.current_thread()

    @processor(batch=True)
    def step(batch: Batch) -> list[Record]:
        here.append(threading.current_thread() is loop)
        time.sleep(0.1)
        return list(batch)

    log = EventLog()
    await run_to_end(pipeline(log, step))

    assert here == [True, False]
    assert log.numbers() == list(range(40))


class Clock:
    """A clock that only a processor moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def run_batches(
    seconds: list[float], *, by_batch: bool = False, blocking: bool | None = None, preempted: bool = False
) -> list[bool]:
    """Process a batch of one record for each of these durations; return which ones were in the event loop.

    With `preempted` the machine ran something else all the time.
    """
    here: list[bool] = []
    loop = threading.current_thread()
    clock = Clock()
    durations = iter(seconds)

    def note(record: Record) -> Record:
        here.append(threading.current_thread() is loop)
        clock.now += next(durations)
        return record

    @processor(batch=True)
    def whole(batch: Batch) -> list[Record]:
        return [note(record) for record in batch]

    class Declared(sdk.Processor[sdk.Options]):
        def process(self, record: Record) -> Record:
            return note(record)

    Declared.blocking = blocking
    worker = ProcessorWorker("step", whole if by_batch else Declared())
    worker.stay = ThreadStay(OwnClock(clock, clock if preempted else lambda: 0.0))
    try:
        for number in range(len(seconds)):
            batch = batch_of({"n": number}, first=number)
            assert await finish(worker.run(batch)) == batch.records
    finally:
        await worker.close([])
    return here


@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_processor_that_is_quick_again_returns_to_the_event_loop(by_batch: bool) -> None:
    here = await run_batches([0.06] + [0.001] * 30, by_batch=by_batch)

    assert here == [True] + [False] * 19 + [True] * 11


@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_processor_that_only_got_no_core_stays_in_the_event_loop(by_batch: bool) -> None:
    assert all(await run_batches([0.06, 0.001, 1.0], by_batch=by_batch, preempted=True))


def test_a_call_that_waits_for_something_is_slow_however_busy_the_machine_is() -> None:
    own = OwnClock()
    started = own.start()
    time.sleep(0.2)

    assert own.seconds_since(started) > 0.19


@pytest.mark.parametrize("lost_at", [1, 2])
def test_a_wait_between_the_answers_of_system_and_clock_counts_for_no_call(lost_at: int) -> None:
    clock = Clock()
    waited, asked = 0.0, 0

    def core_waits() -> float:
        nonlocal waited, asked
        asked += 1
        answer = waited
        if asked == lost_at:
            # The system has answered, and the thread loses its core before it reads the clock.
            clock.now += 0.15
            waited += 0.15
        return answer

    own = OwnClock(clock, core_waits)
    started = own.start()
    clock.now += 0.2

    assert own.seconds_since(started) == pytest.approx(0.2)


def test_the_system_is_asked_for_waits_only_now_and_then() -> None:
    clock = Clock()
    asked: list[float] = []

    def core_waits() -> float:
        asked.append(clock.now)
        return 0.0

    own = OwnClock(clock, core_waits)
    for now in (0.0, 0.004, 0.008, 0.012):
        clock.now = now
        assert own.seconds_since(own.start()) == 0.0

    assert asked == [0.0, 0.012]


@pytest.mark.parametrize("by_batch", [False, True])
async def test_only_quick_batches_in_a_row_bring_it_back(by_batch: bool) -> None:
    # 0.03 is not slow enough to leave the event loop, but too slow to return to it.
    here = await run_batches([0.06] + ([0.001] * 18 + [0.03]) * 10, by_batch=by_batch)

    assert here == [True] + [False] * 190


async def test_a_processor_that_is_slow_now_and_then_leaves_the_thread_ever_more_rarely() -> None:
    here = await run_batches(([0.001] * 49 + [0.06]) * 40)

    # Slow every 50th batch, it comes back after 19 quick ones, then after 38; 76 in a row it never has.
    slow_here = [number for number in range(49, 2000, 50) if here[number]]
    assert slow_here == [49, 99, 149]
    assert not any(here[150:])


async def test_the_longer_it_held_up_the_loop_the_longer_it_stays_away() -> None:
    here = await run_batches([1.0] + [0.001] * 400)

    assert here == [True] + [False] * 320 + [True] * 80


async def test_a_processor_that_declares_whether_it_blocks_stays_where_it_is() -> None:
    assert await run_batches([0.06] + [0.001] * 60, blocking=True) == [False] * 61
    assert await run_batches([0.06] + [0.001] * 60, blocking=False) == [True] * 61
