"""Processors before which records wait for others: when a batch closes, and that nothing else changes by it."""

import random
from typing import Any

import pytest
import trio
from conduit_processors import model
from crash_enumeration import Enumeration
from exactly_once_scenario import ExactlyOnceScenario
from trio.testing import MockClock

from conduit_py import (
    Batch,
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    Processor,
    Record,
    RecordRefused,
    Retry,
    Source,
    TransactionLimits,
    TransientError,
    processor,
)
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Delay, EventLog, ScriptedDestination, ScriptedSource, number_of, simulated
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage


class Asked:
    """A processor that notes when it was called with which numbers. It refuses 7, and fails as often as asked."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[float, list[int]]] = []
        self._failures = failures

    def declared(self, **options: Any) -> Processor:
        @processor(batch=True)
        async def ask(batch: Batch) -> list[Record | Exception]:
            self.calls.append((trio.current_time(), [number_of(record) or 0 for record in batch]))
            await trio.lowlevel.checkpoint()
            if len(self.calls) <= self._failures:
                raise TransientError("busy")
            return [RecordRefused("unlucky") if number_of(each) == 7 else each for each in batch]

        return Processor("ask", ask, **options)


def spread(delays: dict[int, float], log: EventLog, **options: Any) -> Source:
    """Eight records, one by one, with so long a wait before some."""
    script: dict[int, Any] = {number: Delay(seconds) for number, seconds in delays.items()}
    return Source("source", ScriptedSource(records=8, log=log, script=script), batch_size=1, **options)


async def run(source: Source, log: EventLog, asked: Processor, **options: Any) -> None:
    destinations = [Destination("lake", ScriptedDestination(name="lake", log=log))]
    options = {"destinations": destinations, "dead_letters": DeadLetters("drop", window_size=0), **options}
    supervisor = Supervisor(Pipeline("p", sources=[source], processors=[asked], **options), MemoryStore())
    assert (await supervisor.run()).status is Status.COMPLETED
    assert (supervisor.progress().acked, supervisor.progress().dead_letters) == (8, 1)


async def test_records_wait_so_long_for_a_full_batch(autojump_clock: MockClock) -> None:
    log, asked = EventLog(), Asked()
    await run(spread({1: 1, 2: 1, 3: 60, 4: 1}, log), log, asked.declared(batch_seconds=10, batch_size=4))

    # Ten seconds after the first of them; full at once; and at the end of the source, which is no reason to wait.
    assert asked.calls == [(10, [0, 1, 2]), (63, [3, 4, 5, 6]), (63, [7])]
    assert log.numbers("lake") == [0, 1, 2, 3, 4, 5, 6]
    log.check()


async def test_a_full_window_does_not_wait_for_a_batch(autojump_clock: MockClock) -> None:
    log, asked = EventLog(), Asked()
    await run(spread({}, log, window=3), log, asked.declared(batch_seconds=1000))

    assert trio.current_time() < 2
    assert max(len(numbers) for _, numbers in asked.calls) <= 3


async def test_a_batch_is_retried_as_it_was(autojump_clock: MockClock) -> None:
    log, asked = EventLog(), Asked(failures=2)
    retry = Retry(attempts=3, delay_seconds=1)
    await run(spread({}, log), log, asked.declared(batch_seconds=5, batch_size=6, retry=retry))

    assert [numbers for _, numbers in asked.calls] == [[0, 1, 2, 3, 4, 5]] * 3 + [[6, 7]]
    assert log.numbers("lake") == [0, 1, 2, 3, 4, 5, 6]
    log.check()


async def test_a_transaction_waits_as_long_and_no_longer(autojump_clock: MockClock) -> None:
    log, asked, storage = EventLog(), Asked(), FakeStorage()
    lake = Destination("lake", FakeStagedDestination(storage=storage))
    await run(
        spread({1: 1, 2: 1, 3: 60, 4: 1}, log),
        log,
        asked.declared(batch_seconds=10, batch_size=100),
        destinations=[lake],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=4),
    )

    # The second transaction is full with four records: none of them waits for others.
    assert [numbers for _, numbers in asked.calls] == [[0, 1, 2], [3, 4, 5, 6], [7]]
    assert asked.calls[0][0] == 10
    assert asked.calls[1][0] < 64
    assert storage.visible == [0, 1, 2, 3, 4, 5, 6]


async def test_a_stop_does_not_wait(autojump_clock: MockClock) -> None:
    log, asked = EventLog(), Asked()
    lake = Destination("lake", ScriptedDestination(name="lake", log=log))
    source = spread({5: 10_000}, log)
    supervisor = Supervisor(
        Pipeline("p", sources=[source], processors=[asked.declared(batch_seconds=1000)], destinations=[lake]),
        MemoryStore(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        held = log.numbers("lake")
        supervisor.stop()

    assert (held, log.numbers("lake")) == ([], [0, 1, 2, 3, 4])
    assert trio.current_time() < 101
    log.check()


@simulated(seeds=range(12))
async def test_nothing_else_changes_whatever_the_limits(seed: int) -> None:
    """Two sources, a split, a filter and a refusal around it: every record once, in order, and every vote counted."""
    log, rng, asked = EventLog(), random.Random(seed), Asked()

    @processor(batch=True)
    def change(batch: Batch) -> list[Any]:
        numbers = [number_of(record) or 0 for record in batch]
        return [
            None if number % 5 == 0 else [record, record] if number % 7 == 0 else record
            for number, record in zip(numbers, batch.records, strict=True)
        ]

    script: dict[int, Any] = {number: Delay(rng.random() / 20) for number in range(0, 60, 3)}
    sources = [
        Source(name, ScriptedSource(records=60, name=name, log=log, script=script), batch_size=4, window=32)
        for name in ("a", "b")
    ]
    limits: dict[str, Any] = {"batch_size": rng.choice([None, 3, 50]), "batch_seconds": rng.choice([0.01, 0.05, 5])}
    workers = rng.choice([1, 3])
    destinations = [Destination(name, ScriptedDestination(name=name, log=log)) for name in ("lake", "copy")]
    first, second = Processor("change", change, workers=workers, **limits), asked.declared(**limits)
    pipeline = Pipeline(
        "p",
        sources=sources,
        processors=rng.choice([[first, second], [second, first]]),
        destinations=destinations,
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())

    assert (await supervisor.run()).status is Status.COMPLETED
    assert supervisor.progress().acked == 120
    log.check()


class CollectingScenario(ExactlyOnceScenario):
    """The scenario with every kind of end, in which records wait before the processor that keeps a sum."""

    def pipeline(self) -> Pipeline:
        pipeline = super().pipeline()
        for number, each in enumerate(pipeline.processors):
            if each.processor is not None:
                pipeline.processors[number] = Processor(each.id, each.processor, batch_seconds=0.5, batch_size=2)
        return pipeline


def test_collected_records_are_exact_when_killed() -> None:
    enumeration = Enumeration(lambda: CollectingScenario(with_home=True), every=499)
    report = enumeration.kill_once()

    assert report.broken == {}
    assert report.trials >= 20
    assert enumeration.freeze_and_resume().broken == {}


def test_wrong_settings_are_problems() -> None:
    @processor(arrow=True)
    def table(rows: Any) -> Any:
        return rows

    @processor(state=True, defers=True)
    def deferring(record: Record, state: Any) -> Record:
        return record

    call = model.Call(url="http://localhost", into="x")
    wrong = [
        Processor("size", call, batch_size=2),
        Processor("seconds", call, batch_seconds=0),
        Processor("table", table, batch_seconds=1),
        Processor("defers", deferring, batch_seconds=1),
    ]
    lake = Destination("lake", FakeStagedDestination(storage=FakeStorage()))
    sources = [Source("source", ScriptedSource())]
    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(Pipeline("p", sources=sources, processors=wrong, destinations=[lake], delivery="exactly_once"))

    found = {each.path: each.message for each in raised.value.problems}
    assert "batch_size needs batch_seconds" in found.pop("processors.size")
    assert "greater than 0" in found.pop("processors.seconds.batch_seconds")
    assert "takes tables" in found.pop("processors.table.batch_seconds")
    assert "cannot be deferred" in found.pop("processors.defers.batch_seconds")
