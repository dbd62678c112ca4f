"""Sync processors that wait: they leave the event loop before they hold up anybody for long."""

import threading
import time

from conduit_py import Batch, DeadLetters, Destination, Pipeline, Record, Source, processor
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
