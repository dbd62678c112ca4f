"""Where deferring is refused: by the runtime, and when the pipeline is checked."""

from typing import Any

import pytest
from conduit_connectors import memory
from deferring_pipelines import by_tens, numbers, pipeline, summed
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
    processor,
)
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import DefinitionDiff, diff_definitions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeStagedDestination,
    FakeStorage,
)


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
        assert outcome.error.message == "undeclared cannot defer: it raised Defer, but does not declare defers=True"
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
        assert outcome.error.message.startswith("at_pieces cannot defer: it deferred a later piece of a split record")

    async def test_a_batch_with_a_result_behind_one_that_is_deferred(self, autojump_clock: MockClock) -> None:
        @processor(state=True, defers=True, batch=True)
        def holes(batch: Batch, state: State) -> list[Record | Defer]:
            return [Defer() if record.payload["n"] == 3 else record for record in batch]

        outcome = await run_to_end(pipeline(FakeStagedDestination(storage=FakeStorage()), processors=[holes]))

        assert outcome.error is not None
        assert "a record was deferred, but not all records behind it" in outcome.error.message

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
            "processors.late": "remove the retry; a transaction that fails is retried as a whole"
        }
        assert _problems(processors=[summed, by_tens]) == {
            "processors.by_tens": "put by_tens before summed, or do the work of both in one processor"
        }
        assert _problems(delivery="at_least_once") == {"processors.by_tens": 'use delivery="exactly_once"'}

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
        assert (problem.path, problem.suggestion) == ("processors.d:by_tens", "put it before the branches split")


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
