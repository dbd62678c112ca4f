"""PostgresStore: a store in PostgreSQL, which several servers may share.

Its PostgresPool has a few connections to the database, each used by one thread at a time.
"""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conduit_py import crash_point
from conduit_py.errors import EnvironmentUnfit, RunElsewhere, StateFailed, describe
from conduit_py.store.dead_letter_store import DeadLetterStore, SqlLetters
from conduit_py.store.postgres.tables import LOCK, SCHEMA, PostgresSession, PostgresTables, prepare
from conduit_py.store.store import Kind, Store, StoredEntry

T = TypeVar("T")
Connection: TypeAlias = "psycopg.Connection[Any]"

_SIZE = 8
_TRIES = 5
_OPTIONS: dict[str, str | int] = {
    # A server that vanished without closing its connections is detected within half a minute.
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "conduit-py",
}


class PostgresPool:
    """Runs work in transactions. A caller that is cancelled leaves at once; its transaction goes on.

    A transaction that the server rolled back because of a deadlock is run again. One whose connection broke after
    it began is not: it may have been committed.
    """

    def __init__(self, dsn: str) -> None:
        self.place = place(dsn)
        self._dsn = make_conninfo(
            dsn, **{name: value for name, value in _OPTIONS.items() if name not in _options_in(dsn)}
        )
        self._limiter = trio.CapacityLimiter(_SIZE)
        self._idle: deque[Connection] = deque()
        self._closing = False

    async def prepare(self) -> None:
        """Connect once and make the tables; raises EnvironmentUnfit when the database cannot be used."""
        await trio.to_thread.run_sync(self._prepare)

    async def transact(self, work: Callable[[Connection], T], *, durably: bool = True) -> T:
        """Run `work` in one transaction; its changes are durable on return."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise StateFailed(f"{self.place} is closed")
        # Abandoned on cancellation: a server that never answers must not keep a run from ending.
        return await trio.to_thread.run_sync(
            self._transact, work, durably, limiter=self._limiter, abandon_on_cancel=True
        )

    def connect(self) -> Connection:
        """Open a connection that belongs to the caller. Blocks."""
        try:
            connection = psycopg.connect(self._dsn, autocommit=True)
            connection.execute(f"SET search_path = {SCHEMA}")
            # With `off` a commit returns before it is on the server's disk.
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit = on")
        except psycopg.Error as error:
            raise self.failure("could not be reached", error) from error
        return connection

    async def close(self) -> None:
        """Wait for the transactions that are running, then close all connections."""
        with trio.CancelScope(shield=True):
            self._closing = True
            # Abandoned transactions hold their place in the limiter: with all places taken none is left.
            held = [object() for _ in range(_SIZE)]
            for each in held:
                await self._limiter.acquire_on_behalf_of(each)
            while self._idle:
                await trio.to_thread.run_sync(self._idle.pop().close)
            for each in held:
                self._limiter.release_on_behalf_of(each)

    def failure(self, what: str, error: psycopg.Error) -> StateFailed:
        return StateFailed(f"{self.place} {what}: {_first_line(error)}", suggestion="check that the server is running")

    # Everything below runs in threads.

    def _prepare(self) -> None:
        try:
            with psycopg.connect(self._dsn) as connection:
                prepare(connection, self.place)
        except psycopg.errors.InsufficientPrivilege as error:
            raise EnvironmentUnfit(
                f"{self.place} cannot be used: {_first_line(error)}",
                suggestion=f"let the user create the schema {SCHEMA}, or create it and make the user its owner",
            ) from error
        except psycopg.Error as error:
            raise EnvironmentUnfit(
                f"{self.place} cannot be used: {_first_line(error)}",
                suggestion="check the address and the user in --state, and that the server is running",
            ) from error
        self._idle.append(self.connect())

    def _transact(self, work: Callable[[Connection], T], durably: bool) -> T:
        for attempt in range(_TRIES):
            connection = self._begin()
            try:
                return self._attempt(connection, work, durably)
            # After these the server has rolled back for certain. After any other error it may have committed.
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if attempt == _TRIES - 1:
                    raise self.failure("could not be written", error) from error
            except psycopg.Error as error:
                raise self.failure("could not be written", error) from error
            finally:
                self._put_back(connection)
        raise AssertionError("unreachable")

    def _begin(self) -> Connection:
        """A connection in a transaction. One that broke while it was idle is replaced: it has done nothing yet."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                # Another thread took the last one between the check and the pop.
                break
            try:
                connection.execute("BEGIN")
            except psycopg.OperationalError:
                connection.close()
            else:
                return connection
        connection = self.connect()
        connection.execute("BEGIN")
        return connection

    def _attempt(self, connection: Connection, work: Callable[[Connection], T], durably: bool) -> T:
        if durably:
            crash_point.reach("store.before_commit")
        try:
            result = work(connection)
        except BaseException:
            if not connection.broken:
                connection.execute("ROLLBACK")
            raise
        if durably:
            crash_point.reach("store.within_commit")
        connection.execute("COMMIT")
        if durably:
            crash_point.reach("store.after_commit")
        return result

    def _put_back(self, connection: Connection) -> None:
        # A connection inside a transaction would commit the rest of this work with that of its next user.
        if connection.closed or connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            connection.close()
        else:
            self._idle.append(connection)


def place(dsn: str) -> str:
    """The database as error messages show it, without user and password."""
    parts = conninfo_to_dict(dsn)
    host = f"{parts.get('host') or 'localhost'}:{parts.get('port') or 5432}"
    return f"postgresql://{host}/{parts.get('dbname') or parts.get('user') or ''}"


def _options_in(dsn: str) -> set[str]:
    return set(conninfo_to_dict(dsn))


def _first_line(error: psycopg.Error) -> str:
    return describe(error).splitlines()[0]


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
