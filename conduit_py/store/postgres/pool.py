"""PostgresPool: a few connections to one database, each used by one thread at a time."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conduit_py import crash_point
from conduit_py.errors import EnvironmentUnfit, StateFailed, describe
from conduit_py.store.postgres.tables import SCHEMA, prepare

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
