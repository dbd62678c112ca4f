"""The command `check`: everything that can be known to be wrong without starting anything."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conduit_py.cli.complaint import count_of, place_of, problems_of, shortened
from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put, put_json
from conduit_py.config.python_file import FileInvalid, choose, load_pipelines
from conduit_py.errors import ConduitError, EnvironmentUnfit, PipelineInvalid, Problem
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.options import at


def check(file: Path, *, pipeline: str | None, as_json: bool) -> ExitCode:
    """Print one line per sound pipeline, or raise with every mistake of all of them."""
    try:
        graphs = load_graphs(file, pipeline)
    except ConduitError as error:
        if as_json:
            put_json({"file": str(file), "valid": False, "pipelines": [], **error_fields(error)})
        raise
    if as_json:
        pipelines = [_described(graph) for graph in graphs]
        put_json({"file": str(file), "valid": True, "pipelines": pipelines, "problems": []})
    else:
        for graph in graphs:
            put(f"{graph.pipeline.id}: ok, {_counted(graph)}")
    return ExitCode.OK


def load_graphs(file: Path, pipeline: str | None) -> list[Graph]:
    """The checked graphs of a file's pipelines. All mistakes in all of them are in one FileInvalid."""
    pipelines = choose(file, load_pipelines(file), pipeline)
    graphs: list[Graph] = []
    problems: list[Problem] = []
    for each in pipelines:
        try:
            graphs.append(compile_pipeline(each))
        except PipelineInvalid as invalid:
            problems += invalid.problems if len(pipelines) == 1 else _within(each, invalid.problems)
    if problems:
        raise FileInvalid(file, _in_order(problems))
    return graphs


def error_fields(error: ConduitError) -> dict[str, Any]:
    """The error and its problems as plain values for `--json`."""
    problems = problems_of(error)
    return {
        "error": {
            "code": error.code,
            "message": count_of(problems) if problems else shortened(error.message),
            "node": getattr(error, "node", None),
            "suggestion": error.suggestion,
        },
        "problems": [
            {
                "file": problem.file and place_of(problem).removesuffix(f":{problem.line}"),
                "line": problem.line,
                "path": problem.path,
                "message": problem.message,
                "suggestion": problem.suggestion,
            }
            for problem in problems
        ],
    }


def status_of(error: ConduitError) -> str:
    return "environment" if isinstance(error, EnvironmentUnfit) else "invalid" if problems_of(error) else "failed"


def _within(pipeline: Pipeline, problems: Iterable[Problem]) -> list[Problem]:
    return [at(problem, pipeline.id) for problem in problems]


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """As they stand in the file, each once."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.file or "", problem.line or 0))


def _described(graph: Graph) -> dict[str, Any]:
    return {
        "id": graph.pipeline.id,
        "delivery": graph.pipeline.delivery,
        "nodes": [
            {"id": node.id, "kind": node.kind, "plugin": node.label, "inputs": node.inputs}
            for node in graph.nodes.values()
        ],
    }


def _counted(graph: Graph) -> str:
    counts = []
    for kind in ("source", "processor", "destination"):
        count = sum(node.kind == kind for node in graph.nodes.values())
        counts.append(f"{count} {kind}" + ("s" if count != 1 else ""))
    return ", ".join(counts)
