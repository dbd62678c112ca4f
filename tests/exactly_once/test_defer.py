"""Deferring: a record that a processor defers is the first of the next transaction."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import memory
from deferring_pipelines import by_tens, numbers, passing, pipeline, read_kept, summed
from trio.testing import MockClock

from conduit_py import (
    Batch,
    DeadLetters,
    Defer,
    Destination,
    Pipeline,
    Processor,
    Record,
    Source,
    State,
    TransactionLimits,
    processor,
    sdk,
)
from conduit_py.errors import RecordRefused
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)
from tests.exactly_once.upstream import Upstream, VirtualSource, offset, read_committed


class TestWhatItMeans:
    async def test_gz_t8_the_rest_of_a_run_is_in_the_next_transaction_which_comes_to_its_ack(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        """The vector itself, on a journal: what is committed between lies before the ACK of the run."""
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        offsets: list[int] = []

        class Watching(FakeStagedDestination):
            async def apply(self, intent: bytes) -> None:
                await super().apply(intent)
                offsets.append(await offset(store))

        upstream.provisional(9, 10)
        end = upstream.acknowledge()
        source = Source("s", VirtualSource(path=tmp_path, until="end"))
        outcome = await run_to_end(pipeline(Watching(storage=storage), sources=[source]), store)

        assert (outcome.status, storage.history, storage.visible) == (Status.COMPLETED, [1, 2], [9, 10])
        assert await read_committed(store) == 2
        assert offsets[0] < end == offsets[1]

    @pytest.mark.parametrize("kind", [FakeTransactionalDestination, FakeStagedDestination])
    async def test_gz_t8_everything_before_a_deferred_record_commits_and_it_is_the_first_of_the_next(
        self, kind: Any, autojump_clock: MockClock
    ) -> None:
        storage, keyed, store = FakeStorage(), FakeStorage(), MemoryStore()
        outcome = await run_to_end(pipeline(kind(storage=storage), FakeKeyedDestination(storage=keyed)), store)

        assert outcome.status is Status.COMPLETED
        assert storage.history == [10, 20, 30, 35]
        assert storage.visible == list(range(35))
        assert list(keyed.by_key.values()) == list(range(35))
        # A try that was deferred has left nothing, neither in the state nor in its record.
        assert await read_kept(store) == {"seen": list(range(35)), "tried": 35}

    async def test_a_deferred_record_comes_again_as_it_came(self, autojump_clock: MockClock) -> None:
        records: list[Record] = []

        class Keeping(FakeStagedDestination):
            async def write(self, batch: Batch) -> sdk.destination.Refusals | None:
                records.extend(batch)
                return await super().write(batch)

        await run_to_end(pipeline(Keeping(storage=FakeStorage())))

        assert [record.metadata["tries"] for record in records] == ["x"] * 35

    @pytest.mark.parametrize("batch_size", [1, 7, 10, 1000])
    @pytest.mark.parametrize("max_records", [1, 3, 10, 4096])
    async def test_batches_and_limits_make_no_difference(
        self, batch_size: int, max_records: int, autojump_clock: MockClock
    ) -> None:
        storage, store = FakeStorage(), MemoryStore()
        source = Source("s", memory.Source(records=numbers(35)), batch_size=batch_size)
        limits = TransactionLimits(max_records=max_records)
        outcome = await run_to_end(
            pipeline(FakeStagedDestination(storage=storage), sources=[source], transaction=limits), store
        )

        assert outcome.status is Status.COMPLETED
        assert storage.visible == list(range(35))
        assert {10, 20, 30} <= set(storage.history)
        assert (await read_kept(store))["seen"] == list(range(35))

    async def test_every_record_may_be_deferred(self, autojump_clock: MockClock) -> None:
        @processor(state=True, defers=True)
        def alone(record: Record, state: State) -> Record:
            if not state.first:
                raise Defer
            return record

        storage = FakeStorage()
        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=storage), processors=[alone]))

        assert outcome.status is Status.COMPLETED
        assert storage.history == list(range(1, 36))

    @pytest.mark.parametrize("way", ["async", "batch", "class", "returned", "generated", "raised for the batch"])
    async def test_every_way_to_write_it(self, way: str, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        outcome = await run_to_end(
            pipeline(FakeStagedDestination(storage=storage), processors=[Processor("p", WAYS[way])]), store
        )

        assert outcome.status is Status.COMPLETED
        assert storage.visible == list(range(35))
        assert {10, 20, 30} <= set(storage.history)
        assert (await read_kept(store, "p"))["sum"] == sum(range(35))

    async def test_filtered_split_and_refused_records_around_it(self, autojump_clock: MockClock) -> None:
        """Before the processor that defers, and behind it: what ends early is in the transaction of its neighbours."""

        @processor
        def picky(record: Record) -> Record | None:
            n = record.payload["n"]
            if n in (9, 10, 21):
                return None
            if n in (8, 22):
                raise RecordRefused("no")
            return record

        @processor(state=True)
        def doubled(record: Record, state: State) -> list[Record] | None:
            state.put("count", state.get("count", 0) + 1)
            n = record.payload["n"]
            return [record, record.copy()] if n % 3 == 0 else None if n % 3 == 1 else [record]

        @processor(state=True, defers=True)
        def between(record: Record, state: State) -> Record:
            if record.payload["n"] in (11, 20, 23) and not state.first:
                raise Defer
            return record

        storage, store = FakeStorage(), MemoryStore()
        declared = pipeline(
            FakeStagedDestination(storage=storage),
            processors=[picky, between, doubled],
            dead_letters=DeadLetters("journal"),
        )
        outcome = await run_to_end(declared, store)

        passed = [n for n in range(35) if n not in (8, 9, 10, 21, 22)]
        assert outcome.status is Status.COMPLETED
        assert storage.visible == [m for n in passed for m in ([n, n] if n % 3 == 0 else [] if n % 3 == 1 else [n])]
        assert (await read_kept(store, "doubled"))["count"] == len(passed)
        assert outcome.progress.dead_letters == 2


@processor(state=True, defers=True)
async def asynchronous(record: Record, state: State) -> Record:
    await trio.sleep(0.01)
    if record.payload["n"] % 10 == 0 and not state.first:
        raise Defer
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    return record


@processor(state=True, defers=True)
def returned(record: Record, state: State) -> Record | Defer:
    if record.payload["n"] % 10 == 0 and not state.first:
        return Defer()
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    return record


@processor(state=True, defers=True, batch=True)
def batched(batch: Batch, state: State) -> list[Record | Defer]:
    passed: list[Record | Defer] = []
    for record in batch:
        if record.payload["n"] % 10 == 0 and (passed or not state.first):
            return passed + [Defer()] * (len(batch) - len(passed))
        state.put("sum", state.get("sum", 0) + record.payload["n"])
        passed.append(record)
    return passed


@processor(state=True, defers=True, batch=True)
def generated(batch: Batch, state: State) -> Any:
    return iter(batched.function(batch, state))


@processor(state=True, defers=True, batch=True)
def batched_whole(batch: Batch, state: State) -> list[Record | Defer]:
    """Defers all of a batch that is not the first, and what is behind a multiple of ten."""
    if not state.first:
        raise Defer
    return batched.function(batch, state)


class Written(sdk.Processor[sdk.Options]):
    stateful = True
    defers = True

    def process(self, record: Record) -> Record:
        if record.payload["n"] % 10 == 0 and not self.state.first:
            raise Defer
        self.state.put("sum", self.state.get("sum", 0) + record.payload["n"])
        return record


WAYS: dict[str, Any] = {
    "async": asynchronous,
    "batch": batched,
    "class": Written(),
    "returned": returned,
    "generated": generated,
    "raised for the batch": batched_whole,
}


class TestSeveralSources:
    @pytest.mark.parametrize("home", [True, False])
    async def test_sources_that_join_before_it(self, home: bool, autojump_clock: MockClock) -> None:
        @processor(state=True, defers=True)
        def taking_turns(record: Record, state: State) -> Record:
            """A transaction never has records of two sources."""
            source = record.payload["n"] // 1000
            if not state.first and state.get("source") != source:
                raise Defer
            state.put("source", source)
            state.put(f"seen{source}", [*state.get(f"seen{source}", []), record.payload["n"]])
            return record

        storage, store = FakeStorage(), MemoryStore()
        sources = [
            Source(f"s{at}", memory.Source(records=numbers(30, 1000 * at)), batch_size=4 + at, processors=[passing])
            for at in range(3)
        ]
        kind = FakeTransactionalDestination if home else FakeStagedDestination
        declared = pipeline(kind(storage=storage), sources=sources, processors=[taking_turns])
        outcome = await run_to_end(declared, store)

        assert outcome.status is Status.COMPLETED
        for at in range(3):
            mine = [n for n in storage.visible if n // 1000 == at]
            assert mine == list(range(1000 * at, 1000 * at + 30))
            assert (await read_kept(store, "taking_turns"))[f"seen{at}"] == mine
        ends = [0, *storage.history]
        shown = [storage.visible[start:stop] for start, stop in itertools.pairwise(ends)]
        assert all(len({n // 1000 for n in each}) == 1 for each in shown)

    async def test_a_processor_of_their_own_that_defers(self, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        sources = [
            Source(f"s{at}", memory.Source(records=numbers(35, 1000 * at)), batch_size=3 + at, processors=[by_tens])
            for at in range(3)
        ]
        outcome = await run_to_end(
            pipeline(FakeStagedDestination(storage=storage), sources=sources, processors=[summed]), store
        )

        assert outcome.status is Status.COMPLETED
        for at in range(3):
            mine = list(range(1000 * at, 1000 * at + 35))
            assert [n for n in storage.visible if n // 1000 == at] == mine
            assert (await read_kept(store, f"s{at}:by_tens"))["seen"] == mine
        assert (await read_kept(store, "summed"))["sum"] == sum(storage.visible)

    async def test_a_source_that_does_not_come_past_it_is_not_held_up(self, autojump_clock: MockClock) -> None:
        one, other, store = FakeStorage(), FakeStorage(), MemoryStore()
        declared = Pipeline(
            "p",
            sources=[
                Source("s", memory.Source(records=numbers(35))),
                Source("t", memory.Source(records=numbers(20, 100)), batch_size=3),
            ],
            processors=[
                Processor("by_tens", by_tens, after="s"),
                Processor("summed", summed, after="t"),
            ],
            destinations=[
                Destination("d", FakeTransactionalDestination(storage=one), after="by_tens"),
                Destination("e", FakeStagedDestination(storage=other), after="summed"),
            ],
            delivery="exactly_once",
        )
        outcome = await run_to_end(declared, store)

        assert outcome.status is Status.COMPLETED
        assert (one.visible, other.visible) == (list(range(35)), list(range(100, 120)))
        assert (await read_kept(store, "summed"))["sum"] == sum(range(100, 120))
