"""A fleet of scripted pipelines behind the API, called in process; and the real server as a process."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest
import trio
from conduit_server import Running as Running
from conduit_server import Server as Server
from fastapi import FastAPI

from conduit_py import Destination, Pipeline, Record, Source
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.server.access import Policy, Role, Tokens
from conduit_py.server.serve import create_app
from conduit_py.server.service import Service
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

TOKENS = {Role.READ: "read-" + "r" * 20, Role.OPERATE: "operate-" + "o" * 20, Role.ADMIN: "admin-" + "a" * 20}


def pipeline(id: str, log: EventLog, *, records: int | list[Record] = 10, **ends: Any) -> Pipeline:
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
    client: httpx2.AsyncClient
    log: EventLog

    async def wait_until_settled(self) -> None:
        """Wait, in virtual time, until everything has happened that will."""
        await trio.sleep(5)


@asynccontextmanager
async def open_site(*ids: str, policy: Policy | None = None, **ends: Any) -> AsyncIterator[Site]:
    log, store = EventLog(), MemoryStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        for id in ids:
            await fleet.add(pipeline(id, log, **ends))
        service = Service(fleet, store, nursery)
        app = create_app(service, policy or Policy())
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()
