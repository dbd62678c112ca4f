"""From a pipeline to its graph: the edges that lists and `after` imply, and every problem named, all at once."""

from typing import Any

import pytest
from conduit_connectors import clock
from conduit_processors import field
from hypothesis import given
from hypothesis import strategies as st

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    RateLimit,
    Record,
    Retry,
    Source,
    Spark,
    State,
    processor,
)
from conduit_py.errors import PipelineInvalid
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.testing import ScriptedDestination, ScriptedSource


def same(record: Any) -> Any:
    return record


def source(id: str, *processors: Any, **settings: Any) -> Source:
    return Source(id, ScriptedSource(), processors=processors, **settings)


def sink(id: str, *processors: Any, **settings: Any) -> Destination:
    return Destination(id, ScriptedDestination(), processors=processors, **settings)


def step(id: str, **settings: Any) -> Processor:
    return Processor(id, same, **settings)


def pipeline(sources: Any = None, processors: Any = (), destinations: Any = None, **settings: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[source("a")] if sources is None else sources,
        processors=processors,
        destinations=[sink("x")] if destinations is None else destinations,
        **settings,
    )


def edges(graph: Graph) -> set[tuple[str, str]]:
    assert {(upper, node.id) for node in graph.nodes.values() for upper in node.inputs} == set(graph.digraph.edges)
    assert {(node.id, lower) for node in graph.nodes.values() for lower in node.outputs} == set(graph.digraph.edges)
    return set(graph.digraph.edges)


def problems_of(written: Pipeline) -> list[tuple[str, str]]:
    with pytest.raises(PipelineInvalid) as invalid:
        compile_pipeline(written)
    for problem in invalid.value.problems:
        assert problem.file == __file__
        assert problem.line
    return [(problem.path, problem.message) for problem in invalid.value.problems]


class TestEdges:
    """Without `after` the lists are the graph; with it any DAG can be said."""

    def test_the_lists_alone(self) -> None:
        graph = compile_pipeline(
            pipeline(
                [source("a", step("s1"), step("s2")), source("b")],
                [step("one"), step("two")],
                [sink("x", step("d1"), step("d2")), sink("y")],
            )
        )

        assert edges(graph) == {
            ("a", "a:s1"),
            ("a:s1", "a:s2"),
            ("a:s2", "one"),
            ("b", "one"),
            ("one", "two"),
            ("two", "x:d1"),
            ("x:d1", "x:d2"),
            ("x:d2", "x"),
            ("two", "y"),
        }
        assert [node.id for node in graph.sources] == ["a", "b"]
        assert [node.id for node in graph.destinations] == ["x", "y"]

    def test_without_processors_every_source_feeds_every_destination(self) -> None:
        graph = compile_pipeline(pipeline([source("a"), source("b")], [], [sink("x"), sink("y")]))

        assert edges(graph) == {(upper, lower) for upper in "ab" for lower in "xy"}

    def test_after_takes_the_place_of_the_order(self) -> None:
        graph = compile_pipeline(
            pipeline(
                [source("a", step("s")), source("b")],
                [step("left", after="a"), step("right", after="b"), step("next")],
                [sink("x", after=["left", "next"]), sink("y", step("d"), after="b")],
            )
        )

        assert edges(graph) == {
            ("a", "a:s"),
            ("a:s", "left"),
            ("b", "right"),
            ("right", "next"),
            ("left", "x"),
            ("next", "x"),
            ("b", "y:d"),
            ("y:d", "y"),
        }

    def test_the_same_node_twice_in_after_is_one_edge(self) -> None:
        graph = compile_pipeline(pipeline(destinations=[sink("x", after=["a", "a"])]))

        assert edges(graph) == {("a", "x")}

    def test_bare_functions_are_named_after_themselves_and_numbered(self) -> None:
        graph = compile_pipeline(pipeline(processors=[same, same, lambda record: record, same]))

        assert list(graph.nodes) == ["a", "same", "same-2", "lambda", "same-3", "x"]

    def test_nodes_are_in_topological_order_whatever_the_order_they_are_written_in(self) -> None:
        graph = compile_pipeline(
            pipeline(
                processors=[step("late", after="early"), step("early", after="a")],
                destinations=[sink("x", after="late")],
            )
        )

        assert list(graph.nodes) == ["a", "early", "late", "x"]

    def test_votes_are_those_of_the_destinations_that_can_be_reached(self) -> None:
        graph = compile_pipeline(
            pipeline(
                [source("a"), source("b")],
                [step("left", after="a"), step("right", after=["a", "b"])],
                [sink("x", after="left"), sink("y", after="right"), sink("z", after="b")],
            )
        )

        names = [node.id for node in graph.destinations]
        reached = {id: {n for bit, n in enumerate(names) if graph.votes(id) >> bit & 1} for id in graph.nodes}
        assert reached == {
            "a": {"x", "y"},
            "b": {"y", "z"},
            "left": {"x"},
            "right": {"y"},
            "x": {"x"},
            "y": {"y"},
            "z": {"z"},
        }


class TestProblems:
    """Each is named, with its place in the user's file."""

    def test_no_source_and_no_destination(self) -> None:
        assert problems_of(pipeline([], [], [])) == [
            ("sources", "a pipeline needs at least one source"),
            ("destinations", "a pipeline needs at least one destination"),
        ]

    def test_ids_that_are_taken(self) -> None:
        written = pipeline([source("a"), source("a")], [step("x"), step("a")], [sink("x")])

        assert problems_of(written) == [
            ("a", "the id 'a' is already taken by a source"),
            ("a", "the id 'a' is already taken by a source"),
            ("x", "the id 'x' is already taken by a processor"),
        ]

    def test_an_id_that_the_runtime_uses_itself(self) -> None:
        assert problems_of(pipeline(destinations=[sink("dead-letters")])) == [
            ("dead-letters", "the id 'dead-letters' is already taken by the dead-letter handler"),
        ]

    def test_after_a_node_that_is_not_there(self) -> None:
        written = pipeline([source("orders")], [step("clean", after="ordres")], [sink("x", after=["clean", "nope"])])

        assert problems_of(written) == [
            ("clean.after", "there is no node 'ordres'"),
            ("x.after", "there is no node 'nope'"),
        ]
        with pytest.raises(PipelineInvalid) as invalid:
            compile_pipeline(written)
        assert [problem.suggestion for problem in invalid.value.problems] == [
            "did you mean 'orders'?",
            "nodes are clean, orders",
        ]

    def test_after_nothing(self) -> None:
        assert problems_of(pipeline(destinations=[sink("x", after=[])])) == [
            ("x.after", "names no node, so no record would ever arrive")
        ]

    def test_after_a_destination(self) -> None:
        assert problems_of(pipeline(destinations=[sink("x"), sink("y", after="x")])) == [
            ("y.after", "'x' is a destination, which has no output")
        ]

    def test_after_a_processor_that_belongs_to_a_source_or_destination(self) -> None:
        written = pipeline(
            [source("a", step("clean"))],
            [],
            [sink("x", step("late")), sink("y", after="a:clean"), sink("z", after="x:late")],
        )

        assert problems_of(written) == [
            ("y.after", "'a:clean' belongs to the source 'a' and cannot be joined by others"),
            ("z.after", "'x:late' belongs to the destination 'x' and cannot be joined by others"),
        ]

    def test_after_on_a_processor_of_a_source(self) -> None:
        assert problems_of(pipeline([source("a", step("clean", after="a"))])) == [
            ("a:clean.after", "is for processors of the pipeline, not of 'a'")
        ]

    def test_a_cycle_and_a_loose_end_elsewhere(self) -> None:
        written = pipeline(
            [source("a"), source("lonely")],
            [step("one", after=["a", "three"]), step("two"), step("three"), step("own", after=["a", "own"])],
            [sink("x", after=["two", "own"])],
        )

        assert problems_of(written) == [
            ("processors.one", "the graph has a cycle: one → two → three → one"),
            ("processors.own", "the graph has a cycle: own → own"),
            ("sources.lonely", "its records go nowhere"),
        ]

    def test_loose_ends(self) -> None:
        written = pipeline([source("a"), source("b")], [step("dead", after="b")], [sink("x", after="a")])

        assert problems_of(written) == [("processors.dead", "its records go nowhere")]

    def test_two_paths_to_one_node(self) -> None:
        written = pipeline(
            [source("a"), source("b")],
            [step("left", after="a"), step("right", after=["a", "b"]), step("join", after=["left", "right"])],
            [sink("x")],
        )

        assert problems_of(written) == [("processors.join", "records of 'a' reach it on 2 paths")]

    def test_all_at_once_with_those_of_every_part(self) -> None:
        written = Pipeline(
            "not an id",
            sources=[Source("a", ScriptedSource(bounded="perhaps"), window=0)],
            processors=[Processor("p", 7)],  # type: ignore[arg-type]
            destinations=[
                Destination("x", "no-such-plugin", retry=Retry(attempts=1)),
                Destination("x", ScriptedDestination(nonsense=1), after="nowhere"),
            ],
            dead_letters=DeadLetters("explode", window_nack_threshold=3),  # type: ignore[arg-type]
        )
        with pytest.raises(PipelineInvalid) as invalid:
            compile_pipeline(written)

        paths = [problem.path for problem in invalid.value.problems]
        assert sorted(set(paths)) == [
            "dead_letters",
            "dead_letters.handler",
            "destinations.x.connector",
            "destinations.x.nonsense",
            "id",
            "processors.p.processor",
            "sources.a.bounded",
            "sources.a.window",
            "x",
            "x.after",
        ]
        assert all(str(problem) in str(invalid.value) for problem in invalid.value.problems)

    def test_exactly_once_into_a_destination_that_would_repeat_itself(self) -> None:
        assert problems_of(pipeline(delivery="exactly_once")) == [
            (
                "destinations.x",
                "ScriptedDestination would write records again after a crash, which exactly_once does not allow",
            )
        ]

    def test_at_most_once_with_a_handler_that_keeps_letters(self) -> None:
        written = pipeline(delivery="at_most_once", dead_letters=DeadLetters(ScriptedDestination()))

        assert problems_of(written) == [("dead_letters", "at_most_once drops refused records")]


@given(st.data())
def test_any_graph_that_is_accepted_is_sound(data: st.DataObject) -> None:
    """Every source reaches a destination, by one path each; nodes come after what feeds them."""
    ids = [f"p{number}" for number in range(data.draw(st.integers(0, 4)))]
    known = ["a", "b", *ids]
    several = st.none() | st.lists(st.sampled_from(known), min_size=1, max_size=3)
    written = pipeline(
        [source("a"), source("b")],
        [step(id, after=data.draw(several)) for id in ids],
        [sink(id, after=data.draw(several)) for id in ("x", "y")],
    )
    try:
        graph = compile_pipeline(written)
    except PipelineInvalid:
        return

    order = list(graph.nodes)
    for upper, lower in edges(graph):
        assert order.index(upper) < order.index(lower)
    for start in ("a", "b"):
        paths = {start: 1}
        for id in order:
            if id != start:
                paths[id] = sum(paths.get(upper, 0) for upper in graph.nodes[id].inputs)
        assert max(paths.values()) == 1
        assert any(paths[id] for id in ("x", "y"))
        assert graph.votes(start) == sum(1 << bit for bit, id in enumerate(("x", "y")) if paths[id])


def test_a_condition_that_is_async_would_always_be_true_and_is_refused() -> None:
    async def later(record: Record) -> bool:
        return False

    source = Source("source", ScriptedSource())
    to = Destination("to", ScriptedDestination(), when=later)  # type: ignore[arg-type]
    with pytest.raises(PipelineInvalid) as invalid:
        compile_pipeline(Pipeline("p", sources=[source], destinations=[to]))

    [problem] = invalid.value.problems
    assert problem.path == "destinations.to.when"
    assert "must answer at once" in problem.message


def test_sources_and_destinations_that_make_too_many_pairs_are_refused_before_any_edge() -> None:
    declared = pipeline([source(f"s{n}") for n in range(201)], (), [sink(f"d{n}") for n in range(200)])
    with pytest.raises(PipelineInvalid) as caught:
        compile_pipeline(declared)

    assert [(each.path, each.message) for each in caught.value.problems] == [
        ("destinations", "sources times destinations must be at most 40000")
    ]


def test_limits_that_spark_does_not_hold_are_problems_there_and_only_there() -> None:
    slow = RateLimit(records_per_second=5)
    limited: dict[str, Any] = {
        "sources": [source("a", rate=slow)],
        "destinations": [sink("x", rate=slow, batch_size=10, batch_bytes=1000, batch_seconds=5), sink("y")],
    }
    compile_pipeline(pipeline(**limited))
    with pytest.raises(PipelineInvalid) as refused:
        compile_pipeline(pipeline(**limited, engine=Spark()))

    limits = [each for each in refused.value.problems if "is not kept on Spark" in each.message]
    assert [each.path for each in limits] == [
        "sources.a.rate",
        "destinations.x.rate",
        "destinations.x.batch_size",
        "destinations.x.batch_bytes",
        "destinations.x.batch_seconds",
    ]
    assert all('engine "trio"' in (each.suggestion or "") and each.line for each in limits)


def test_a_processor_that_would_refuse_the_ticks_of_a_clock_is_a_problem() -> None:
    @processor(state=True)
    def count(record: Record, state: State) -> Record:
        return record

    def made(*processors: Any, before: Any = ()) -> Pipeline:
        sources = [source("a", *before), Source("clock", clock.Source())]
        return pipeline(sources, processors, delivery="exactly_once")

    def convert(**settings: Any) -> Processor:
        return Processor("convert", field.Convert(field="a", type="int"), **settings)

    found = [problem for problem in problems_of(made(convert(), count)) if problem[0] == "processors.convert"]
    assert found == [("processors.convert", "gets the ticks of 'clock' too, which are for 'count'")]
    by_hand = made(step("by-hand"), count), made(convert(when=same), count)
    for right in (made(count, before=[convert()]), *by_hand, made(count, convert())):
        assert not [path for path, message in problems_of(right) if "ticks" in message]
