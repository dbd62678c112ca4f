"""PostgresStore: a store in PostgreSQL, which several servers may share."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg

from conduit_py.errors import EnvironmentUnfit
from conduit_py.store.holder import Holder
from conduit_py.store.postgres_letters import PostgresLetterBox
from conduit_py.store.postgres_pool import Connection, PostgresPool
from conduit_py.store.postgres_tables import PostgresTables
from conduit_py.store.store import Kind, Row, Store
from conduit_py.store.tables import Tables

T = TypeVar("T")


class PostgresStore(Store):
    """Durable as far as the server is told to be, never less than its own disk.

    A pipeline runs in one server at a time: `held` says who may. Claims fence each other inside the
    commit, in whichever server they are. A broken connection fails what was under way and nothing else.
    """

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self.letters = PostgresLetterBox(pool)

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
        async with Holder(self._pool, pipeline):
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

    async def _save(self, rows: list[Row]) -> None:
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
