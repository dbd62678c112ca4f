"""A definition is compiled once: the graph is a value that loading makes and everything after it takes."""

from pathlib import Path

import pytest
import trio
from conduit_connectors import generator, log

from conduit_py import Destination, Pipeline, Source
from conduit_py.cli.output import ExitCode
from conduit_py.cli.run import run_file
from conduit_py.config.definitions import Definitions
from conduit_py.config.load import load_file
from conduit_py.graph.compile import as_graph, compile_pipeline
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import Reloader
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline_settings import Spark
from conduit_py.store.memory import MemoryStore

YAML = """
version: 2.2
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: builtin:generator, settings: {recordCount: 3}}
      - {id: out, type: destination, plugin: builtin:log}
"""
PYTHON = """
import sys

from conduit_connectors import generator, log
from conduit_py import Destination, Pipeline, Source

class Counted(Source):
    "A source that notes when a pipeline is compiled, which begins with its declared problems."

    @property
    def problems(self):
        if "_declared_problems" in sys._getframe(1).f_code.co_qualname:
            with open("asked", "a") as asked:
                asked.write("once ")
        return self._problems

    @problems.setter
    def problems(self, problems):
        self._problems = problems

made = Counted("in", generator.Source(count=3))
p = Pipeline("p", sources=[made], destinations=[Destination("out", log.Destination())])
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pipeline(count: int = 3) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("in", generator.Source(count=count))],
        destinations=[Destination("out", log.Destination())],
    )


def test_a_graph_is_not_compiled_again() -> None:
    graph = compile_pipeline(pipeline())

    assert as_graph(graph) is graph
    assert Supervisor(graph, MemoryStore()).graph is graph


async def test_a_fleet_runs_the_graphs_it_is_given() -> None:
    first, second = compile_pipeline(pipeline()), compile_pipeline(pipeline(count=4))
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        member = await fleet.add(first)
        fleet.start("p")
        assert member.supervisor is not None
        assert member.graph is member.supervisor.graph is first
        await member.ended.wait()

        await fleet.replace(second)
        fleet.start("p")
        assert member.graph is member.supervisor.graph is second
        await member.ended.wait()


def test_a_loaded_pipeline_has_one_graph(tmp_path: Path) -> None:
    for name, text in (("p.yaml", YAML), ("p.py", PYTHON)):
        (tmp_path / name).write_text(text)
        [loaded] = load_file(tmp_path / name).pipelines

        assert loaded.graph is loaded.graph
        assert loaded.graph.pipeline is loaded.pipeline
        assert loaded.on_engine("trio") is loaded
        assert loaded.on_engine(Spark()).graph is not loaded.graph


def test_a_run_compiles_each_definition_once(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PYTHON)

    assert run_file(tmp_path / "p.py", state=tmp_path / "state") == ExitCode.OK
    assert (tmp_path / "asked").read_text() == "once "


async def test_a_server_runs_what_was_compiled_when_the_files_were_read(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PYTHON)
    definitions = Definitions(tmp_path)
    async with trio.open_nursery() as nursery:
        store = MemoryStore()
        fleet = Fleet(store, nursery)
        reloader = Reloader(fleet, store, definitions, nursery)
        await reloader.begin(definitions.read())
        await fleet.boot()
        await fleet["p"].ended.wait()
        [loaded] = definitions.read().whole.pipelines
        await reloader.reload()

        assert fleet["p"].graph is loaded.graph
        assert (tmp_path / "asked").read_text() == "once "
