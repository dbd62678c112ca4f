"""PostgresDatabase: a connection to PostgreSQL for the SQL destinations, with COPY."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import Literal

from conduit_connectors.sql.column_fit import ColumnType, Family
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_py.sdk import FatalError, TransientError

_REFUSED_USER = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|role \S+ (does not exist|is not permitted to log in)"
    r"|replication role to start walsender|permission denied to start WAL sender"
)
"""By their text: an error of a connection that was not made has no SQLSTATE."""


class PostgresDatabase(SqlDatabase):
    """A connection on which the library begins and commits nothing by itself."""

    lock_seconds: float = 10
    """How long a change of a table may wait for others who use it."""
    mark: ClassVar[str] = "%s"
    types: ClassVar[Mapping[str, str]] = {
        "boolean": "BOOLEAN",
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "decimal": "NUMERIC",
        "bytes": "BYTEA",
        "datetime": "TIMESTAMPTZ",
        "date": "DATE",
        "json": "JSONB",
        "uuid": "UUID",
        "text": "TEXT",
    }
    wider_types: ClassVar[Mapping[str, str]] = {
        "int32": "integer",
        "int64": "bigint",
        "float64": "double precision",
        "decimal": "numeric",
        "text": "text",
    }
    alters: ClassVar[bool] = True

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        """Take over a connection that commits every statement."""
        self._connection = connection

    @classmethod
    def at(cls, url: str) -> "PostgresDatabase":
        """Connect to an address."""
        parse_url(url)
        try:
            return cls(psycopg.connect(url, autocommit=True, application_name="conduit-py"))
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._connection.execute(sql.encode(), tuple(parameters)).rowcount
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise _translate(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(sql.encode(), rows)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise _translate(error) from error

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql.encode(), tuple(parameters)).fetchall()
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise _translate(error) from error

    def copy(self, sql: str, text: bytes) -> None:
        """Run a statement that takes its rows from this text."""
        try:
            with self._connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
                copy.write(text)
        except psycopg.Error as error:
            raise _translate(error) from error

    def columns(self, table: str) -> list[str]:
        return list(self.column_types(table))

    def column_types(self, table: str) -> dict[str, ColumnType]:
        sql = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return {name: parse_type(text) for name, text in self.rows(sql, (super().quoted(table),))}

    def plain_types(self, table: str) -> dict[str, str]:
        """Return the type of each column for a cast of text to it.

        Without its length: an explicit cast cuts what is too long, and the assignment to the column refuses it.
        """
        sql = (
            "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        return {name: text.replace("%", "%%") for name, text in self.rows(sql, (super().quoted(table),))}

    def literal(self, text: str) -> str:
        """Return a text as it is written in a statement that takes no parameters."""
        return Literal(text).as_string(self._connection).replace("%", "%%")

    def accepts(self, value: Any, column: ColumnType) -> bool:
        self.set_savepoint("conduit_probe")
        try:
            self.rows(f"SELECT CAST(%s AS {column.name.replace('%', '%%')})", (value,))
        except (NotThisRow, StatementRefused) as error:
            if isinstance(error.__cause__, UnicodeEncodeError):
                # No column of any type holds it.
                raise
            return False
        finally:
            self.roll_back_to("conduit_probe")
            self.release_savepoint("conduit_probe")
        return True

    def add_column(self, table: str, name: str, kind: str) -> None:
        # Another pipeline may have added it while this one waited for the lock of the table.
        column = f"{self.column(name)} {self.type_of(kind)}"
        self._alter(f"ALTER TABLE {self.quoted(table)} ADD COLUMN IF NOT EXISTS {column}")

    def change_type(self, table: str, name: str, column: ColumnType, family: str) -> None:
        wider, named = self.wider_types[family], self.column(name)
        # By way of text: a float that is converted to a decimal keeps 15 digits only.
        using = f"{named}::text" if family == "text" else f"{named}::text::{wider}"
        self._alter(f"ALTER TABLE {self.quoted(table)} ALTER COLUMN {named} TYPE {wider} USING {using}")

    def _alter(self, sql: str) -> None:
        # Readers and writers that come later wait behind one that waits for the lock of the whole table.
        self.run(f"SET LOCAL lock_timeout = '{self.lock_seconds}s'")
        self.run(sql)
        self.run("SET LOCAL lock_timeout TO DEFAULT")

    def unique_count(self, table: str) -> int:
        sql = "SELECT count(*) FROM pg_index WHERE indrelid = to_regclass(%s) AND (indisunique OR indisexclusion)"
        [(count,)] = self.rows(sql, (super().quoted(table),))
        return int(count)

    def quoted(self, name: str) -> str:
        return super().quoted(name).replace("%", "%%")

    def column(self, name: str) -> str:
        # In a statement with parameters a percent sign begins a parameter.
        return super().column(name).replace("%", "%%")

    def close(self) -> None:
        self._connection.close()


_TYPE = re.compile(r"([a-z ]+)(?:\((\d+)(?:,(-?\d+))?\))?")
_FAMILIES: Mapping[str, Family] = {
    "boolean": "boolean",
    "smallint": "int16",
    "integer": "int32",
    "bigint": "int64",
    "real": "float32",
    "double precision": "float64",
    "numeric": "decimal",
    "text": "text",
    "character varying": "text",
    "character": "text",
    "bytea": "bytes",
    "json": "json",
    "jsonb": "json",
}


def parse_type(text: str) -> ColumnType:
    """Return the type that PostgreSQL writes so."""
    found = _TYPE.fullmatch(text)
    family = _FAMILIES.get(found[1]) if found else None
    if found is None or family is None:
        return ColumnType(text, "other")
    return ColumnType(text, family, int(found[2]) if found[2] else None, int(found[3] or 0))


def parse_url(url: str) -> dict[str, Any]:
    """Return the parts of an address. Raises FatalError if it is none, and never quotes it: it has a password."""
    try:
        parts = conninfo_to_dict(url)
        # The rest of a password with a character of URLs in it, which the library would quote in its errors.
        readable = "@" not in str(parts.get("host", "")) and re.fullmatch(r"[\d,]*", str(parts.get("port", "")))
    except psycopg.ProgrammingError:
        readable = None
    if not readable:
        raise FatalError(
            "`url` is no address of a database",
            suggestion="write it as postgresql://user:password@host:port/name, and special characters of the"
            " password as %40 for @, %3A for :, %2F for / and %25 for %",
        )
    return parts


def connection_error(error: psycopg.OperationalError) -> FatalError | TransientError:
    """Return what it means that no connection could be made."""
    if _REFUSED_USER.search(str(error)):
        # Fatal: tried again for ever, a wrong password can lock the account.
        advice = "check the user and the password in `url`, and who may connect from this machine"
        return FatalError(f"PostgreSQL refuses the user: {one_line(error)}", suggestion=advice)
    return TransientError(
        f"cannot connect to PostgreSQL: {one_line(error)}", suggestion="check the url and that the server runs"
    )


_OF_THE_ROW = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.DatatypeMismatch,
    # Fields of the record that a table cannot have as columns, or that a statement must not set.
    psycopg.errors.DuplicateColumn,
    psycopg.errors.InvalidColumnDefinition,
    psycopg.errors.InvalidTableDefinition,
    psycopg.errors.GeneratedAlways,
)
_LIMIT_EXCEEDED = "54"
"""The class of errors for too many columns, and values too long for an index: the record is the cause."""
_OF_THE_STATEMENT = (
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    psycopg.errors.ObjectNotInPrerequisiteState,  # a view that cannot be written
)


def _translate(error: psycopg.Error | UnicodeEncodeError) -> Exception:
    if isinstance(error, UnicodeEncodeError):
        return NotThisRow("has half of a surrogate pair in a text, which no SQL text can carry")
    if isinstance(error, _OF_THE_ROW) or (error.sqlstate or "").startswith(_LIMIT_EXCEEDED):
        return NotThisRow(one_line(error))
    suggestion = "check the table and the rights of the user"
    if isinstance(error, _OF_THE_STATEMENT) and error.sqlstate:
        return StatementRefused(f"PostgreSQL: {one_line(error)}", suggestion=suggestion)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        suggestion = "a long transaction holds the table: end it, or alter the table yourself"
        return TransientError(f"PostgreSQL: {one_line(error)}", suggestion=suggestion)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return TransientError(f"PostgreSQL: {one_line(error)}", suggestion="check the server and the connection to it")
    return FatalError(f"PostgreSQL: {one_line(error)}", suggestion=suggestion)


def one_line(error: psycopg.Error) -> str:
    """Return the text of an error of the server in one line."""
    return " ".join(str(error).split()) or type(error).__name__
