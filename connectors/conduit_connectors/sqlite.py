"""The SQLite connector: writes rows into tables of a database file, and reads rows that are added to a table."""

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Required, TypedDict, Unpack

from pydantic import Field

from conduit_connectors.numbering import number_of, positions_of
from conduit_connectors.probe_path import probe_writable
from conduit_connectors.sql.column_fit import ColumnType, Family, text_of
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, TableArguments, TableOptions
from conduit_py import sdk
from conduit_py.sdk import Columns, EndOfSource, FatalError, NothingYet, Options, Payloads, TransientError, metadata

BUSY_SECONDS = 10.0


class DestinationOptions(TableOptions):
    """Options of the SQLite destination."""

    path: Path = Field(description="the database file; it is created when missing")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]


class Destination(SqlDestination[DestinationOptions]):
    """Writes records as rows: appended, or one row per key. Transactional.

    Exactly-once in an exactly-once pipeline: the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this database. At-least-once in any other, effectively
    once with `mode="upsert"`. A write is on the disk when it counts as handled.

    A transaction holds the database's only write lock until its commit. So a file is written by one pipeline, or by
    workers that share a queue. Several destinations of one pipeline may write tables of one file: they stage, and each
    writes its rows in a transaction of its own. For rows of several tables in one transaction, let one destination
    write them, with `table=None`. A row that the table refuses, and values that SQLite cannot hold (NaN, infinity,
    integers beyond 64 bits), are refused alone. Dates, decimals and UUIDs are stored as text, objects and lists as
    JSON.
    """

    names: ClassVar[NameRules] = NameRules(
        columns_max=2000, reserved=("sqlite_",), ignores_case=True, allows_empty=True
    )
    int_max: ClassVar[int | None] = 2**63 - 1
    finite: ClassVar[bool] = True

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[sdk.Dataset]:
        tables = [] if self.options.table is None else [self.options.table]
        return [sdk.Dataset(f"sqlite://{self.options.path.absolute()}", table) for table in tables]

    @property
    def locks(self) -> str | None:
        return str(self.options.path.resolve())

    def probe(self) -> str:
        return probe_file(self.options.path)

    def connect(self) -> SqlDatabase:
        return SqliteDatabase(self.options.path, _connect(self.options.path))


class SqliteDatabase(SqlDatabase):
    """A connection that commits to the disk and waits a while for others."""

    mark: ClassVar[str] = "?"
    # The lock is taken at the start: a transaction that reads first may fail to upgrade, and cannot wait for it.
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    types: ClassVar[Mapping[str, str]] = {
        "boolean": "BOOLEAN",
        "integer": "INTEGER",
        "real": "REAL",
        "decimal": "TEXT",
        "bytes": "BLOB",
        "datetime": "TEXT",
        "date": "TEXT",
        "json": "TEXT",
        "uuid": "TEXT",
        "text": "TEXT",
    }
    wider_types: ClassVar[Mapping[str, str]] = {"decimal": "NUMERIC", "text": "TEXT"}
    alters: ClassVar[bool] = True
    typed: ClassVar[bool] = False

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Take over a connection that commits every statement."""
        self._path = path
        self._connection = connection
        self._connection.create_function("conduit_text", 1, _column_text, deterministic=True)
        try:
            keep_log(connection)
        except sqlite3.Error as error:
            raise unusable(path, error) from error
        self.run("PRAGMA synchronous = FULL")

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._connection.execute(sql, parameters).rowcount
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise self._translated(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(sql, rows)
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise self._translated(error) from error

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def columns(self, table: str) -> list[str]:
        return list(self.column_types(table))

    def column_types(self, table: str) -> dict[str, ColumnType]:
        found = self.rows(f"PRAGMA table_info({self.quoted(table)})")
        return {name: parse_type(declared) for _, name, declared, *_ in found}

    def change_type(self, table: str, name: str, column: ColumnType, family: str) -> None:
        # SQLite changes no type: a column of the new type takes the place of the old one, behind the others.
        self._check_plain(table, name, column)
        where, old, new = self.quoted(table), self.column(name), self.column(self._free_name(table))
        # Our own function: SQLite writes 15 digits of a float.
        value = f"conduit_text({old})" if family == "text" else old
        if family == "text" and column.family == "boolean":
            value = f"CASE {old} WHEN 0 THEN 'false' WHEN 1 THEN 'true' ELSE {value} END"
        self.run(f"ALTER TABLE {where} ADD COLUMN {new} {self.wider_types[family]}")
        self.run(f"UPDATE {where} SET {new} = {value}")
        self.run(f"ALTER TABLE {where} DROP COLUMN {old}")
        self.run(f"ALTER TABLE {where} RENAME COLUMN {new} TO {old}")

    def _check_plain(self, table: str, name: str, column: ColumnType) -> None:
        """Raise NotThisRow if the column is declared with more than its type, which would be lost."""
        [(definition,)] = self.rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        written = "|".join(re.escape(each) for each in (name, self.column(name), f"[{name}]", f"`{name}`"))
        if not re.search(rf"[(,]\s*(?:{written})\s+{re.escape(column.name)}\s*[,)]", definition, re.IGNORECASE):
            raise NotThisRow("it is declared with more than a type, so that SQLite cannot change it")

    def _free_name(self, table: str) -> str:
        taken = {name.lower() for name in self.columns(table)}
        return next(name for number in count() if (name := f"conduit_{number}") not in taken)

    def unique_count(self, table: str) -> int:
        # An INTEGER PRIMARY KEY is the rowid and has no index.
        keys = any(each[5] for each in self.rows(f"PRAGMA table_info({self.quoted(table)})"))
        indexes = self.rows(f"PRAGMA index_list({self.quoted(table)})")
        return sum(bool(unique) for _, _, unique, origin, _ in indexes if origin != "pk") + keys

    def quoted(self, name: str) -> str:
        return self.column(name)

    def close(self) -> None:
        self._connection.close()

    def _translated(self, error: sqlite3.Error | UnicodeEncodeError) -> Exception:
        if isinstance(error, UnicodeEncodeError):
            return NotThisRow("has half of a surrogate pair in a text, which no SQL text can carry")
        if isinstance(error, _OF_THE_ROW):
            return NotThisRow(str(error))
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR:
            return StatementRefused(f"{self._path}: {error}", suggestion="check the table and its key")
        return unusable(self._path, error)


def _column_text(value: Any) -> Any:
    return value if value is None or isinstance(value, bytes) else text_of(value)


def parse_type(declared: str) -> ColumnType:
    """Return the type of a column, by the rules with which SQLite chooses the affinity of a declared type."""
    text = declared.upper()
    for part, family in _FAMILIES:
        if part in text:
            return ColumnType(declared, family)
    return ColumnType(declared, "other" if text else "any")


_FAMILIES: Sequence[tuple[str, Family]] = (
    ("INT", "int64"),
    ("CHAR", "text"),
    ("CLOB", "text"),
    ("TEXT", "text"),
    ("BLOB", "any"),
    ("REAL", "float64"),
    ("FLOA", "float64"),
    ("DOUB", "float64"),
    ("BOOL", "boolean"),
    ("NUM", "decimal"),
    ("DEC", "decimal"),
)
"""In SQLite's order. Of the other types, such as DATE, it converts what looks like a number, and nothing else."""

_OF_THE_ROW = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def keep_log(connection: sqlite3.Connection) -> None:
    """Let the file have a write-ahead log, so that readers and a writer do not wait for each other."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # Two who change the mode of a new file at once: SQLite refuses one of them, whatever its timeout.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                raise
        time.sleep(0.01)


def probe_file(path: Path) -> str:
    """Return what is there for a destination. Creates no file, and leaves the journal mode of one that is there."""
    found = probe_writable(path)
    if not path.exists():
        return found
    connection = _connect(path)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        connection.close()
    return "the database answers"


def unusable(path: Path, error: sqlite3.Error) -> FatalError | TransientError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TransientError(
            f"{path} is locked by another writer",
            suggestion="let one destination write it: with table=None it writes several tables",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return TransientError(f"{path} cannot be written: {error}", suggestion="check the disk and its free space")
    return FatalError(f"{path} cannot be used: {error}", suggestion="check that it is a SQLite database and writable")


class SourceOptions(Options):
    """Options of the SQLite source."""

    path: Path = Field(description="the database file")
    table: str = Field(min_length=1, description="the table to read")
    tail: bool = Field(default=False, description="wait for more rows at the end")


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    table: Required[str]
    tail: bool


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of a table in the order of their rowid, which is the position; resumes after any row.

    For tables to which rows are added. Changes and deletions of rows that were read are not seen. A rowid must
    not be reused: declare the key AUTOINCREMENT where rows are deleted. At-least-once on its own, exactly-once
    with a destination that can.
    """

    _connection: sqlite3.Connection | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[sdk.Dataset]:
        return [sdk.Dataset(f"sqlite://{self.options.path.absolute()}", self.options.table)]

    def reads_alone(self) -> str:
        return "a file of SQLite is on one machine"

    @property
    def endless(self) -> bool:
        return self.options.tail

    def probe(self) -> str:
        if not self.options.path.exists():
            raise FatalError(f"there is no {self.options.path}", suggestion="check the path")
        connection = _connect(self.options.path)
        try:
            found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [self.options.table]).fetchone()
        except sqlite3.Error as error:
            raise unusable(self.options.path, error) from error
        finally:
            connection.close()
        if found is None:
            raise FatalError(f"{self.options.path} has no table {self.options.table}", suggestion="check the table")
        return f"{self.options.path} has the table"

    def open(self, position: bytes | None) -> None:
        path = self.options.path
        if not path.exists():
            raise FatalError(f"there is no {path}", suggestion="check the path")
        self._after = 0 if position is None else number_of("sqlite", position)
        self._connection = _connect(path)

    def check_position(self, position: bytes) -> None:
        number_of("sqlite", position)

    def locate_record(self, position: bytes) -> str | None:
        return f"{self.options.path} table {self.options.table} rowid {number_of('sqlite', position)}"

    def read(self, n: int) -> Payloads:
        assert self._connection is not None
        table = '"' + self.options.table.replace('"', '""') + '"'
        sql = f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        try:
            with closing(self._connection.execute(sql, (self._after, n))) as cursor:
                names = [each[0] for each in cursor.description[1:]]
                rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise unusable(self.options.path, error) from error
        if not rows:
            raise NothingYet if self.options.tail else EndOfSource
        self._after = rows[-1][0]
        payloads: list[Any] = [dict(zip(names, row[1:], strict=True)) for row in rows]
        columns = Columns(metadata=[{metadata.COLLECTION: self.options.table} for _ in rows])
        return Payloads(payloads, positions_of("sqlite", [row[0] for row in rows]), dict, columns)

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
