"""Conditions and retry policies of processors: which records are tried, how often, when, and in what state."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Retry, Source, processor
from conduit_py.errors import FatalError, RecordRefused, TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Meter
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, position_of

with pytest.raises(ZeroDivisionError) as division:
    divmod(1, 0)
NO_QUOTIENT = f"ZeroDivisionError: {division.value}"
"""What this Python says, which differs between versions."""


class World:
    """What is left after a run of six records through one processor."""

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self.log = EventLog()
        self.letters: list[DeadLetter] = []
        self.calls: list[tuple[float, int]] = []
        self.rng = rng

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    async def run(self, *processors: Any, batch_size: int = 6) -> PipelineState:
        pipeline = Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=6, log=self.log), batch_size=batch_size)],
            processors=processors,
            destinations=[Destination("destination", ScriptedDestination(log=self.log))],
            dead_letters=DeadLetters(self.keep),
        )
        supervisor = Supervisor(pipeline, MemoryStore(), rng=self.rng)
        state = await supervisor.run()
        self.meters: dict[str, Meter] = {meter.node: meter for meter in supervisor.progress().nodes}
        if state.status is Status.COMPLETED:
            assert self.log.acked["source"] == [position_of(n) for n in range(6)]
        return state

    def failing(self, *times: int | None, error: Callable[[], Exception] = lambda: OSError("busy")) -> Any:
        """A function that fails record n for the first times[n] attempts (None: always), having changed it first."""

        async def work(record: Record) -> Record:
            n = record.payload["n"]
            self.calls.append((trio.current_time(), n))
            record.payload["tries"] = record.payload.get("tries", 0) + 1
            attempts = sum(1 for _, number in self.calls if number == n)
            allowed = times[n] if n < len(times) else 0
            if allowed is None or attempts <= allowed:
                raise error()
            return record

        return work


class TestConditions:
    """`when` chooses the records that a processor sees."""

    async def test_records_for_which_it_is_false_pass_untouched_and_in_place(self, autojump_clock: MockClock) -> None:
        world = World()
        even = Processor(
            "even", world.failing(), when=lambda record: record.payload["n"] % 2 == 0, retry=Retry(attempts=2)
        )
        await world.run(even)

        assert [number for _, number in world.calls] == [0, 2, 4]
        assert world.log.numbers() == list(range(6))
        tries = [each.record.payload.get("tries") for each in world.log.stored["destination"]]
        assert tries == [1, None, 1, None, 1, None]

    async def test_when_it_is_false_for_all_the_processor_is_not_called(self, autojump_clock: MockClock) -> None:
        world = World()

        @processor(batch=True, when=lambda record: False)
        def never(batch: Batch) -> list[Record]:
            raise AssertionError(batch)

        state = await world.run(never)

        assert state.status is Status.COMPLETED
        assert world.log.numbers() == list(range(6))

    async def test_one_that_raises_refuses_the_record(self, autojump_clock: MockClock) -> None:
        world = World()
        picky = Processor("picky", world.failing(0, None), when=lambda record: 6 // (record.payload["n"] - 3) > 0)
        state = await world.run(picky)

        assert state.status is Status.COMPLETED
        assert [number for _, number in world.calls] == [4, 5]
        assert world.log.numbers() == [0, 1, 2, 4, 5]
        [letter] = world.letters
        assert letter.message.sequence == 3
        assert letter.node == "picky"
        assert letter.error == NO_QUOTIENT


class TestRetries:
    """A failed record is tried again, as it came, until the policy has had enough."""

    POLICY = Retry(attempts=4, delay_seconds=10, delay_max_seconds=15, factor=2)

    async def test_only_the_failed_ones_are_tried_again_after_growing_delays(self, autojump_clock: MockClock) -> None:
        world = World(rng=random.Random(5))
        delays = random.Random(5)
        expected = [self.POLICY.delay(attempt, delays) for attempt in (1, 2, 3)]
        state = await world.run(Processor("flaky", world.failing(0, 1, 3, None), retry=self.POLICY))

        assert state.status is Status.COMPLETED
        starts = [0, expected[0], sum(expected[:2]), sum(expected)]
        assert world.calls == [
            *[(starts[0], n) for n in range(6)],
            *[(starts[1], n) for n in (1, 2, 3)],
            *[(starts[2], n) for n in (2, 3)],
            *[(starts[3], n) for n in (2, 3)],
        ]
        # Jitter takes at most half: 10, 20 capped to 15, 15.
        assert all(cap / 2 <= delay <= cap for cap, delay in zip((10, 15, 15), expected, strict=True))
        assert world.log.numbers() == [0, 1, 2, 4, 5]
        assert world.meters["flaky"].retries == 3
        assert world.meters["flaky"].refused == 1

    async def test_every_attempt_and_the_dead_letter_have_the_record_as_it_came(
        self, autojump_clock: MockClock
    ) -> None:
        world = World()
        await world.run(Processor("flaky", world.failing(0, 1, 3, None), retry=self.POLICY))

        assert [each.record.payload["tries"] for each in world.log.stored["destination"]] == [1] * 5
        [letter] = world.letters
        assert letter.record.payload.after == {"n": 3, "from": "source"}
        assert [(each.node, each.error, each.attempt) for each in letter.failures] == [("flaky", "OSError: busy", 4)]
        assert letter.position == b"3"

    async def test_a_refusal_is_not_tried_again(self, autojump_clock: MockClock) -> None:
        world = World()
        refusing = world.failing(0, 1, error=lambda: RecordRefused("no such customer"))
        await world.run(Processor("flaky", refusing, retry=self.POLICY))

        assert [number for _, number in world.calls] == list(range(6))
        [letter] = world.letters
        assert (letter.error, letter.failures[0].attempt) == ("no such customer", 1)
        assert letter.record.payload.after == {"n": 1, "from": "source"}
        assert trio.current_time() < 1

    async def test_a_fatal_error_is_not_tried_again_and_ends_the_run(self, autojump_clock: MockClock) -> None:
        world = World()
        fatal = world.failing(0, 1, error=lambda: FatalError("the table is gone"))
        state = await world.run(Processor("flaky", fatal, retry=self.POLICY))

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert (state.error.message, state.error.node) == ("the table is gone", "flaky")
        assert [number for _, number in world.calls] == [0, 1]
        assert world.log.acked["source"] == []

    async def test_without_a_policy_there_is_one_attempt(self, autojump_clock: MockClock) -> None:
        world = World()
        await world.run(Processor("flaky", world.failing(0, 1)))

        assert [number for _, number in world.calls] == list(range(6))
        [letter] = world.letters
        assert (letter.message.sequence, letter.failures[0].attempt) == (1, 1)
        assert world.meters["flaky"].retries == 0

    async def test_a_batch_function_that_raises_is_given_the_whole_batch_again(self, autojump_clock: MockClock) -> None:
        world, batches = World(), []

        @processor(batch=True, retry=Retry(attempts=2))
        def flaky(batch: Batch) -> list[Record]:
            batches.append([record.payload["n"] for record in batch])
            for record in batch:
                record.payload["n"] += 100
            if len(batches) == 1:
                raise OSError("busy")
            return batch.records

        state = await world.run(flaky)

        assert state.status is Status.COMPLETED
        assert batches == [[0, 1, 2, 3, 4, 5]] * 2
        assert world.log.numbers() == [100, 101, 102, 103, 104, 105]

    @pytest.mark.parametrize("workers", [1, 3])
    async def test_workers_and_conditions_keep_the_order(self, workers: int, autojump_clock: MockClock) -> None:
        world = World()
        flaky = Processor(
            "flaky",
            world.failing(2, 0, None, 1, 1),
            retry=Retry(attempts=3),
            workers=workers,
            when=lambda record: record.payload["n"] != 4,
        )
        state = await world.run(flaky)

        assert state.status is Status.COMPLETED
        assert world.log.numbers() == [0, 1, 3, 4, 5]
        [letter] = world.letters
        assert (letter.message.sequence, letter.failures[0].attempt) == (2, 3)

    async def test_a_transient_error_is_tried_again_before_it_ends_the_run(self, autojump_clock: MockClock) -> None:
        world = World()
        transient = world.failing(0, 2, error=lambda: TransientError("connection reset"))
        state = await world.run(Processor("flaky", transient, retry=self.POLICY))

        assert state.status is Status.COMPLETED
        assert world.log.numbers() == list(range(6))
        assert [each.record.payload["tries"] for each in world.log.stored["destination"]] == [1] * 6
        assert world.letters == []

    async def test_a_transient_error_that_persists_ends_the_run_and_is_no_refusal(
        self, autojump_clock: MockClock
    ) -> None:
        world = World()
        transient = world.failing(0, None, error=lambda: TransientError("connection reset"))
        state = await world.run(Processor("flaky", transient, retry=self.POLICY))

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert (state.error.message, state.error.node) == ("connection reset", "flaky")
        assert sum(1 for _, number in world.calls if number == 1) == 4
        assert world.letters == []
        assert world.log.acked["source"] == []
