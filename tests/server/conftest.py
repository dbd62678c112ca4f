"""A fleet of scripted pipelines behind the API, called in process; and the real server as a process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import trio
from fastapi import FastAPI

from conduit_py import Destination, Pipeline, Record, Source
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.server.access import Policy
from conduit_py.server.app import create_app
from conduit_py.server.service import Service
from conduit_py.server.tokens import Role, Tokens
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Log, ScriptedDestination, ScriptedSource

TOKENS = {Role.READ: "read-" + "r" * 20, Role.OPERATE: "operate-" + "o" * 20, Role.ADMIN: "admin-" + "a" * 20}


def pipeline(id: str, log: Log, *, records: int | list[Record] = 10, **ends: Any) -> Pipeline:
    """Scripted: it reads `records` records, writes them, and then waits for more."""
    source = {"bounded": False, **ends.get("source", {})}
    return Pipeline(
        id,
        description=f"the pipeline {id}",
        sources=[Source("source", ScriptedSource(records=records, name=id, log=log, **source))],
        destinations=[Destination("to", ScriptedDestination(name=f"{id}-to", log=log, **ends.get("destination", {})))],
    )


@dataclass
class Site:
    """A service with its app and a client that calls it as a browser on this machine would."""

    service: Service
    app: FastAPI
    client: httpx.AsyncClient
    log: Log

    async def settled(self) -> None:
        """Wait, in virtual time, until everything has happened that will."""
        await trio.sleep(5)


@asynccontextmanager
async def open_site(*ids: str, policy: Policy | None = None, **ends: Any) -> AsyncIterator[Site]:
    log, store = Log(), MemoryStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        for id in ids:
            await fleet.add(pipeline(id, log, **ends))
        service = Service(fleet, store, nursery)
        app = create_app(service, policy or Policy())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            yield Site(service, app, client, log)
        await fleet.shutdown(5)
        nursery.cancel_scope.cancel()


OpenSite: TypeAlias = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture(name="open_site")
def open_site_fixture() -> OpenSite:
    return open_site


@pytest.fixture
def guarded() -> Policy:
    """A policy with one token for each role."""
    return Policy(Tokens({token: role for role, token in TOKENS.items()}))


@pytest.fixture
def tokens() -> dict[Role, str]:
    return TOKENS


class Server:
    """A real `conduit-py serve` in a folder of its own, on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipelines = folder / "pipelines"
        self.pipelines.mkdir()
        self._processes: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        (self.pipelines / name).write_text(text)

    def command(self, *arguments: str, port: int = 0, **environment: str) -> "subprocess.Popen[str]":
        line = [sys.executable, "-m", "conduit_py.cli.main", "serve", "--pipelines", "pipelines", "--state", "state"]
        process = subprocess.Popen(
            [*line, "--port", str(port), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "log").open("a"),
            cwd=self.folder,
            env={**os.environ, **environment},
            text=True,
        )
        self._processes.append(process)
        return process

    def start(self, *arguments: str, **environment: str) -> "Running":
        """Start it and wait until it says that it serves."""
        process = self.command(*arguments, port=0, **environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http" in line, self.log()
        return Running(process, line.split()[-1])

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


class Running:
    """A server that serves."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.http = httpx.Client(base_url=url, timeout=30)

    def pipeline(self, id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.http.get(f"/api/v1/pipelines/{id}").raise_for_status().json()
        return shown

    def until(self, id: str, wanted: Callable[[dict[str, Any]], object], seconds: float = 60) -> dict[str, Any]:
        """Ask for a pipeline again and again until it is as wanted."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.pipeline(id)
            if wanted(shown):
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        self.http.close()
        return self.process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()
