"""Ids: pipelines have up to 128 characters, nodes up to 256, in Python, YAML, the API and the command alike."""

from pathlib import Path

import pytest
from conduit_connectors import file, generator

from conduit_py import Destination, Pipeline, PipelineInvalid, Processor, Record, Source
from conduit_py.config.load import load_file
from conduit_py.graph.compile import compile_pipeline


def same(record: Record) -> Record:
    return record


def pipeline(id: str, *nodes: str) -> Pipeline:
    source, step, to = nodes
    return Pipeline(
        id,
        sources=[Source(source, generator.Source(count=1))],
        processors=[Processor(step, same)],
        destinations=[Destination(to, file.Destination(path="/dev/null"))],
    )


def test_nodes_may_have_longer_ids_than_pipelines() -> None:
    graph = compile_pipeline(pipeline("p" * 128, "a" * 256, "b" * 256, "c" * 256))

    assert list(graph.nodes) == ["a" * 256, "b" * 256, "c" * 256]


@pytest.mark.parametrize(
    ("ids", "path"),
    [
        (("p" * 129, "a", "b", "c"), "id"),
        (("p", "a" * 257, "b", "c"), "id"),
        (("p", "a", "b" * 257, "c"), "id"),
        (("p", "a", "b", "c" * 257), "id"),
    ],
)
def test_longer_ones_are_a_problem(ids: tuple[str, str, str, str], path: str) -> None:
    with pytest.raises(PipelineInvalid) as invalid:
        compile_pipeline(pipeline(*ids))

    assert [problem.path.rpartition(".")[2] for problem in invalid.value.problems] == [path]


@pytest.mark.parametrize(("pipeline", "connector", "fits"), [(128, 256, True), (129, 1, False), (1, 257, False)])
def test_so_it_is_in_yaml(tmp_path: Path, pipeline: int, connector: int, fits: bool) -> None:
    text = f"""
version: "2.2"
pipelines:
  - id: {"p" * pipeline}
    status: running
    connectors:
      - id: {"a" * connector}
        type: source
        plugin: builtin:generator
        settings: {{format.type: raw, format.options.id: int, recordCount: "1"}}
      - id: b
        type: destination
        plugin: builtin:file
        settings: {{path: /dev/null}}
"""
    (tmp_path / "p.yaml").write_text(text)
    loaded = load_file(tmp_path / "p.yaml")

    assert bool(loaded.pipelines) is fits
