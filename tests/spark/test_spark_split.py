"""Where a pipeline is split between executors and the driver, and that the halves together do what the whole does.

No Spark is needed: the half of the executors runs here, part by part, as a task would run it.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import trio
from conduit_connectors import memory
from drawn_pipelines import RECORDS, Draw, Kept, counting, numbered, plain, whole_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source
from conduit_py.batch import Batch, Span
from conduit_py.graph.compile import DEAD_LETTERS, compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.spark.engine.split import PipelineSplit
from conduit_py.spark.engine.task import TaskInput, carry_records, run_task
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore


def pipeline(
    processors: Sequence[Any] = (), sources: dict[str, Sequence[Any]] | None = None, **destinations: Any
) -> Pipeline:
    """A pipeline between lists, whose destinations are given as keyword arguments for them."""
    return Pipeline(
        "p",
        sources=[
            Source(id, memory.Source(records=[]), processors=list(own)) for id, own in (sources or {"in": ()}).items()
        ],
        processors=list(processors),
        destinations=[
            Destination(id, Kept(into=[]), **more) for id, more in (destinations or {"out": dict[str, Any]()}).items()
        ],
        dead_letters=DeadLetters(Kept(into=[])),
        delivery="exactly_once",
    )


def split(whole: Pipeline) -> PipelineSplit:
    return PipelineSplit(compile_pipeline(whole))


class TestWhere:
    def test_without_state_all_processors_are_on_executors_and_destinations_are_the_boundaries(self) -> None:
        made = split(pipeline([plain, Processor("b", plain)], one={"after": "in"}, two={"processors": [plain]}))

        assert (made.executors, made.driver) == (["plain", "b", "two:plain"], [])
        assert made.boundaries == [("one", ["in"]), ("two", ["in"])]

    def test_a_processor_with_state_and_all_behind_it_are_on_the_driver(self) -> None:
        made = split(pipeline([Processor("before", plain), counting, Processor("behind", plain)]))

        assert (made.executors, made.driver) == (["before"], ["counting", "behind"])
        assert made.boundaries == [("counting", ["in"])]

    def test_a_branch_without_state_stays_on_executors(self) -> None:
        made = split(
            pipeline(
                [Processor("shared", plain), Processor("stateful", counting), Processor("free", plain, after="shared")],
                counted={"after": "stateful"},
                rest={"after": "free"},
            )
        )

        assert (made.executors, made.driver) == (["shared", "free"], ["stateful"])
        assert made.boundaries == [("rest", ["in"]), ("stateful", ["in"])]

    def test_a_processor_of_a_source_cuts_the_line_behind_it_for_all_sources(self) -> None:
        made = split(pipeline([plain], sources={"a": [Processor("x", plain), counting], "b": [Processor("y", plain)]}))

        assert (made.executors, made.driver) == (["a:x", "b:y"], ["a:counting", "plain"])
        assert made.boundaries == [("a:counting", ["a"]), ("plain", ["b"])]

    def test_a_processor_of_a_destination_cuts_its_chain_alone(self) -> None:
        made = split(pipeline([plain], one={}, two={"processors": [Processor("x", plain), counting]}))

        assert (made.executors, made.driver) == (["plain", "two:x"], ["two:counting"])
        assert made.boundaries == [("one", ["in"]), ("two:counting", ["in"])]

    def test_a_destination_may_be_given_records_from_both_sides(self) -> None:
        made = split(pipeline(sources={"a": [counting], "b": []}))

        assert made.boundaries == [("out", ["b"]), ("a:counting", ["a"])]
        assert made.executor_pipeline().destinations[0].when is None


class TestTheHalves:
    def test_nodes_keep_their_ids_and_settings_and_each_is_in_one_half(self) -> None:
        def odd(record: Record) -> bool:
            return bool(record.payload["n"] % 2)

        whole = pipeline(
            [plain, Processor("count", counting, when=odd), plain],
            sources={"a": [plain], "b": []},
            out={"when": odd},
            own={"processors": [plain], "when": odd},
            early={"after": "plain", "when": odd},
        )
        made = split(whole)
        executed = compile_pipeline(made.executor_pipeline())
        driven = compile_pipeline(made.driver_pipeline(lambda source: source.connector))

        ours = {id for id in compile_pipeline(whole).nodes if id not in ("a", "b")}
        assert [id for id in executed.nodes if id not in ("a", "b")] == ["a:plain", "plain", "early", "count"]
        assert [id for id in driven.nodes if id in ours] == [
            "count", "plain-2", "own:when", "own:plain", "out", "own", "early",
        ]  # fmt: skip
        assert [each.when for each in made.executor_pipeline().destinations] == [odd, None]
        read, replayed = (Batch.whole(Span("p", source, 0, [b"0"]), [Record()]) for source in ("a", DEAD_LETTERS))
        adapters = {each.id: each.write_adapter for each in driven.pipeline.destinations}
        asked = {id: [each.asks_when(read), each.asks_when(replayed)] for id, each in adapters.items() if each}
        assert asked == {"early": [False, True], "out": [True, True], "own": [True, True]}
        # One with processors asks before them, and not again.
        assert [each.when for each in driven.pipeline.destinations] == [odd, None, odd]
        count = driven.nodes["count"].declared
        assert isinstance(count, Processor)
        assert count.when is odd

    def test_the_whole_is_left_as_it_was(self) -> None:
        whole = pipeline([plain, counting], sources={"a": [plain]})
        before = [vars(each).copy() for each in (*whole.sources, *whole.processors, *whole.destinations)]
        made = split(whole)
        made.executor_pipeline()
        made.driver_pipeline(lambda source: source.connector)

        assert [vars(each) for each in (*whole.sources, *whole.processors, *whole.destinations)] == before

    def test_ids_that_are_taken_are_left_to_the_user(self) -> None:
        whole = pipeline([Processor("boundary-0", counting)], sources={"a": [Processor("executors", counting)]})

        driven = compile_pipeline(split(whole).driver_pipeline(lambda source: source.connector))

        assert list(driven.nodes) == [
            "a",
            "a:executors-",
            "a:executors--letters",
            "boundary---0",
            "a:executors",
            "boundary-0",
            "out",
        ]


class Outcome(NamedTuple):
    """What a pipeline left behind."""

    written: dict[str, dict[str, list[Any]]]
    """By destination and source: in between the records of different sources any order is right."""
    refusals: list[tuple[str, ...]]
    """Each by itself: what is refused on both sides has a letter from each, where the whole has one for both."""
    states: dict[bytes, bytes]
    positions: dict[str, bytes]


async def run(pipeline: Pipeline, store: MemoryStore) -> Outcome:
    state = await Supervisor(pipeline, store).run()
    assert state.status is Status.COMPLETED, state.error
    claim = await store.claim("p")
    written: dict[str, dict[str, list[Any]]] = {}
    for destination in pipeline.destinations:
        by_source = written.setdefault(destination.id, {})
        for payload in destination.connector.options.into:
            by_source.setdefault(payload["source"], []).append(payload)
    handler = pipeline.dead_letters.policy.connector
    assert isinstance(handler, Kept)
    refusals = [
        (letter["source"], letter["position"], failure["node"], failure["error"])
        for letter in handler.options.into
        for failure in letter["failures"]
    ]
    return Outcome(written, sorted(refusals), dict(await claim.scan()), await store.positions("p"))


async def run_in_halves(whole: Pipeline, records: dict[str, list[Any]], part_size: int, store: MemoryStore) -> Outcome:
    made = PipelineSplit(compile_pipeline(whole))
    # The driver reads, as it does where a source cannot be split.
    executed = made.executor_pipeline(source=lambda _: None)
    outcomes: dict[str, list[Record]] = {source.id: [] for source in whole.sources}
    for id, mine in outcomes.items():
        read = [Record.of(payload, position=b"memory:1:%d" % at) for at, payload in enumerate(records[id])]
        for start in range(0, len(read), part_size):
            part = TaskInput(id, carried=carry_records(read[start : start + part_size], {}))
            done = await run_task(executed, part)
            assert done.error is None
            mine += [Record.of(each) for each in done.outcomes]
    return await run(made.driver_pipeline(lambda source: memory.Source(records=outcomes[source.id])), store)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(1, RECORDS))
def test_the_halves_of_any_pipeline_do_together_what_it_does(seed: int, sources: int, part_size: int) -> None:
    records = {id: numbered(id) for id in ("a", "b")[:sources]}
    one, other = (whole_of(Draw(random.Random(seed)), records) for _ in range(2))

    whole = trio.run(run, one, MemoryStore(), clock=MockClock(autojump_threshold=0))
    halves = trio.run(run_in_halves, other, records, part_size, MemoryStore(), clock=MockClock(autojump_threshold=0))

    assert halves == whole


async def test_state_and_positions_go_on_from_one_engine_to_the_other(autojump_clock: MockClock) -> None:
    records = {"a": numbered("a")}
    store = MemoryStore()
    whole = pipeline([Processor("count", counting)], sources={"a": [plain]})
    whole.sources[0].connector = memory.Source(records=records["a"][:5])

    first = await run(whole, store)
    both = await run_in_halves(whole, records, 4, store)

    assert [payload["counts"] for payload in first.written["out"]["a"]] == [[n] for n in range(1, 6)]
    assert [(payload["n"], payload["counts"]) for payload in both.written["out"]["a"]] == [
        (n, [n + 1]) for n in range(RECORDS)
    ]
