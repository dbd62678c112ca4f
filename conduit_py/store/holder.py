"""Holder: the right to run a pipeline, for as long as a connection to PostgreSQL lasts."""

import os
import socket
from types import TracebackType

import psycopg
import trio

from conduit_py.errors import RunElsewhere
from conduit_py.store.postgres_pool import Connection, PostgresPool
from conduit_py.store.postgres_schema import LOCK


class Holder:
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
