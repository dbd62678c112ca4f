"""What a step is by its shape, which messages it sees, and what graphs of steps look like."""

import networkx as nx
import pytest

from conduit_py.steps.graph import graph_of_shape, inward, isomorphic, outward, topology
from conduit_py.steps.step import Message, Step, StepKind, filter_messages, problems_of


def handler(process: object, messages: dict[str, Message]) -> None:
    raise AssertionError("no shape needs its handler called")


CU_01 = [
    ({}, StepKind.SOURCE),
    ({"inputs": {"in": "q1"}}, StepKind.SINK),
    ({"alts": {"a": "q1", "b": "q2"}}, StepKind.SINK),
    ({"inputs": {"in": "q1"}, "outputs": {"out": "q2"}}, StepKind.JOIN),
    ({"alts": {"a": "q1", "b": "q2"}, "outputs": {"out": "q3"}}, StepKind.JOIN),
    ({"inputs": {"in": "q1"}, "outputs": {"x": "q2", "y": "q3"}}, StepKind.JOIN_FORK),
    ({"inputs": {"in": "q1"}, "tailers": {"t": "q2"}}, StepKind.IMPERATIVE),
    ({"inputs": {"in": "q1"}, "appenders": {"a": "q2"}}, StepKind.IMPERATIVE),
    ({"alts": {"a": "q1", "b": "q2"}, "outputs": {"out": "q3"}, "appenders": {"x": "q4"}}, StepKind.IMPERATIVE),
]


@pytest.mark.parametrize(("shape", "kind"), CU_01)
def test_cu_01_the_shape_alone_decides_the_kind(shape: dict[str, dict[str, str]], kind: StepKind) -> None:
    step = Step(id="p", handler=handler if shape else None, **shape)  # type: ignore[arg-type]

    assert step.kind is kind
    assert problems_of([step]) == []


def test_every_problem_of_a_graph_is_reported_at_once() -> None:
    steps = [
        Step(id="p", handler=handler, inputs={"a": "q1"}, alts={"b": "q2"}),
        Step(id="p", inputs={"a": "q1", "b": "q1"}),
        Step(id="no spaces", handler=handler),
        Step(id="raw", handler=handler, appenders={"x": "q1"}),
    ]

    assert [(problem.path, problem.message) for problem in problems_of(steps, errors="bad/path")] == [
        ("steps[0].alts", "cannot be given together with inputs"),
        ("steps[1].id", "another step has the id 'p'"),
        ("steps[1].inputs", "binds two names to one queue"),
        ("steps[1].handler", "is missing"),
        ("steps[2].id", "'no spaces' cannot name a step or a queue"),
        ("steps[2].id", "'no spaces' cannot name a step or a queue"),
        ("steps[2].inputs", "are missing: only a source has none, and a source has no handler"),
        ("steps[3].inputs", "are missing: nothing would ever call the handler"),
        ("errors", "'bad/path' cannot name a queue"),
    ]


CU_11 = [(["t2"], ["q1"]), (["t1"], ["q2"]), (["t1", "t2"], ["q1", "q2"]), (["other"], [])]


@pytest.mark.parametrize(("topics", "names"), CU_11)
def test_cu_11_topics_choose_among_the_messages_of_a_join(topics: list[str], names: list[str]) -> None:
    step = Step(id="p", handler=handler, inputs={"q1": "q1", "q2": "q2"}, topics=topics, types=["never"])
    messages: dict[str, Message] = {"q1": {"topics": {"t2": {"x": 1}}}, "q2": {"topics": {"t1": True}}}

    assert list(filter_messages(step, messages)) == names


UNWANTED: list[Message] = [
    {},
    {"topics": None},
    {"topics": {}},
    {"topics": {"t1": False}},
    {"topics": {"t2": True}},
    {"topics": "t1"},
]


@pytest.mark.parametrize("message", UNWANTED)
def test_cu_12_a_message_without_the_topic_is_not_seen(message: Message) -> None:
    step = Step(id="p", handler=handler, inputs={"in": "q1"}, topics=["t1"])

    assert filter_messages(step, {"in": message}) == {}
    assert filter_messages(step, {"in": message | {"topics": {"t1": 1}}}) == {"in": message | {"topics": {"t1": 1}}}


def test_types_choose_by_the_type_of_the_message() -> None:
    step = Step(id="p", handler=handler, inputs={"in": "q1"}, types=["doc"])

    assert filter_messages(step, {"a": {"type": "doc"}, "b": {"type": "other"}, "c": {}}) == {"a": {"type": "doc"}}


CU_23 = [
    (None, set(), set()),
    ("a", {"a"}, set()),
    (["a", "b", "c"], {"a", "b", "c"}, {("a", "b"), ("b", "c")}),
    ({"a", "b"}, {"a", "b"}, set()),
    ([{"a", "b"}, "c"], {"a", "b", "c"}, {("a", "c"), ("b", "c")}),
    (["a", None, "b"], {"a", "b"}, {("a", "b")}),
    ({"a": {"b", "c"}}, {"a", "b", "c"}, {("a", "b"), ("a", "c")}),
    (["a", {("b", "c"), "d"}, "e"], set("abcde"), {("a", "b"), ("b", "c"), ("a", "d"), ("c", "e"), ("d", "e")}),
]


@pytest.mark.parametrize(("shape", "nodes", "edges"), CU_23)
def test_cu_23_lists_are_pipelines_sets_are_parallel_maps_are_edges(
    shape: object, nodes: set[str], edges: set[tuple[str, str]]
) -> None:
    digraph = graph_of_shape(shape)

    assert set(digraph.nodes) == nodes
    assert set(digraph.edges) == edges


def test_cu_23_the_nodes_that_nothing_feeds_and_that_feed_nothing() -> None:
    digraph = graph_of_shape([{"a", "b"}, "c", {"d", "e"}])

    assert inward(digraph) == {"a", "b"}
    assert outward(digraph) == {"d", "e"}


def test_the_topology_leaves_the_queues_out() -> None:
    steps = [
        Step(id="s1"),
        Step(id="inc", handler=handler, inputs={"in": "s1"}, outputs={"out": "q1"}),
        Step(id="show", handler=handler, inputs={"in": "q1"}),
    ]
    renamed = [*steps[:1], *(_renamed(step) for step in steps[1:])]

    assert set(topology(steps).edges) == set(graph_of_shape(["s1", "inc", "show"]).edges)
    assert isomorphic(steps, renamed)
    assert not isomorphic(steps, steps[:2])
    assert nx.is_directed_acyclic_graph(topology(steps))


def _renamed(step: Step) -> Step:
    other = {"q1": "elsewhere"}
    inputs = {name: other.get(queue, queue) for name, queue in step.inputs.items()}
    outputs = {name: other.get(queue, queue) for name, queue in step.outputs.items()}
    return Step(id=step.id, handler=handler, inputs=inputs, outputs=outputs)
