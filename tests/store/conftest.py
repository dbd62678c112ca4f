"""Every store, for the tests that must hold for any, and a clock that they can put forward."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from conduit_py.child.link import TO_CHILD, TO_SERVER, StoreCall, StoreReply
from conduit_py.child.store import ChildStore, answer_call
from conduit_py.owned_process import ChildLink
from conduit_py.store.memory import MemoryStore
from conduit_py.store.postgres.store import PostgresStore
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.testing.services import PostgresServer

PassTime = Callable[[float], Awaitable[None]]


class Clock:
    """Real time, and as much more as a test wants."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    async def pass_time(self, seconds: float) -> None:
        self.ahead += seconds
        await trio.lowlevel.checkpoint()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "forwarded"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    if request.param == "forwarded":
        async with _forward_to(MemoryStore(clock=clock)) as opened:
            yield opened
        return
    async with await _open(request, tmp_path, clock) as opened:
        yield opened


@asynccontextmanager
async def _forward_to(behind: Store) -> AsyncIterator[Store]:
    """A store as the process of a Spark pipeline has it: what it is asked goes to the server's over a socket."""
    here, there = trio.socket.socketpair()
    server = ChildLink(trio.SocketStream(here), TO_SERVER)
    child = ChildLink(trio.SocketStream(there), TO_CHILD)
    store = ChildStore(child)

    async def answer(call: StoreCall) -> None:
        await server.send(await answer_call(behind, call))

    async def serve() -> None:
        while isinstance(call := await server.receive(), StoreCall):
            nursery.start_soon(answer, call)

    async def listen() -> None:
        while isinstance(message := await child.receive(), StoreReply):
            store.answer(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(store.forward_saves)
        nursery.start_soon(listen)
        yield store
        nursery.cancel_scope.cancel()


@pytest.fixture
def pass_time(request: pytest.FixtureRequest, store: Store, clock: Clock) -> PassTime:
    """Has the store believe that this many seconds have passed."""

    async def age_rows(seconds: float) -> None:
        # The clock is that of the server, so what is in the tables is made older instead.
        connection: psycopg.Connection[Any] = request.getfixturevalue("database")
        for table, column in (("seen", "at"), ("leases", "expires"), ("shards", "updated")):
            connection.execute(f"UPDATE conduit_py.{table} SET {column} = {column} - %s", [seconds])
        await trio.lowlevel.checkpoint()

    return age_rows if isinstance(store, PostgresStore) else clock.pass_time


@pytest.fixture(scope="session")
def shared_database(postgres_server: PostgresServer) -> str:
    """The address of one database for all tests of a worker, which `database` makes empty again."""
    return postgres_server.create_database()


@pytest.fixture
def database(shared_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database of the PostgreSQL store; its tables are empty when the test begins."""
    with psycopg.connect(shared_database, autocommit=True) as connection:
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'conduit_py'"
        ).fetchall():
            if table not in ("format", "turns"):
                connection.execute(f"DELETE FROM conduit_py.{table}")
        yield connection


async def _open(request: pytest.FixtureRequest, directory: Path, clock: Clock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock=clock)
    if request.param == "sqlite":
        return SqliteStore(StateDatabase.open(directory / "state"), clock)
    request.getfixturevalue("database")
    return await PostgresStore.open(request.getfixturevalue("shared_database"))
