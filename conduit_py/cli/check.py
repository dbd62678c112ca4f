"""The commands `check` and `graph`: they load and compile pipelines without starting them."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio

from conduit_py.cli.errors import count_of, place_of, print_warnings, problems_of, short_text
from conduit_py.cli.output import ExitCode, put, put_json, put_lines
from conduit_py.config.load import load_file
from conduit_py.config.loaded import LoadedPipeline, LoadWarning
from conduit_py.config.python_file import FileInvalid, choose
from conduit_py.errors import ConduitError, EnvironmentUnfit, PipelineInvalid, Problem
from conduit_py.graph.draw import Format, draw
from conduit_py.graph.guarantees import guarantees
from conduit_py.graph.node import Graph
from conduit_py.pipeline import Pipeline
from conduit_py.pipeline_settings import EngineName, choose_engine
from conduit_py.redaction import redact
from conduit_py.runner import engine_warnings, require_engine
from conduit_py.sdk.plugin import Connector, at
from conduit_py.sdk.registry import connector_label
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.wire_error import WireError


def check(
    file: Path,
    *,
    pipeline: str | None,
    as_json: bool,
    connect_seconds: float | None = None,
    engine: EngineName | None = None,
    master: str | None = None,
) -> ExitCode:
    """Print one line per sound pipeline, or raise with every problem of all of them.

    With `connect_seconds` every system is reached too, each within so many seconds, and nothing is changed.
    """
    warnings: list[LoadWarning] = []
    try:
        loaded = load_with_graphs(file, pipeline, warnings, engine=engine, master=master)
        require_spark_for(master, loaded)
        graphs = list(loaded.values())
        require_engines(graph.pipeline for graph in graphs)
        warnings += _warn_about(graphs)
    except ConduitError as error:
        if as_json:
            found = {"pipelines": [], **error_fields(error), "warnings": _warning_fields(warnings)}
            put_json({"file": str(file), "valid": False, **found})
        raise
    probes = [] if connect_seconds is None else trio.run(_probe_all, graphs, connect_seconds)
    if as_json:
        pipelines = [_graph_fields(graph) for graph in graphs]
        found = {"pipelines": pipelines, "problems": [], "warnings": _warning_fields(warnings)}
        connections = {} if connect_seconds is None else {"connections": [dataclasses.asdict(each) for each in probes]}
        put_json({"file": str(file), "valid": True, **found, **connections})
    else:
        for graph in graphs:
            put(f"{graph.pipeline.id}: ok, {_node_counts(graph)}{_engine(graph.pipeline)}")
            for source, (reader, why) in _ways_to_read(graph.pipeline).items():
                put(f"  {source} is read by the {reader}: {why}")
            for destination, (way, why) in _ways_to_write(graph).items():
                put(f"  {destination} is {way}: {why}")
            for each in guarantees(graph):
                put(f"  {each.source} → {each.destination}: {each.promise}, {each.order}: {each.why}")
            for probe in probes:
                if probe.pipeline == graph.pipeline.id:
                    put(f"  {probe.sentence()}", sys.stderr if probe.status == "failed" else None)
    return ExitCode.ENVIRONMENT if any(each.status == "failed" for each in probes) else ExitCode.OK


@dataclasses.dataclass(frozen=True)
class Probe:
    """Whether the system of a connector can be reached. No secret is in it."""

    pipeline: str
    node: str
    status: Literal["reached", "failed", "not tried"]
    message: str
    suggestion: str | None = None

    def sentence(self) -> str:
        advice = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.node}: {self.status}: {self.message}{advice}"


async def _probe_all(graphs: Sequence[Graph], seconds: float) -> list[Probe]:
    """Probe all connectors side by side, so that one that does not answer holds up no other."""
    found: dict[tuple[str, str], Probe] = {}

    async def probe(pipeline: str, node: str, connector: Connector[Any]) -> None:
        found[pipeline, node] = await _probe(pipeline, node, connector, seconds)

    async with trio.open_nursery() as nursery:
        for graph in graphs:
            for node, connector in _connectors(graph.pipeline):
                found[graph.pipeline.id, node] = Probe(graph.pipeline.id, node, "not tried", "")
                nursery.start_soon(probe, graph.pipeline.id, node, connector)
    return list(found.values())


def _connectors(pipeline: Pipeline) -> Iterator[tuple[str, Connector[Any]]]:
    for end in pipeline.ends:
        yield end.id, end.connector
    if pipeline.dead_letters.policy.connector is not None:
        yield "dead letters", pipeline.dead_letters.policy.connector
    for target, connector in pipeline.outbox.items():
        yield f"outbox {target}", connector


async def _probe(pipeline: str, node: str, connector: Connector[Any], seconds: float) -> Probe:
    calls = PluginCaller(node, connector.fresh())
    if calls.inherits("probe"):
        return Probe(pipeline, node, "not tried", f"not supported by {connector_label(connector)}")
    try:
        with trio.move_on_after(seconds) as scope:
            answer = await calls("probe")
    except Exception as error:  # plugin boundary: a client library may raise anything
        wire = WireError.of(error)
        return Probe(pipeline, node, "failed", wire.message, wire.suggestion)
    finally:
        calls.close()
    if scope.cancelled_caught:
        hint = "check the address and the network; --timeout gives it longer"
        return Probe(pipeline, node, "failed", f"no answer within {seconds:g} s", hint)
    return Probe(pipeline, node, "reached", redact(str(answer or connector_label(connector))))


def load_graphs(file: Path, pipeline: str | None, warnings: list[LoadWarning] | None = None) -> list[Graph]:
    """The checked graphs of a file's pipelines. All their problems are in one FileInvalid."""
    return list(load_with_graphs(file, pipeline, warnings).values())


def load_with_graphs(
    file: Path,
    pipeline: str | None,
    warnings: list[LoadWarning] | None = None,
    *,
    engine: EngineName | None = None,
    master: str | None = None,
) -> dict[LoadedPipeline, Graph]:
    """The checked graphs by pipeline, with the status in the file; `engine` and `master` override the file.

    Warnings are printed on stderr and added to `warnings`.
    """
    wanted = _choose_pipelines(file, pipeline, [] if warnings is None else warnings)
    graphs: dict[LoadedPipeline, Graph] = {}
    problems: list[Problem] = []
    for each in wanted:
        loaded = each.on_engine(choose_engine(each.pipeline.settings.engine, engine, master))
        try:
            graphs[loaded] = loaded.graph
        except PipelineInvalid as invalid:
            problems += invalid.problems if len(wanted) == 1 else _within(each.pipeline, invalid.problems)
    if problems:
        # After all pipelines were checked: a user wants every problem in one go.
        raise FileInvalid(file, _in_order(problems))
    return graphs


def require_engines(pipelines: Iterable[Pipeline]) -> None:
    """Return if this machine has what the engines of these pipelines need, else raise EnvironmentUnfit."""
    for pipeline in pipelines:
        require_engine(pipeline)


def require_spark_for(master: str | None, loaded: Iterable[LoadedPipeline]) -> None:
    """Raise EnvironmentUnfit if a master was named and none of the pipelines runs on Spark."""
    if master is not None and all(each.pipeline.spark is None for each in loaded):
        raise EnvironmentUnfit("--master requires --engine spark", suggestion="add --engine spark")


def _warn_about(graphs: Iterable[Graph]) -> list[LoadWarning]:
    """Print what is sound and may still be a mistake, and return it.

    That is a setting of an engine that opens it to others, and a state that must fit into memory.
    """
    warnings = []
    for graph in graphs:
        place = graph.pipeline.place or (None, None)
        warnings += [LoadWarning(graph.pipeline.id, each, None, *place) for each in engine_warnings(graph.pipeline)]
        warnings += [
            LoadWarning(
                f"{graph.pipeline.id}.processors.{node.id}", _IN_MEMORY, _NAME_KEYS, *(node.declared.place or place)
            )
            for node in graph.nodes.values()
            if node.keeps_all_in_memory
        ]
    print_warnings(warnings)
    return warnings


_IN_MEMORY = "is async, so its whole state stays in memory, whatever state_cache_bytes is"
_NAME_KEYS = "name the keys that it needs for a record in state_keys, or make it sync"


def _choose_pipelines(file: Path, pipeline: str | None, warnings: list[LoadWarning]) -> list[LoadedPipeline]:
    """The chosen pipelines. Raises for problems in the file, unless the one chosen pipeline has none."""
    loaded = load_file(file)
    warnings += loaded.warnings
    print_warnings(loaded.warnings)
    # One sound pipeline can be run from a file in which another is being written.
    if loaded.problems and pipeline not in [each.id for each in loaded.pipelines]:
        raise FileInvalid(file, loaded.problems)
    if not loaded.pipelines:
        raise FileInvalid(file, [Problem("", "there is no pipeline in this file", None, str(file))])
    chosen = choose(file, [each.pipeline for each in loaded.pipelines], pipeline)
    return [each for each in loaded.pipelines if each.pipeline in chosen]


def error_fields(error: ConduitError) -> dict[str, Any]:
    """The error and its problems as plain values for `--json`."""
    problems, wire_error = problems_of(error), WireError.of(error)
    message = count_of(problems) if problems else short_text(wire_error.message)
    return {
        "error": {**wire_error.to_fields(), "message": message, "node": wire_error.node},
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


def _warning_fields(warnings: Iterable[LoadWarning]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(warning), "file": warning.file and short_text(warning.file)} for warning in warnings]


def status_of(error: ConduitError) -> str:
    return "environment" if isinstance(error, EnvironmentUnfit) else "invalid" if problems_of(error) else "failed"


def _within(pipeline: Pipeline, problems: Iterable[Problem]) -> list[Problem]:
    return [at(problem, pipeline.id) for problem in problems]


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """As they stand in the file, each once."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.file or "", problem.line or 0))


def _graph_fields(graph: Graph) -> dict[str, Any]:
    return {
        "id": graph.pipeline.id,
        "delivery": graph.pipeline.delivery,
        "engine": "trio" if graph.pipeline.spark is None else "spark",
        "nodes": [
            {"id": node.id, "kind": node.kind, "plugin": node.label, "inputs": node.inputs}
            for node in graph.nodes.values()
        ],
        **(_spark_fields(graph) if graph.pipeline.spark is not None else {}),
        "guarantees": [msgspec.structs.asdict(each) for each in guarantees(graph)],
    }


def _engine(pipeline: Pipeline) -> str:
    if pipeline.spark is None:
        return ""
    return f", on Spark ({pipeline.spark.master})" if pipeline.spark.master else ", on Spark"


def _ways_to_read(pipeline: Pipeline) -> dict[str, tuple[str, str]]:
    """By source, which processes of Spark read it, and why; nothing for a pipeline that runs elsewhere."""
    if pipeline.spark is None:
        return {}
    # Here, because it needs pyspark, which only pipelines on Spark have.
    from conduit_py.spark.engine.split import way_to_read
    from conduit_py.spark.engine.supervisor import options_of

    return {source.id: way_to_read(source.connector, options_of(pipeline)) for source in pipeline.sources}


def _ways_to_write(graph: Graph) -> dict[str, tuple[str, str]]:
    """By destination, which processes of Spark write it, and why; nothing for a pipeline that runs elsewhere."""
    if graph.pipeline.spark is None:
        return {}
    # Here, because it needs pyspark, which only pipelines on Spark have.
    from conduit_py.spark.engine.split import PipelineSplit, ways_to_write
    from conduit_py.spark.engine.supervisor import options_of

    return dict(ways_to_write(PipelineSplit(graph), options_of(graph.pipeline)))


def _spark_fields(graph: Graph) -> dict[str, Any]:
    read, written = _ways_to_read(graph.pipeline), _ways_to_write(graph)
    return {
        "read": {id: {"by": by, "why": why} for id, (by, why) in read.items()},
        "written": {id: {"way": way, "why": why} for id, (way, why) in written.items()},
    }


def _node_counts(graph: Graph) -> str:
    counts = []
    for kind in ("source", "processor", "destination"):
        count = sum(node.kind == kind for node in graph.nodes.values())
        counts.append(f"{count} {kind}" + ("s" if count != 1 else ""))
    return ", ".join(counts)


def draw_file(file: Path, *, pipeline: str | None, format: Format, out: Path | None) -> ExitCode:
    """Write the drawing to `out`, or to stdout."""
    graphs = load_graphs(file, pipeline)
    if format == "svg" and len(graphs) > 1:
        ids = ", ".join(graph.pipeline.id for graph in graphs)
        problem = Problem("", "has several pipelines, but an SVG file holds one", f"add --pipeline: {ids}", str(file))
        raise FileInvalid(file, [problem])
    text = "\n".join(draw(graph, format) for graph in graphs)
    if out is None:
        put_lines(text.rstrip("\n"))
    else:
        _write_drawing(out, text)
    return ExitCode.OK


def _write_drawing(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"{out} cannot be written: {error.strerror}") from error
