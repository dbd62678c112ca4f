"""The real command in a folder of its own, and small connectors for its pipelines."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from warm_python import WarmCommand, run_command

from conduit_py.cli.main import answer

ENDS = '''
"""Connectors for the tests of the command: numbers in, lines out."""

import trio

from conduit_py import sdk


class CountOptions(sdk.Options):
    to: int | None = None
    pause_seconds: float = 0.0


class Count(sdk.SourceConnector[CountOptions]):
    """The numbers from 1 on, to `to` or without end. The position is the number."""

    async def open(self, position):
        self.last = int(position or b"0")

    async def read(self, n):
        await trio.sleep(self.options.pause_seconds)
        first, end = self.last + 1, self.last + n
        if self.options.to is not None:
            end = min(end, self.options.to)
        if first > end:
            raise sdk.EndOfSource
        self.last = end
        return [sdk.Record.of({"number": i}, position=b"%d" % i) for i in range(first, end + 1)]


class Tables(Count):
    """The number 1, and the table `orders` on request: the position has the request."""

    async def open(self, position):
        number, _, self.requested = (position or b"0").partition(b" ")
        await super().open(number)
        self.asked = trio.Event()

    async def read(self, n):
        if self.last == 0:
            return await super().read(1)
        await self.asked.wait()
        self.asked = trio.Event()
        return sdk.Reading([], position=b"%d %s" % (self.last, self.requested))

    async def request_snapshot(self, request):
        if request.collection != "orders":
            raise sdk.SnapshotRefused(f"there is no table {request.collection}", suggestion="tables are orders")
        self.requested = f"{request.collection} {request.where}".encode()
        self.asked.set()


class LinesOptions(sdk.Options):
    path: str
    stuck: bool = False


class Lines(sdk.DestinationConnector[LinesOptions]):
    """A line with its number for every record; or stuck for ever in its first write."""

    async def write(self, batch):
        with open(self.options.path, "a") as file:
            file.writelines(f"{record.payload['number']}\\n" for record in batch)
        if self.options.stuck:
            await trio.sleep_forever()


class BrokenOptions(sdk.Options):
    error: str = "the disk is on fire"
    transient: bool = False


class Broken(sdk.DestinationConnector[BrokenOptions]):
    """Fails at the first write."""

    async def write(self, batch):
        kind = sdk.TransientError if self.options.transient else sdk.FatalError
        raise kind(self.options.error, suggestion="call the fire brigade")
'''

HEAD = """\
from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Source
from ends import Broken, Count, Lines, Tables
"""
PIPELINE = """
{id} = Pipeline(
    "{id}",
    sources=[Source("count", {source}, batch_size=10)],
    destinations=[Destination("lines", {destination})],
    {more}
)
"""


class Command:
    """The command as a user would call it, in a folder with `ends.py` for pipelines to import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out.txt"
        self.running: list[subprocess.Popen[str]] = []

    def write(self, text: str, name: str = "orders.py") -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

    def pipeline(
        self,
        source: str = "Count(to=1000)",
        destination: str = 'Lines(path="out.txt")',
        *,
        id: str = "numbers",
        more: str = "",
        before: str = HEAD,
    ) -> str:
        """Write a file with one pipeline, after what stands in `before`; its text, to write more after it."""
        text = before + PIPELINE.format(id=id, source=source, destination=destination, more=more)
        self.write(text)
        return text

    def __call__(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, cwd=self.folder, env=self._environment() | environment)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = WarmCommand(*arguments, cwd=self.folder, env=self._environment(), **pipes)
        self.running.append(process)
        return process

    def json(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the JSON lines of a command that is given --json."""
        done = self(*arguments, "--json")
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def results(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit code of a `run`, and its result of each pipeline, without the progress that a slow one shows."""
        code, lines = self.json("run", *arguments)
        return code, [line for line in lines if line["type"] == "result"]

    def numbers(self) -> list[int]:
        return [int(line) for line in self.out.read_text().splitlines()]

    def _environment(self) -> dict[str, str]:
        colours = ("FORCE_COLOR", "NO_COLOR")
        return {name: value for name, value in os.environ.items() if name not in colours} | {"COLUMNS": "200"}


class CommandInside(Command):
    """The same command without a process of its own, for what needs none: an import of everything less each time."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self._capture = capture

    def __call__(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        assert not environment
        code = answer(arguments)
        return subprocess.CompletedProcess(arguments, code, *self._capture.readouterr())


@pytest.fixture
def inside(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandInside:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "nothing")  # so that sys.path is put back afterwards
    (tmp_path / "ends.py").write_text(ENDS)
    return CommandInside(tmp_path, capsys)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "ends.py").write_text(ENDS)
    command = Command(tmp_path)
    yield command
    for process in command.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Serving:
    """A real server of pipelines that write `ID.txt`, and the command called against it, here or in its own process."""

    def __init__(self, command: Command, inside: CommandInside) -> None:
        self.command = command
        self._inside = inside
        self.folder = command.folder / "pipelines"
        self.folder.mkdir()
        (self.folder / "ends.py").write_text(ENDS)
        self.url = ""

    def add(self, id: str, source: str = "Count(pause_seconds=0.01)", destination: str | None = None) -> None:
        destination = destination or f'Lines(path="{id}.txt")'
        text = HEAD + PIPELINE.format(id=id, source=source, destination=destination, more="")
        (self.folder / f"{id}.py").write_text(text)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the server on a free port and wait until it says that it serves."""
        process = self.command.start("serve", "--pipelines", "pipelines", "--port", "0", *arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http" in line, process.communicate()
        self.url = line.split()[-1]
        return process

    def __call__(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return self._inside(*arguments, "--url", self.url)

    def apart(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.command(*arguments, "--url", self.url)

    def json(self, *arguments: str, **environment: str) -> dict[str, Any]:
        """The one JSON object that a command answers."""
        answer: dict[str, Any] = json.loads(self(*arguments, "--json", **environment).stdout)
        return answer

    def until(self, id: str, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Ask for a pipeline until it is as wanted."""
        deadline = time.monotonic() + 300
        while True:
            answer = _client().get(f"{self.url}/api/v1/pipelines/{id}")
            shown: dict[str, Any] = answer.json()
            # A reload adds a pipeline some time after its answer.
            if answer.status_code != 404 and wanted(answer.raise_for_status().json()):
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)


@cache
def _client() -> httpx2.Client:
    """One for all that ask. It keeps no connection to a server, and reads no certificates, all of which are many."""
    return httpx2.Client(timeout=300, verify=False, headers={"Connection": "close"})


@pytest.fixture
def serving(command: Command, inside: CommandInside) -> Serving:
    return Serving(command, inside)


def until(process: "subprocess.Popen[str]", wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read the JSON lines of a running command up to the first that is wanted."""
    assert process.stdout is not None
    for line in process.stdout:
        fields: dict[str, Any] = json.loads(line)
        if wanted(fields):
            return fields
    raise AssertionError(f"ended without it: {process.communicate()}")


@pytest.fixture(name="until")
def until_fixture() -> Callable[["subprocess.Popen[str]", Callable[[dict[str, Any]], bool]], dict[str, Any]]:
    return until
