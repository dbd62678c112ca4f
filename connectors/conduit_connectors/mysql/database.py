"""MySqlDatabase: a connection to MariaDB for the SQL destinations."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import pymysql

from conduit_connectors.mysql.address import connect, connection_error, error_code, found_rows, is_lost, one_line
from conduit_connectors.mysql.column_types import column_fit, parse_type
from conduit_connectors.mysql.session import quote_name
from conduit_connectors.sql.column_fit import ColumnType, Fit
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_connectors.sql.row import TableRow
from conduit_py.sdk import FatalError, TransientError

T = TypeVar("T")

_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
_KEY_BYTES_MAX = 3000
_BATCH_ROWS = 1_000
_BATCH_BYTES = 250_000
"""So small that the library makes one statement of a batch, even if every byte is escaped."""

_SETTINGS = (
    # Without these, MariaDB would store another value than the one that was given: cut, rounded, or a number for 0.
    "SET sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'",
    "SET time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET wait_timeout = 31536000",
)
_VALUE_CHANGED = frozenset({1263, 1264, 1265, 1292, 1364, 1366, 1406})
"""Warnings that say that a value is stored as another one."""


class MySqlDatabase(SqlDatabase):
    """A connection on which nothing is committed but by a statement. Tables are created on a second one.

    A statement that creates a table commits whatever the connection has under way, which would tear a transaction.
    """

    mark: ClassVar[str] = "%s"
    keep_existing: ClassVar[str] = "ON DUPLICATE KEY UPDATE owner = owner"
    key_type: ClassVar[str] = f"VARCHAR(255) {_TEXT}"
    types: ClassVar[Mapping[str, str]] = {
        "boolean": "BOOLEAN",
        "integer": "BIGINT",
        "real": "DOUBLE",
        "decimal": f"LONGTEXT {_TEXT}",
        "bytes": "LONGBLOB",
        "datetime": "DATETIME(6)",
        "date": "DATE",
        "json": "JSON",
        "uuid": "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
        "text": f"LONGTEXT {_TEXT}",
    }

    def __init__(self, make_connection: Callable[[], Any]) -> None:
        """Take what makes connections that commit every statement and count the rows that an update finds."""
        self._make_connection = make_connection
        self._connection = self._connect()
        self._keys: dict[str, list[tuple[str, ...]]] = {}

    @classmethod
    def at(cls, url: str) -> "MySqlDatabase":
        """Connect to an address."""
        return cls(lambda: connect(url, **found_rows()))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        def execute(cursor: Any) -> int:
            cursor.execute(sql, tuple(parameters))
            count = int(cursor.rowcount)
            self._check_warnings(cursor)
            return count

        return self._call(execute, sql)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for batch in _batches(rows):

            def execute(cursor: Any, batch: list[Sequence[Any]] = batch) -> None:
                cursor.executemany(sql, batch)
                self._check_warnings(cursor)

            self._call(execute, sql)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def execute(cursor: Any) -> list[tuple[Any, ...]]:
            cursor.execute(sql, tuple(parameters))
            return list(cursor.fetchall())

        return self._call(execute, sql)

    def columns(self, table: str) -> list[str]:
        return list(self.column_types(table))

    def column_types(self, table: str) -> dict[str, ColumnType]:
        database, name = _split(table)
        # Not DATABASE() if the table has one: a record names it, and it may be none at all.
        place = "TABLE_SCHEMA = %s" if database is not None else "TABLE_SCHEMA = DATABASE()"
        where = (name,) if database is None else (database, name)
        found = self.rows(
            f"SELECT ENGINE FROM information_schema.TABLES WHERE {place} AND TABLE_NAME = %s",
            where,
        )
        for [engine] in found:
            if engine is not None and str(engine).lower() not in _TRANSACTIONAL:
                raise StatementRefused(
                    f"the table {table!r} is of the engine {engine}, which has no transactions",
                    suggestion="ALTER TABLE … ENGINE = InnoDB",
                )
        listed = self.rows(
            f"SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE {place} AND TABLE_NAME = %s"
            " ORDER BY ORDINAL_POSITION",
            where,
        )
        self._keys.pop(table, None)
        return {str(column): parse_type(str(kind)) for column, kind in listed}

    def fit(self, kind: str, column: ColumnType) -> Fit | None:
        return column_fit(kind, column)

    def unique_count(self, table: str) -> int:
        return len(self._unique_keys(table))

    def create_table(self, row: TableRow) -> None:
        keys = {name: self._key_column(row, name) for name in row.keys}
        kinds = zip(row.columns, row.kinds, strict=True)
        columns = [f"{self.column(name)} {keys.get(name) or self.type_of(kind)}" for name, kind in kinds]
        if row.keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(self.column, row.keys))})")
        shape = f"({', '.join(columns)}) ENGINE = InnoDB"
        other = self._connect()
        try:
            sql = f"CREATE TABLE IF NOT EXISTS {self.quoted(row.table)} {shape}"
            self._call(lambda cursor: cursor.execute(sql, ()), sql, other)
        finally:
            other.close()

    def replacing(self, row: TableRow) -> str:
        keys = self._unique_keys(row.table)
        if not any(set(row.keys) == set(each) for each in keys):
            # MariaDB would add a second row with the same key.
            raise StatementRefused(
                f"the table {row.table!r} has no primary key or unique index over {', '.join(row.keys)}",
                suggestion="create one whose columns are NOT NULL",
            )
        others = [name for name in row.columns if name not in row.keys]
        changes = [f"{self.column(name)} = VALUES({self.column(name)})" for name in others]
        if len(keys) > 1 or not others:
            # A row that is found by another unique index is another row. It is left alone: NULL is refused.
            first = self.column(row.keys[0])
            same = " AND ".join(f"{self.column(name)} <=> VALUES({self.column(name)})" for name in row.keys)
            changes.insert(0, f"{first} = IF({same}, {first}, NULL)")
        return f"ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def quoted(self, name: str) -> str:
        return ".".join(self.column(part) for part in name.split("."))

    def column(self, name: str) -> str:
        # In a statement with parameters a percent sign begins a parameter.
        return quote_name(name).replace("%", "%%")

    def close(self) -> None:
        with suppress(pymysql.Error):
            self._connection.close()

    def _connect(self) -> Any:
        connection = self._make_connection()
        try:
            with connection.cursor() as cursor:
                for setting in _SETTINGS:
                    cursor.execute(setting)
        except (pymysql.Error, OSError) as error:
            raise connection_error(error) from error
        return connection

    def _call(self, execute: Callable[[Any], T], sql: str, connection: Any = None) -> T:
        try:
            with (connection or self._connection).cursor() as cursor:
                return execute(cursor)
        except (pymysql.Error, OSError, UnicodeEncodeError, AttributeError) as error:
            raise _translate(error, sql) from error

    def _check_warnings(self, cursor: Any) -> None:
        """Raise NotThisRow if the statement stored another value than the one that was given."""
        result = cursor._result
        if result is None or not result.warning_count:
            return
        # Invariant 12: a decimal that is rounded is a note to MariaDB, even in its strict mode.
        cursor.execute("SHOW WARNINGS")
        for _, code, message in cursor.fetchall():
            if int(code) in _VALUE_CHANGED:
                raise NotThisRow(" ".join(str(message).split()))

    def _unique_keys(self, table: str) -> list[tuple[str, ...]]:
        """Return the columns of each unique index. One that has the beginning of a column has no such columns."""
        if table not in self._keys:
            database, name = _split(table)
            place = "TABLE_SCHEMA = %s" if database is not None else "TABLE_SCHEMA = DATABASE()"
            found = self.rows(
                "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE FROM information_schema.STATISTICS"
                f" WHERE {place} AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX",
                (name,) if database is None else (database, name),
            )
            indexes: dict[str, list[str]] = {}
            for index, column, part, nullable in found:
                whole = part is None and nullable != "YES"
                indexes.setdefault(str(index), []).append(str(column) if whole else "")
            self._keys[table] = [tuple(columns) for columns in indexes.values()]
        return self._keys[table]

    def _key_column(self, row: TableRow, name: str) -> str:
        """Return the type of a column of the key: an index has no room for a text of any length."""
        kind = self.type_of(row.kinds[row.columns.index(name)])
        if kind.startswith(("LONGTEXT", "JSON")):
            return f"VARCHAR({_KEY_BYTES_MAX // 4 // len(row.keys)}) {_TEXT}"
        return f"VARBINARY({_KEY_BYTES_MAX // len(row.keys)})" if kind == "LONGBLOB" else kind


_TRANSACTIONAL = frozenset({"innodb", "rocksdb"})


def _split(table: str) -> tuple[str | None, str]:
    database, dot, name = table.rpartition(".")
    return (database if dot else None), name


def _batches(rows: Sequence[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    batch: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        length = sum(len(value) * 4 if isinstance(value, str | bytes) else 24 for value in row)
        if batch and (size + length > _BATCH_BYTES or len(batch) >= _BATCH_ROWS):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


_NULL_KEY = re.compile(r"Column '(.*)' cannot be null")
_OF_THE_STATEMENT = frozenset({1044, 1046, 1049, 1064, 1142, 1143, 1146, 1227, 1288, 1347, 1370, 1471, 1901, 1906})
_OF_THE_ROW = frozenset(
    # Names that no table or column can have, and rows that are too large for any.
    {1059, 1060, 1069, 1070, 1071, 1074, 1101, 1103, 1117, 1118, 1153, 1166, 1300, 1301, 2020}
)


def _translate(error: Exception, sql: str) -> Exception:
    if isinstance(error, UnicodeEncodeError):
        return NotThisRow("has half of a surrogate pair in a text, which no SQL text can carry")
    text, code = one_line(error), error_code(error)
    if isinstance(error, OSError | AttributeError) or is_lost(error):
        return TransientError(f"MariaDB: {text}", suggestion="check the server and the connection to it")
    found = _NULL_KEY.search(text)
    if found and f"{quote_name(found[1]).replace('%', '%%')} = IF(" in sql:
        return NotThisRow("another row has the same value in another unique index")
    if isinstance(error, pymysql.err.IntegrityError | pymysql.err.DataError) or code in _OF_THE_ROW:
        return NotThisRow(text)
    suggestion = "check the table and the rights of the user"
    if code in _OF_THE_STATEMENT or isinstance(error, pymysql.err.ProgrammingError | pymysql.err.NotSupportedError):
        return StatementRefused(f"MariaDB: {text}", suggestion=suggestion)
    if code in _VALUE_CHANGED or 1000 < code < 2000:
        # What is left names a value: a constraint, a trigger that signals, a geometry.
        return NotThisRow(text)
    return FatalError(f"MariaDB: {text}", suggestion=suggestion)
