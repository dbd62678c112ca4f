"""A pipeline file with a problem is visible wherever its pipelines would be, from the start or after an edit."""

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from conduit_connectors import generator, log
from warm_python import run_command

from conduit_py import Destination, Pipeline, Source
from conduit_py.config.definitions import Definitions
from conduit_py.errors import PipelineUnknown, Problem
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import Reloader
from conduit_py.store.memory import MemoryStore

if TYPE_CHECKING:
    from tests.server.conftest import Running, Server

SOUND = """
from conduit_connectors import generator, log
from conduit_py import Destination, Pipeline, Source

{id} = Pipeline(
    "{id}",
    sources=[Source("made", generator.Source(rate=10, fields={{"id": "index"}}))],
    destinations=[Destination("kept", log.Destination(level="debug"))],
)
"""
WRONG_OPTION = SOUND.replace("rate=10", "rat=10")
NO_PYTHON = "this is no Python\n"


def simple(id: str) -> Pipeline:
    return Pipeline(
        id, sources=[Source("made", generator.Source())], destinations=[Destination("kept", log.Destination())]
    )


async def problems_of(tmp_path: Path, *contents: str) -> list[Problem]:
    """The problems of a fleet after a start with the first content of `p.py`, and a reload with each of the others."""
    file = tmp_path / "p.py"
    async with trio.open_nursery() as nursery:
        store = MemoryStore()
        fleet = Fleet(store, nursery)
        file.write_text(contents[0])
        definitions = Definitions(tmp_path)
        reloader = Reloader(fleet, store, definitions, nursery)
        await reloader.begin(definitions.read())
        for content in contents[1:]:
            file.write_text(content)
            await reloader.reload()
        problems = fleet.problems
        nursery.cancel_scope.cancel()
    return problems


class TestProblemsOfAFleet:
    """The fleet has every problem that keeps a definition from taking effect, each once."""

    async def test_a_file_that_is_broken_at_the_start(self, tmp_path: Path) -> None:
        [problem] = await problems_of(tmp_path, NO_PYTHON)

        assert (problem.file, problem.line) == (str(tmp_path / "p.py"), 1)

    async def test_a_pipeline_that_is_wrong_at_the_start(self, tmp_path: Path) -> None:
        [problem] = await problems_of(tmp_path, WRONG_OPTION.format(id="p"))

        assert (problem.path, problem.suggestion) == ("p.sources.made.rat", "did you mean 'rate'?")

    async def test_a_bad_edit_is_there_once_although_its_pipeline_has_it_too(self, tmp_path: Path) -> None:
        for wrong in (NO_PYTHON, WRONG_OPTION.format(id="p")):
            [problem] = await problems_of(tmp_path, SOUND.format(id="p"), wrong)

            assert problem.file == str(tmp_path / "p.py")

    async def test_there_are_none_once_the_file_is_right(self, tmp_path: Path) -> None:
        for wrong in (NO_PYTHON, WRONG_OPTION.format(id="p")):
            assert await problems_of(tmp_path, SOUND.format(id="p"), wrong, SOUND.format(id="p")) == []
            assert await problems_of(tmp_path, wrong, SOUND.format(id="p")) == []

    async def test_a_processor_that_cannot_be_opened_is_a_problem_too(self) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            member = await fleet.add(simple("p"))
            member.definition = Problem("mark", "its model is not there")

            assert fleet.problems == [Problem("p.mark", "its model is not there")]

    async def test_an_unknown_pipeline_may_be_in_a_broken_file(self) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            fleet.file_problems = (Problem("", "invalid syntax", None, "orders.py", 3),)
            with pytest.raises(PipelineUnknown) as unknown:
                fleet["orders"]

        assert unknown.value.suggestion is not None
        assert "1 problem in the pipeline files" in unknown.value.suggestion


def test_a_file_that_is_broken_when_the_server_starts_is_visible_everywhere(server: "Server") -> None:
    server.write("good.py", SOUND.format(id="good"))
    server.write("orders.py", NO_PYTHON)
    running = server.start()
    listed = running.http.get("/api/v1/pipelines").json()
    [problem] = listed["problems"]

    assert [each["id"] for each in listed["pipelines"]] == ["good"]
    assert problem["file"].endswith("orders.py")
    assert problem["line"] == 1
    ready = running.http.get("/readyz")
    # Ready all the same: a balancer would take down the server on which the other pipelines run.
    assert (ready.status_code, ready.json()["file_problems"]) == (200, 1)
    assert "\nconduit_file_problems 1\n" in running.http.get("/metrics").text
    assert live_problems(running) == [problem]
    shown = ask(server, running, "pipelines", "list")
    assert shown.returncode == 0
    assert "good" in shown.stdout
    assert "1 problem in the pipeline files" in shown.stderr
    assert f"{problem['file']}:1: " in shown.stderr
    assert json.loads(ask(server, running, "pipelines", "list", "--json").stdout)["problems"] == [problem]
    missing = ask(server, running, "pipelines", "describe", "orders")
    assert missing.returncode == 1
    assert "1 problem in the pipeline files" in missing.stderr

    server.write("orders.py", SOUND.format(id="orders"))
    assert running.http.post("/api/v1/reload").json()["problems"] == []
    running.until("good", lambda _: "orders" in ids(running))
    # The stream shows what is up to half a second old.
    running.until("good", lambda _: live_problems(running) == [])
    assert running.http.get("/api/v1/pipelines").json()["problems"] == []
    assert running.http.get("/readyz").json()["file_problems"] == 0
    assert "\nconduit_file_problems 0\n" in running.http.get("/metrics").text
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_bad_edit_is_visible_in_the_same_places(server: "Server") -> None:
    server.write("good.py", SOUND.format(id="good"))
    running = server.start()
    server.write("good.py", WRONG_OPTION.format(id="good"))
    [problem] = running.http.post("/api/v1/reload").json()["problems"]
    listed = running.http.get("/api/v1/pipelines").json()

    assert listed["problems"] == [problem]
    running.until("good", lambda _: live_problems(running) == [problem])
    assert listed["pipelines"][0]["definition"]["path"] == "sources.made.rat"
    assert running.http.get("/readyz").json()["file_problems"] == 1
    shown = ask(server, running, "pipelines", "list")
    assert "its newest definition is not in effect" in shown.stdout
    assert "did you mean 'rate'?" in shown.stderr


def ids(running: "Running") -> list[str]:
    return [each["id"] for each in running.http.get("/api/v1/pipelines").json()["pipelines"]]


def live_problems(running: "Running") -> object:
    """The problems in the first event of the live stream."""
    with running.http.stream("GET", "/api/v1/live") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))["problems"]
    raise AssertionError("the stream had no event")


def ask(server: "Server", running: "Running", *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command(*arguments, "--url", running.url, cwd=server.folder)
