"""Deferred records when a run ends: stop, failure, poison records, dead letters, any schedule."""

import random

import pytest
import trio
from conduit_connectors import memory
from deferring_pipelines import numbers, pipeline, read_kept, summed
from trio.testing import MockClock

from conduit_py import (
    DeadLetters,
    Defer,
    Pipeline,
    Record,
    Source,
    State,
    TransactionLimits,
    processor,
    sdk,
)
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)
from conduit_py.testing.simulation import simulated


class SlowDestination(FakeStagedDestination):
    """Takes 2 s to stage, and so does a transaction."""

    async def stage(self) -> bytes | None:
        await trio.sleep(2)
        return await super().stage()


class TestHowItEnds:
    async def test_a_graceful_stop_while_a_record_is_deferred_commits_all_that_was_read(
        self, autojump_clock: MockClock
    ) -> None:
        storage, store = FakeStorage(), MemoryStore()
        supervisor = Supervisor(pipeline(SlowDestination(storage=storage)), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1)
            assert storage.visible == []
            supervisor.stop()

        assert supervisor.state.status in (Status.STOPPED, Status.COMPLETED)
        assert storage.history == [10, 20, 30, 35]
        assert (await read_kept(store))["seen"] == list(range(35))

    @pytest.mark.parametrize("seconds", [1, 2.5, 4.5, 6.5])
    async def test_a_forceful_stop_while_a_record_is_deferred_leaves_it_to_the_next_run(
        self, seconds: float, autojump_clock: MockClock
    ) -> None:
        storage, store = FakeStorage(), MemoryStore()
        supervisor = Supervisor(pipeline(SlowDestination(storage=storage)), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(seconds)
            supervisor.force()
        assert storage.visible == list(range(10 * int(seconds / 2)))
        await run_to_end(pipeline(FakeStagedDestination(storage=storage)), store)

        assert storage.visible == list(range(35))
        assert (await read_kept(store))["seen"] == list(range(35))

    async def test_a_transaction_that_fails_to_commit_takes_the_deferred_record_with_it(
        self, autojump_clock: MockClock
    ) -> None:
        failures = [2]

        class Failing(FakeStagedDestination):
            async def stage(self) -> bytes | None:
                if len(self.storage.visible) == 10 and failures[0]:
                    failures[0] -= 1
                    raise sdk.TransientError("the disk is away")
                return await super().stage()

        storage, store = FakeStorage(), MemoryStore()
        ended = [(await run_to_end(pipeline(Failing(storage=storage)), store)).status for _ in range(3)]

        assert ended == [Status.DEGRADED, Status.DEGRADED, Status.COMPLETED]
        assert storage.history == [10, 20, 30, 35]
        assert (await read_kept(store))["seen"] == list(range(35))

    async def test_a_poison_record_behind_a_deferred_one_is_found_alone(self, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=storage, breaks={23})), store)

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert "ValueError: the storage breaks at 23" in outcome.error.message
        assert storage.visible == list(range(23))
        await run_to_end(pipeline(FakeStagedDestination(storage=storage)), store)
        assert (await read_kept(store))["seen"] == list(range(35))

    async def test_a_dead_letter_that_is_sent_again_through_it(self, autojump_clock: MockClock) -> None:
        """Letters come through the same door as records, some of them behind what is held, some deferred themselves."""
        refuses = {5, 10, 20, 25}

        @processor(state=True, defers=True)
        def choosy(record: Record, state: State) -> Record:
            if record.payload["n"] in refuses:
                raise RecordRefused("not yet")
            if record.payload["n"] % 5 == 0 and not state.first:
                raise Defer
            state.put("seen", [*state.get("seen", []), record.payload["n"]])
            return record

        def made(count: int) -> Pipeline:
            source = Source("s", memory.Source(records=numbers(count)), batch_size=3)
            return pipeline(
                FakeStagedDestination(storage=storage),
                sources=[source],
                processors=[choosy],
                dead_letters=DeadLetters("journal"),
            )

        storage, store = FakeStorage(), MemoryStore()
        await run_to_end(made(35), store)
        letters = (await store.letters.page(LetterFilter())).letters
        await store.letters.queue("p", {letter.id: ["choosy"] for letter in letters})
        assert len(letters) == 4
        refuses.clear()
        outcome = await run_to_end(made(50), store)

        assert outcome.status is Status.COMPLETED
        assert sorted(storage.visible) == list(range(50))
        assert sorted((await read_kept(store, "choosy"))["seen"]) == list(range(50))
        assert [n for n in storage.visible if n >= 35] == list(range(35, 50))
        assert (await store.letters.page(LetterFilter())).letters == []


@simulated(seeds=range(20), seconds=3600)
async def test_any_schedule_of_any_sources_and_limits_cut_short_now_and_then(seed: int) -> None:
    """No record lost, doubled or out of order, and no wait for ever, whatever waits where when a record is deferred."""
    rng = random.Random(seed)
    sources = {f"s{at}": rng.randint(1, 40) for at in range(rng.randint(1, 3))}
    sizes = {name: rng.randint(1, 8) for name in sources}
    often, limit = rng.choice([2, 3, 7]), rng.choice([2, 5, 100])

    @processor
    async def upstream(record: Record) -> Record | None:
        await trio.sleep(rng.choice([0, 0, 0.001]))
        return None if record.payload["n"] % 11 == 5 else record

    @processor(state=True, defers=True)
    def sometimes(record: Record, state: State) -> Record:
        if hash((seed, record.payload["n"])) % often == 0 and not state.first:
            raise Defer
        source = f"seen{record.payload['n'] // 1000}"
        state.put(source, [*state.get(source, []), record.payload["n"]])
        return record

    def made() -> Pipeline:
        return pipeline(
            FakeTransactionalDestination(storage=home),
            SlowDestination(storage=staged),
            sources=[
                Source(
                    name,
                    memory.Source(records=numbers(count, 1000 * int(name[1:]))),
                    batch_size=sizes[name],
                    processors=[upstream] if rng.random() < 0.5 else [],
                )
                for name, count in sources.items()
            ],
            processors=[upstream, sometimes, summed],
            transaction=TransactionLimits(max_records=limit),
        )

    home, staged, store = FakeStorage(), FakeStorage(), MemoryStore()
    for _ in range(rng.randint(0, 3)):
        supervisor = Supervisor(made(), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(rng.uniform(0, 8))
            supervisor.force()
    outcome = await run_to_end(made(), store)

    assert outcome.status is Status.COMPLETED, outcome.error
    state = await read_kept(store, "sometimes")
    for name, count in sources.items():
        first = 1000 * int(name[1:])
        expected = [n for n in range(first, first + count) if n % 11 != 5]
        assert [n for n in home.visible if n in expected] == [n for n in staged.visible if n in expected] == expected
        assert state.get(f"seen{name[1:]}", []) == expected
    assert (await read_kept(store, "summed")).get("sum", 0) == sum(home.visible)
