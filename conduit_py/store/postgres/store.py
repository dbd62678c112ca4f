"""PostgresStore: a store in PostgreSQL, which several servers may share."""

import os
import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar, cast

import psycopg
import trio

from conduit_py.errors import EnvironmentUnfit, RunElsewhere
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.letter_table import LetterTable
from conduit_py.store.postgres.pool import Connection, PostgresPool
from conduit_py.store.postgres.schema import LOCK
from conduit_py.store.postgres.tables import PostgresTables
from conduit_py.store.store import Kind, Store, StoredEntry
from conduit_py.store.tables import Tables

T = TypeVar("T")


class PostgresStore(Store):
    """Durable as far as the server is told to be, never less than its own disk.

    A pipeline runs in one server at a time: `held` says who may. Claims fence each other inside the
    commit, in whichever server they are. A broken connection fails what was under way and nothing else.
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
    async def held(self, pipeline: str) -> AsyncIterator[None]:
        async with RunLock(self._pool, pipeline):
            yield

    async def transact(self, work: Callable[[Tables], T]) -> T:
        return await self._pool.transact(lambda connection: work(PostgresTables(connection)))

    async def look(self, work: Callable[[Tables], T]) -> T:
        return await self._pool.transact(lambda connection: work(PostgresTables(connection)), durably=False)

    async def pipelines(self) -> list[str]:
        rows = await self._rows("SELECT DISTINCT pipeline FROM entries ORDER BY pipeline")
        return [pipeline for (pipeline,) in rows]

    async def close(self) -> None:
        await self._pool.close()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        sql = "SELECT node, value FROM entries WHERE pipeline = %s AND kind = %s ORDER BY node"
        return await self._rows(sql, pipeline, kind)

    async def _save(self, rows: list[StoredEntry]) -> None:
        def save(connection: Connection) -> None:
            # In their order, so that two servers that save the same ones do not wait for each other.
            columns = zip(*sorted(rows), strict=True)
            connection.execute(_UPSERT, [list(column) for column in columns])

        await self._pool.transact(save)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        sql = "DELETE FROM entries WHERE pipeline = %s AND kind = %s AND node = coalesce(%s, node)"
        await self._pool.transact(lambda connection: connection.execute(sql, [pipeline, kind, node]) and None)

    async def _rows(self, sql: str, *parameters: str) -> list[Any]:
        return await self._pool.transact(
            lambda connection: connection.execute(sql, parameters).fetchall(), durably=False
        )


_UPSERT = (
    "INSERT INTO entries (pipeline, kind, node, value)"
    " SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bytea[])"
    " ON CONFLICT (pipeline, kind, node) DO UPDATE SET value = excluded.value"
)


R = TypeVar("R")


class PostgresDeadLetterStore(DeadLetterStore):
    """Letters that every server sees which shares the database.

    A pipeline that runs in another server sends letters that were queued here when its next run begins.
    """

    def __init__(self, pool: PostgresPool) -> None:
        super().__init__()
        self._pool = pool

    async def close(self) -> None:
        """Nothing to let go of: the connections are the store's."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _look(self, work: Callable[[LetterTable], R]) -> R:
        return await self._pool.transact(lambda connection: work(_Table(connection)), durably=False)

    async def _change(self, work: Callable[[LetterTable], R]) -> R:
        return await self._pool.transact(lambda connection: work(_Table(connection)))


class _Table(LetterTable):
    """The table for one transaction. Turns are counted in the database, for all servers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = cast(sqlite3.Connection, _Translator(connection))

    @property
    def _turn(self) -> int:
        turn: int = self._one("SELECT turn FROM turns FOR UPDATE")
        return turn

    @_turn.setter
    def _turn(self, turn: int) -> None:
        self._connection.execute("UPDATE turns SET turn = ?", (turn,))


class _Translator:
    """A connection that takes the statements of LetterTable, which are written for SQLite."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> Any:
        for theirs, ours in _WORDS:
            sql = sql.replace(theirs, ours)
        sql = re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql).replace("?", "%s")
        if isinstance(values, Mapping):
            # Text in PostgreSQL has no zero byte; what is shown in its place is in the letter as it was.
            values = {name: v.replace("\0", "␀") if isinstance(v, str) else v for name, v in values.items()}
        return self._connection.execute(sql, values)


_WORDS = (
    ("(SELECT value FROM json_each(?))", "(SELECT json_array_elements_text(?::json))"),
    ("FROM json_each(nodes)", "FROM json_array_elements_text(nodes::json) AS each (value)"),
    ("instr(", "strpos("),
    ("sum(bytes)", "sum(bytes)::bigint"),
    ("WHERE 1", "WHERE TRUE"),
    ("LIMIT -1 OFFSET", "OFFSET"),
)


class RunLock:
    """Held within the block; raises RunElsewhere, naming the other, when another server holds it.

    The server lets go of it when the connection ends, so a process that was killed holds nothing. It is a
    courtesy that keeps work from being done twice; what keeps state from being mixed up is the fence of
    a claim, and that a position is saved only after its record was delivered.
    """

    def __init__(self, pool: PostgresPool, pipeline: str) -> None:
        self._pool = pool
        self._pipeline = pipeline
        self._connection: Connection | None = None

    async def __aenter__(self) -> None:
        self._connection = await trio.to_thread.run_sync(self._acquire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._connection is not None
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._connection.close)

    def _acquire(self) -> Connection:
        connection = self._pool.connect()
        try:
            if not self._locked(connection):
                row = connection.execute("SELECT holder FROM holders WHERE pipeline = %s", [self._pipeline]).fetchone()
                raise RunElsewhere(self._pipeline, row[0] if row else "another process")
            connection.execute(
                "INSERT INTO holders VALUES (%s, %s) ON CONFLICT (pipeline) DO UPDATE SET holder = excluded.holder",
                [self._pipeline, f"process {os.getpid()} on {socket.gethostname()}"],
            )
        except psycopg.Error as error:
            connection.close()
            raise self._pool.failure("could not be asked who runs what", error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _locked(self, connection: Connection) -> bool:
        # Two pipelines whose names have the same hash would exclude each other: one in four billion.
        row = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [LOCK, self._pipeline]).fetchone()
        return row == (True,)
