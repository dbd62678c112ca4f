"""The short forms of a pipeline: mappings of connectors, and dead letters by the name of what becomes of them."""

from datetime import timedelta
from typing import Any

import pytest
from conduit_connectors import file, memory

import conduit_py
from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, PipelineInvalid, Retention, Source
from conduit_py.dead_letter_policy import DestinationPolicy, DropPolicy, FunctionPolicy, KeepPolicy, StopPolicy
from conduit_py.graph.compile import compile_pipeline


def test_mappings_are_ids_and_connectors() -> None:
    into: list[Any] = []
    pipeline = Pipeline(
        "p",
        sources={"in": memory.Source(records=[{"n": 1}])},
        destinations={"a": memory.Destination(into=into), "b": memory.Destination(into=into)},
    )

    assert [source.id for source in pipeline.sources] == ["in"]
    assert [destination.id for destination in pipeline.destinations] == ["a", "b"]
    assert conduit_py.run(pipeline).counts.read == 1
    assert len(into) == 2


def test_a_problem_in_a_mapping_is_found_where_it_is_written() -> None:
    pipeline = Pipeline(
        "p",
        sources={"web": file.Source(pth="x")},  # type: ignore[call-arg,unused-ignore]
        destinations={"lake": "nothing"},  # type: ignore[dict-item]
    )

    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(pipeline)
    found = {problem.path: problem for problem in raised.value.problems}
    assert {"sources.web.pth", "sources.web.path", "destinations.lake.connector"} <= found.keys()
    assert found["sources.web.pth"].file == __file__


def test_a_node_in_a_mapping_would_have_two_ids() -> None:
    source: Any = Source("other", memory.Source(records=[]))
    pipeline = Pipeline("p", sources={"web": source}, destinations=[Destination("out", memory.Destination(into=[]))])

    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(pipeline)
    (problem,) = raised.value.problems
    assert problem.path == "sources.web"
    assert problem.message == "is a Source with an id of its own; here the key is the id"


def test_dead_letters_by_name() -> None:
    retention = Retention(age=timedelta(days=1))
    connector = memory.Destination(into=[])

    def call(letter: DeadLetter) -> None: ...

    assert DeadLetters.stop().policy == StopPolicy()
    assert DeadLetters.drop().policy == DropPolicy()
    assert DeadLetters.keep(retention=retention).policy == KeepPolicy(retention)
    assert DeadLetters.to(connector).policy == DestinationPolicy(connector)
    assert DeadLetters.call(call).policy == FunctionPolicy(call)
    assert DeadLetters.drop(window_size=10, window_nack_threshold=2).settings.window_nack_threshold == 2
    assert DeadLetters.keep().problems == []


def test_problems_of_dead_letters_are_found_where_they_are_written() -> None:
    problem = DeadLetters.keep(window_nack_threshold=1).problems[0]

    assert (problem.file, problem.message) == (__file__, "Value error, window_nack_threshold needs a window_size")
