"""DatabaseStatements: runs statements on a connection to MariaDB, in threads, so that the event loop goes on."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pymysql
import trio

from conduit_connectors.mysql.address import connect, connection_error, error_code, is_lost, one_line
from conduit_py.sdk import TransientError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_SETTINGS = (
    # Without these, the text of a value would depend on the settings of the server and the user.
    "SET time_zone = '+00:00'",
    "SET sql_mode = ''",
    # At a lower level a transaction has no consistent snapshot.
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET max_statement_time = 0",
    # Nothing is asked for hours while changes stream.
    "SET wait_timeout = 31536000",
)


class StatementDenied(Exception):
    """The server refuses a statement. `code` is its number of the error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class DatabaseStatements:
    """A connection for statements. Values are the text that the server sends, or bytes."""

    def __init__(self, connection: "pymysql.Connection[Any]") -> None:
        self._connection = connection
        self._busy = threading.Lock()

    @classmethod
    async def connect(cls, url: str) -> "DatabaseStatements":
        def open_connection() -> "pymysql.Connection[Any]":
            connection = connect(url)
            try:
                with connection.cursor() as cursor:
                    for setting in _SETTINGS:
                        cursor.execute(setting)
            except (pymysql.Error, OSError) as error:
                raise connection_error(error) from error
            return connection

        return cls(await trio.to_thread.run_sync(open_connection, abandon_on_cancel=True))

    async def run(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement. Raises StatementDenied, or TransientError if the connection is lost."""
        return await self.run_all(lambda: self.execute(sql, parameters))

    async def run_all(self, work: Callable[[], T]) -> T:
        """Run a function that calls `execute`, in a thread."""

        def with_lock() -> T:
            # A call that was cancelled still runs, and its answers must not be taken for those of the next.
            with self._busy:
                return work()

        return await trio.to_thread.run_sync(with_lock, abandon_on_cancel=True)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement in the thread of the caller."""
        try:
            with self._connection.cursor() as cursor:
                # Without parameters a percent sign is one.
                cursor.execute(sql, tuple(parameters) if parameters else None)
                return list(cursor.fetchall())
        except (pymysql.Error, OSError, AttributeError) as error:
            # The library has an AttributeError for a connection that is closed meanwhile.
            if is_lost(error) or isinstance(error, AttributeError):
                raise TransientError(
                    f"MariaDB: {one_line(error)}", suggestion="check the server and the connection to it"
                ) from error
            raise StatementDenied(error_code(error), one_line(error)) from error

    def escape(self, text: str) -> str:
        """Return the literal of SQL for a text."""
        return str(self._connection.escape(text))

    def close(self) -> None:
        shut_down(self._connection)


def shut_down(connection: "pymysql.Connection[Any]") -> None:
    """Close a connection at once, and end the call that a thread waits in."""
    inner = getattr(connection, "_sock", None)
    if inner is not None:
        with suppress(OSError):
            inner.shutdown(socket.SHUT_RDWR)
    with suppress(pymysql.Error, OSError):
        connection._force_close()


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
