"""GZ-T8, and the part of GZ-T11 about it: a processor that defers a record to the next transaction.

The invariant: a commit has everything before the deferred record and nothing behind it, whoever brought it; so no
record is lost, doubled or out of order, whatever happens while one is held, and the state has seen them in order.
"""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import memory
from trio.testing import MockClock

from conduit_py import (
    Batch,
    DeadLetters,
    Defer,
    Destination,
    Pipeline,
    PipelineInvalid,
    Processor,
    Record,
    Retry,
    Source,
    State,
    TransactionLimits,
    processor,
    sdk,
)
from conduit_py.errors import RecordRefused
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import DefinitionDiff, diff_definitions
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)
from conduit_py.testing.simulation import simulated
from tests.delivery.upstream import Upstream, VirtualSource, committed, offset


def numbers(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, first + count)]


@processor(state=True, defers=True)
def by_tens(record: Record, state: State) -> Record:
    """Has every multiple of ten begin a transaction, and remembers what it has seen, in order."""
    state.put("tried", state.get("tried", 0) + 1)
    record.metadata["tries"] = record.metadata.get("tries", "") + "x"
    if record.payload["n"] % 10 == 0 and not state.first:
        raise Defer
    state.put("seen", [*state.get("seen", []), record.payload["n"]])
    return record


def pipeline(
    *destinations: sdk.DestinationConnector[Any], sources: Any = None, processors: Any = (), **more: Any
) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=numbers(35)))] if sources is None else sources,
        processors=processors or [by_tens],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(destinations)],
        delivery="exactly_once",
        **more,
    )


async def kept(store: MemoryStore, node: str = "by_tens") -> dict[str, Any]:
    """The state of a processor, by what is durable of it."""
    state = State()
    claim = await store.claim("p")
    values = {key.decode().split("\0")[1]: value for key, value in await claim.scan() if key.startswith(node.encode())}
    state.load(values, claim.seen)
    return dict(state.scan())


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
        assert await committed(store) == 2
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
        assert await kept(store) == {"seen": list(range(35)), "tried": 35}

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
        assert (await kept(store))["seen"] == list(range(35))

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
        assert (await kept(store, "p"))["sum"] == sum(range(35))

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
        assert (await kept(store, "doubled"))["count"] == len(passed)
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
    return batched.function(batch, state)  # type: ignore[no-any-return]


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
            assert (await kept(store, "taking_turns"))[f"seen{at}"] == mine
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
            assert (await kept(store, f"s{at}:by_tens"))["seen"] == mine
        assert (await kept(store, "summed"))["sum"] == sum(storage.visible)

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
        assert (await kept(store, "summed"))["sum"] == sum(range(100, 120))


@processor
async def passing(record: Record) -> Record:
    await trio.sleep(0.001)
    return record


@processor(state=True)
def summed(record: Record, state: State) -> Record:
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    return record


class SlowVault(FakeStagedDestination):
    """Takes 2 s to stage, and so does a transaction."""

    async def stage(self) -> bytes | None:
        await trio.sleep(2)
        return await super().stage()


class TestHowItEnds:
    async def test_a_graceful_stop_while_a_record_is_deferred_commits_all_that_was_read(
        self, autojump_clock: MockClock
    ) -> None:
        storage, store = FakeStorage(), MemoryStore()
        supervisor = Supervisor(pipeline(SlowVault(storage=storage)), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1)
            assert storage.visible == []
            supervisor.stop()

        assert supervisor.state.status in (Status.STOPPED, Status.COMPLETED)
        assert storage.history == [10, 20, 30, 35]
        assert (await kept(store))["seen"] == list(range(35))

    @pytest.mark.parametrize("seconds", [1, 2.5, 4.5, 6.5])
    async def test_a_forceful_stop_while_a_record_is_deferred_leaves_it_to_the_next_run(
        self, seconds: float, autojump_clock: MockClock
    ) -> None:
        storage, store = FakeStorage(), MemoryStore()
        supervisor = Supervisor(pipeline(SlowVault(storage=storage)), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(seconds)
            supervisor.force()
        assert storage.visible == list(range(10 * int(seconds / 2)))
        await run_to_end(pipeline(FakeStagedDestination(storage=storage)), store)

        assert storage.visible == list(range(35))
        assert (await kept(store))["seen"] == list(range(35))

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
        assert (await kept(store))["seen"] == list(range(35))

    async def test_a_poison_record_behind_a_deferred_one_is_found_alone(self, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=storage, breaks={23})), store)

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert "ValueError: the storage breaks at 23" in outcome.error.message
        assert storage.visible == list(range(23))
        await run_to_end(pipeline(FakeStagedDestination(storage=storage)), store)
        assert (await kept(store))["seen"] == list(range(35))

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
        assert sorted((await kept(store, "choosy"))["seen"]) == list(range(50))
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
            SlowVault(storage=staged),
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
    state = await kept(store, "sometimes")
    for name, count in sources.items():
        first = 1000 * int(name[1:])
        expected = [n for n in range(first, first + count) if n % 11 != 5]
        assert [n for n in home.visible if n in expected] == [n for n in staged.visible if n in expected] == expected
        assert state.get(f"seen{name[1:]}", []) == expected
    assert (await kept(store, "summed")).get("sum", 0) == sum(home.visible)


class TestWhereItIsRefused:
    async def test_gz_t11_to_defer_the_first_record_of_a_transaction_is_an_error(
        self, autojump_clock: MockClock
    ) -> None:
        @processor(state=True, defers=True)
        def for_ever(record: Record, state: State) -> Record:
            if record.payload["n"] == 10:
                raise Defer
            return record

        storage, store = FakeStorage(), MemoryStore()
        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=storage), processors=[for_ever]), store)

        assert (outcome.status, outcome.error and outcome.error.node) == (Status.DEGRADED, "for_ever")
        assert outcome.error is not None
        assert "the first record of a transaction was deferred" in outcome.error.message
        assert outcome.error.suggestion == "raise Defer only if state.first is false"
        # It is looked for as any record is that fails its transaction: what comes before it is committed.
        assert storage.visible == list(range(10))

    @pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
    async def test_a_processor_that_is_not_declared_to(self, delivery: Any, autojump_clock: MockClock) -> None:
        @processor
        def undeclared(record: Record) -> Record:
            raise Defer

        declared = Pipeline(
            "p",
            sources=[Source("s", memory.Source(records=numbers(3)))],
            processors=[undeclared],
            destinations=[Destination("d", FakeStagedDestination(storage=FakeStorage()))],
            dead_letters=DeadLetters("drop"),
            delivery=delivery,
        )
        outcome = await run_to_end(declared)

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert outcome.error.message == "undeclared cannot defer: it raised Defer, but is not declared to"
        assert outcome.progress.dead_letters == 0

    async def test_a_piece_whose_sibling_is_in_the_transaction(self, autojump_clock: MockClock) -> None:
        @processor
        def twice(record: Record) -> list[Record]:
            return [record, Record.of({"n": record.payload["n"] + 100}, position=record.position)]

        @processor(state=True, defers=True)
        def at_pieces(record: Record, state: State) -> Record:
            if record.payload["n"] == 103 and not state.first:
                raise Defer
            return record

        outcome = await run_to_end(
            pipeline(FakeStagedDestination(storage=FakeStorage()), processors=[twice, at_pieces])
        )

        assert outcome.error is not None
        assert outcome.error.message.startswith("at_pieces cannot defer: it deferred a piece of a record")

    async def test_a_batch_with_a_result_behind_one_that_is_deferred(self, autojump_clock: MockClock) -> None:
        @processor(state=True, defers=True, batch=True)
        def holes(batch: Batch, state: State) -> list[Record | Defer]:
            return [Defer() if record.payload["n"] == 3 else record for record in batch]

        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=FakeStorage()), processors=[holes]))

        assert outcome.error is not None
        assert "a record was deferred, but not all behind it" in outcome.error.message

    async def test_a_condition_that_defers(self, autojump_clock: MockClock) -> None:
        def undecided(record: Record) -> bool:
            raise Defer

        outcome = await run_to_end(
            pipeline(
                FakeStagedDestination(storage=FakeStorage()), processors=[Processor("by_tens", by_tens, when=undecided)]
            )
        )

        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("processor.cannot_defer", "a condition raised Defer")

    @pytest.mark.parametrize("missing", [1, -1])
    async def test_a_batch_with_too_many_or_too_few_results(self, missing: int, autojump_clock: MockClock) -> None:
        @processor(state=True, defers=True, batch=True)
        def careless(batch: Batch, state: State) -> list[Record | Defer]:
            results: list[Record | Defer] = [batch[0], *([Defer()] * len(batch))]
            return results[: len(batch) - missing]

        source = Source("s", memory.Source(records=numbers(35)), batch_size=35)
        declared = pipeline(FakeStagedDestination(storage=FakeStorage()), sources=[source], processors=[careless])
        outcome = await run_to_end(declared)

        assert outcome.error is not None
        assert outcome.error.code == "contract.broken"

    def test_at_validation(self) -> None:
        @processor(defers=True)
        def stateless(record: Record) -> Record:
            return record

        assert _problems(processors=[stateless]) == {"processors.stateless": "write state=True too"}
        assert _problems(processors=[Processor("late", by_tens, retry=Retry(attempts=2))]) == {
            "processors.late": "remove the retry; a transaction that fails is tried again as a whole"
        }
        assert _problems(processors=[summed, by_tens]) == {
            "processors.by_tens": "let by_tens come before summed, or do the work of both in one processor"
        }
        assert _problems(delivery="at_least_once") == {"processors.by_tens": 'take delivery="exactly_once"'}

    def test_one_that_begins_to_defer_needs_a_new_run(self) -> None:
        def graph(defers: bool) -> Graph:
            @processor(state=True, defers=defers, name="p")
            def same(record: Record, state: State) -> Record:
                return record

            return compile_pipeline(pipeline(FakeStagedDestination(storage=storage), processors=[same]))

        storage = FakeStorage()
        assert diff_definitions(graph(defers=False), graph(defers=True)) == DefinitionDiff(
            restart_reason="whether p defers"
        )

    def test_behind_a_fan_out(self) -> None:
        declared = Pipeline(
            "p",
            sources=[Source("s", memory.Source(records=[]))],
            destinations=[
                Destination("d", FakeStagedDestination(storage=FakeStorage()), processors=[by_tens]),
                Destination("e", FakeStagedDestination(storage=FakeStorage())),
            ],
            delivery="exactly_once",
        )
        with pytest.raises(PipelineInvalid) as invalid:
            compile_pipeline(declared)

        [problem] = invalid.value.problems
        assert (problem.path, problem.suggestion) == ("processors.d:by_tens", "let it come before the branches part")


def _problems(**changed: Any) -> dict[str, str | None]:
    given: dict[str, Any] = dict(processors=[by_tens], delivery="exactly_once") | changed
    declared = Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=[]))],
        destinations=[Destination("d", FakeStagedDestination(storage=FakeStorage()))],
        **given,
    )
    with pytest.raises(PipelineInvalid) as invalid:
        compile_pipeline(declared)
    return {problem.path: problem.suggestion for problem in invalid.value.problems}
