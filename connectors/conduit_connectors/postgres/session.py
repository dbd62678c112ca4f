"""DatabaseSession: a connection to PostgreSQL that waits in trio, for statements and for the replication stream."""

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import psycopg
import trio
from psycopg import pq
from psycopg.conninfo import make_conninfo

from conduit_connectors.postgres.column_values import SESSION_SETTINGS
from conduit_connectors.postgres.database import connection_error, one_line, parse_url
from conduit_py.sdk import TransientError

_CONNECT_SECONDS = "10"


class QueryResult(msgspec.Struct, frozen=True):
    """Rows in PostgreSQL's text form, with the name, the type and the modifier of the type of each column."""

    columns: list[tuple[str, int, int]]
    rows: list[tuple[bytes | None, ...]]


class StatementFailed(Exception):
    """The server refused a statement; `sqlstate` is its reason."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(one_line(error))
        self.sqlstate = error.sqlstate or ""


class DatabaseSession:
    """One connection, used by one task at a time. Values are text, written with SESSION_SETTINGS.

    Raises TransientError if the connection is lost, and StatementFailed if the server refuses a statement.
    """

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, url: str, **parameters: Any) -> "DatabaseSession":
        """Connect and prepare the session. FatalError if the server refuses the user."""
        defaults = {"application_name": "conduit-py", "connect_timeout": _CONNECT_SECONDS}
        # Replication ignores the settings of a pooler, so these must be ours.
        settings: dict[str, Any] = {**defaults, **parse_url(url), **parameters, "client_encoding": "UTF8"}
        target = make_conninfo(**settings).encode()
        # In a thread: libpq looks up the name of the host without asking the event loop.
        connection = await trio.to_thread.run_sync(pq.PGconn.connect, target)
        if connection.status != pq.ConnStatus.OK:
            message = connection.get_error_message()
            connection.finish()
            raise connection_error(psycopg.OperationalError(message))
        connection.nonblocking = 1
        session = cls(connection)
        try:
            for name, value in SESSION_SETTINGS.items():
                await session.run(f"SET {name} = '{value}'")
        except BaseException:
            session.close()
            raise
        return session

    @property
    def server_version(self) -> int:
        return self._connection.server_version

    async def run(self, statement: str, parameters: Sequence[str | bytes | None] | None = None) -> QueryResult:
        """Run one statement. Without parameters it goes by the simple protocol, as replication commands must.

        With an empty list of parameters the server refuses a text of several statements.
        """
        try:
            if parameters is None:
                self._connection.send_query(statement.encode())
            else:
                values = [value.encode() if isinstance(value, str) else value for value in parameters]
                self._connection.send_query_params(statement.encode(), values)
            await self._flush()
            return _rows(await self._result())
        except psycopg.Error as error:
            self._fail(error)

    async def start_copy(self, statement: str) -> None:
        """Run a statement that starts a stream in both directions."""
        try:
            self._connection.send_query(statement.encode())
            await self._flush()
            await self._wait_for_result()
            result = self._connection.get_result()
            if result is None or result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("no answer")
        except psycopg.Error as error:
            self._fail(error)

    def take_data(self) -> bytes | None:
        """Return the next piece of the stream if it is here already. Raises StatementFailed if the stream ended."""
        try:
            size, data = self._connection.get_copy_data(1)
            if size == 0:
                # The client library reads some kilobytes at a time. More may be here, and need no wait.
                self._connection.consume_input()
                size, data = self._connection.get_copy_data(1)
            if size > 0:
                return bytes(data)
            if size == 0:
                return None
            result = self._connection.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
            raise psycopg.OperationalError("the server ended the stream")
        except psycopg.Error as error:
            self._fail(error)

    async def wait(self) -> None:
        """Wait until more of the stream may be here."""
        try:
            await trio.lowlevel.wait_readable(self._connection.socket)
            self._connection.consume_input()
        except psycopg.Error as error:
            self._fail(error)

    async def send(self, data: bytes) -> None:
        """Send a piece of the stream."""
        try:
            self._connection.put_copy_data(data)
            await self._flush()
        except psycopg.Error as error:
            self._fail(error)

    async def end_copy(self) -> None:
        """End the stream, and wait until the server has ended it too."""
        try:
            self._connection.put_copy_end()
            await self._flush()
            while (size := self._connection.get_copy_data(1)[0]) >= 0:
                if size == 0:
                    await self.wait()
            await self._result()
        except psycopg.Error as error:
            self._fail(error)

    def close(self) -> None:
        self._connection.finish()

    async def _result(self) -> pq.abc.PGresult:
        """Read all results of a statement and return the last one. Raises the error of the first that failed."""
        last, failed = None, None
        while True:
            await self._wait_for_result()
            result = self._connection.get_result()
            if result is None:
                break
            last = result
            if result.status == pq.ExecStatus.FATAL_ERROR and failed is None:
                failed = psycopg.errors.error_from_result(result)
        if failed is not None or last is None:
            raise failed or psycopg.OperationalError("the server sent no answer")
        return last

    async def _wait_for_result(self) -> None:
        while self._connection.is_busy():
            await trio.lowlevel.wait_readable(self._connection.socket)
            self._connection.consume_input()

    async def _flush(self) -> None:
        while self._connection.flush():
            await trio.lowlevel.wait_writable(self._connection.socket)

    def _fail(self, error: psycopg.Error) -> NoReturn:
        state = error.sqlstate or ""
        # 08P01 is what the server says of a statement with parameters that it was not given. The connection is well.
        closing = state.startswith(("08", "57P")) and state != "08P01"
        lost = self._connection.status != pq.ConnStatus.OK or not state or closing
        if lost:
            raise TransientError(
                f"the connection to PostgreSQL is lost: {one_line(error)}", suggestion="check that the server runs"
            ) from error
        if _PASSING.match(state):
            raise TransientError(f"PostgreSQL: {one_line(error)}", suggestion="check the load of the server") from error
        raise StatementFailed(error) from error


_PASSING = re.compile("57|53|40|55P03")
"""SQLSTATEs of a server without room, of time limits and of locks: it may help to try again."""


def _rows(result: pq.abc.PGresult) -> QueryResult:
    columns = [((result.fname(at) or b"").decode(), result.ftype(at), result.fmod(at)) for at in range(result.nfields)]
    width = range(len(columns))
    return QueryResult(columns, [tuple(result.get_value(row, at) for at in width) for row in range(result.ntuples)])


def quote_name(name: str) -> str:
    """Return a name as it is written in a statement."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as it is written in a statement of the replication protocol, which takes no parameters."""
    return "'" + text.replace("'", "''") + "'"


async def probe_server(url: str) -> str:
    """Connect, and return the version of the server."""
    session = await DatabaseSession.connect(url)
    try:
        return f"PostgreSQL {session.server_version // 10000}"
    finally:
        session.close()
