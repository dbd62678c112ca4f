"""The command `graph`: a file's pipelines as a drawing."""

from pathlib import Path

from conduit_py.cli.check import load_graphs
from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import EnvironmentUnfit, Problem
from conduit_py.graph.draw import Format, draw


def draw_file(file: Path, *, pipeline: str | None, format: Format, out: Path | None) -> ExitCode:
    """Write the drawing to `out`, or to stdout."""
    graphs = load_graphs(file, pipeline)
    if format == "svg" and len(graphs) > 1:
        ids = ", ".join(graph.pipeline.id for graph in graphs)
        problem = Problem("", "has several pipelines, but an SVG file holds one", f"add --pipeline: {ids}", str(file))
        raise FileInvalid(file, [problem])
    text = "\n".join(draw(graph, format) for graph in graphs)
    if out is None:
        put(text.rstrip("\n"))
    else:
        _write(out, text)
    return ExitCode.OK


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"{out} cannot be written: {error.strerror}") from error
