"""PostgresStore: a store in PostgreSQL, which several servers may share."""

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar

import psycopg
import trio

from conduit_py.errors import EnvironmentUnfit, RunElsewhere
from conduit_py.store.dead_letter_store import DeadLetterStore, SqlLetters
from conduit_py.store.postgres.pool import Connection, PostgresPool
from conduit_py.store.postgres.tables import LOCK, PostgresSession, PostgresTables
from conduit_py.store.store import Kind, Store, StoredEntry

T = TypeVar("T")


class PostgresStore(Store):
    """As durable as the server is configured to be, and at least on its own disk.

    `run_lock` lets a pipeline run in one server at a time. Claims fence each other inside the commit, in whichever
    server they are. A broken connection fails the transaction that used it and no other.
    """

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self.letters = PostgresDeadLetterStore(pool)

    @classmethod
    async def open(cls, dsn: str) -> "PostgresStore":
        """Open the store in the database at this address, and create its tables if they are missing.

        Raises EnvironmentUnfit when it cannot be used: not reachable, not allowed, or of a newer version.
        """
        try:
            pool = PostgresPool(dsn)
        except psycopg.ProgrammingError as error:
            raise EnvironmentUnfit(
                f"--state is not an address of a PostgreSQL database: {str(error).strip()}",
                suggestion="write it as postgresql://user@host:5432/database",
            ) from error
        await pool.prepare()
        return cls(pool)

    @asynccontextmanager
    async def run_lock(self, pipeline: str) -> AsyncIterator[None]:
        async with RunLock(self._pool, pipeline):
            yield

    async def transact(self, work: Callable[[PostgresTables], T]) -> T:
        return await self._pool.transact(lambda connection: work(_tables(connection)))

    async def look(self, work: Callable[[PostgresTables], T]) -> T:
        return await self._pool.transact(lambda connection: work(_tables(connection)), durably=False)

    async def pipelines(self) -> list[str]:
        return await self.look(PostgresTables.pipelines)

    async def close(self) -> None:
        await self._pool.close()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        return await self.look(lambda tables: tables.entries(pipeline, kind))

    async def _save(self, rows: list[StoredEntry]) -> None:
        await self.transact(lambda tables: tables.save_entries(rows))

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self.transact(lambda tables: tables.forget_entries(pipeline, kind, node))


def _tables(connection: Connection) -> PostgresTables:
    return PostgresTables(PostgresSession(connection))


class PostgresDeadLetterStore(DeadLetterStore):
    """Letters that all servers with this database share.

    A pipeline that runs in another server replays the letters that were queued here when its next run begins.
    """

    def __init__(self, pool: PostgresPool) -> None:
        super().__init__()
        self._pool = pool

    async def close(self) -> None:
        """Nothing to release: the connections belong to the store."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _look(self, work: Callable[[SqlLetters], T]) -> T:
        return await self._pool.transact(lambda connection: work(_letters(connection)), durably=False)

    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        return await self._pool.transact(lambda connection: work(_letters(connection)))


def _letters(connection: Connection) -> SqlLetters:
    session = PostgresSession(connection)
    # Turns are counted in the database, for all servers.
    return SqlLetters(session, lambda: int(session.value("UPDATE turns SET turn = turn + 1 RETURNING turn")))


class RunLock:
    """Held within the block; raises RunElsewhere, naming the other, when another server holds it.

    PostgreSQL releases it when the connection ends, so a killed process holds nothing. It only avoids doing work
    twice. Correctness rests on the fence of a claim, and on saving a position only after its record was delivered.
    """

    def __init__(self, pool: PostgresPool, pipeline: str) -> None:
        self._pool = pool
        self._pipeline = pipeline
        self._connection: Connection | None = None

    async def __aenter__(self) -> None:
        # Not abandoned on cancellation: nobody would close the connection, and the lock would stay held.
        self._connection = await trio.to_thread.run_sync(self._acquire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._connection is not None
        # Closing is what releases the lock, so a cancelled run must do it too.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._connection.close)

    def _acquire(self) -> Connection:
        # Not one of the pool: the lock lasts as long as its connection, and those are shared.
        connection = self._pool.connect()
        try:
            if not self._try_lock(connection):
                row = connection.execute("SELECT holder FROM holders WHERE pipeline = %s", [self._pipeline]).fetchone()
                raise RunElsewhere(self._pipeline, row[0] if row else "another process")
            # Only for the error message of others. The advisory lock decides who runs.
            connection.execute(
                "INSERT INTO holders VALUES (%s, %s) ON CONFLICT (pipeline) DO UPDATE SET holder = excluded.holder",
                [self._pipeline, f"process {os.getpid()} on {socket.gethostname()}"],
            )
        except psycopg.Error as error:
            connection.close()
            raise self._pool.failure("could not lock a pipeline", error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _try_lock(self, connection: Connection) -> bool:
        # Two pipelines whose names have the same hash would exclude each other: one in four billion.
        row = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [LOCK, self._pipeline]).fetchone()
        return row == (True,)
