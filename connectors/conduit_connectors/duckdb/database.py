"""DuckDbDatabase: a connection to a DuckDB file for the SQL destinations, which writes rows as Arrow tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import duckdb
import msgspec
import pyarrow as pa

from conduit_connectors.duckdb.column_types import arrow_schema, column_fit, parse_type
from conduit_connectors.sql.column_fit import ColumnType, Fit
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_connectors.sql.row import TableRow
from conduit_py.sdk import FatalError, TransientError
from conduit_py.sdk.arrow import ARROW_ERRORS

_ORDER = "conduit_order"
"""A column of our own, in which the rows of one statement have their numbers."""


class _Step(msgspec.Struct, frozen=True):
    """A statement of the open transaction, with its parameters or the table that it reads."""

    sql: str
    parameters: Sequence[Any] = ()
    table: Any = None


class DuckDbDatabase(SqlDatabase):
    """A connection on which nothing is committed but by `commit`.

    DuckDB has no savepoints, and ends a transaction at the first error. So the steps of the open transaction are kept
    until its commit: `roll_back_to` undoes all of them and takes those again that were before the savepoint.
    """

    mark: ClassVar[str] = "?"
    types: ClassVar[Mapping[str, str]] = {
        "boolean": "BOOLEAN",
        "integer": "BIGINT",
        "wide": "HUGEINT",
        "real": "DOUBLE",
        "decimal": "DECIMAL(38,12)",
        "bytes": "BLOB",
        "datetime": "TIMESTAMP WITH TIME ZONE",
        "naive": "TIMESTAMP",
        "date": "DATE",
        "time": "TIME",
        "duration": "INTERVAL",
        "json": "JSON",
        "uuid": "UUID",
        "text": "VARCHAR",
    }
    wider_types: ClassVar[Mapping[str, str]] = {
        "int32": "INTEGER",
        "int64": "BIGINT",
        "float64": "DOUBLE",
        "text": "VARCHAR",
    }
    alters: ClassVar[bool] = True
    _creating: ClassVar[Lock] = Lock()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path)
        self._steps: list[_Step] | None = None
        """The steps of the open transaction; None if there is none."""
        self._savepoints: list[tuple[str, int]] = []
        self._broken = False
        # A time that a text gives without a zone would else depend on the machine.
        self.run("SET TimeZone = 'UTC'")

    def start(self) -> None:
        self.run("BEGIN")
        self._steps, self._savepoints, self._broken = [], [], False

    def commit(self) -> None:
        assert self._steps is not None, "a transaction is open"
        self._steps = None
        self.run("COMMIT")

    def roll_back(self) -> None:
        self._steps = None
        self.run("ROLLBACK")

    def set_savepoint(self, name: str) -> None:
        assert self._steps is not None, "a transaction is open"
        self._savepoints.append((name, len(self._steps)))

    def roll_back_to(self, name: str) -> None:
        steps = self._steps
        assert steps is not None, "a transaction is open"
        while self._savepoints[-1][0] != name:
            self._savepoints.pop()
        kept = self._savepoints[-1][1]
        if len(steps) == kept and not self._broken:
            return
        savepoints = self._savepoints
        self.roll_back()
        self.start()
        for step in steps[:kept]:
            self._take(step)
        self._savepoints = savepoints

    def release_savepoint(self, name: str) -> None:
        assert self._savepoints[-1][0] == name, "savepoints end in the order in which they began"
        self._savepoints.pop()

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._take(_Step(sql, parameters))

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self.run(sql, row)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in self._connection.execute(sql, list(parameters)).fetchall()]
        except duckdb.Error as error:
            self._broken = True
            raise self._translate(error) from error

    def write_rows(self, rows: Sequence[TableRow]) -> None:
        first = rows[0]
        table = None if first.truncate or first.unchanged or len(rows) == 1 else _arrow_table(rows)
        if table is None:
            super().write_rows(rows)
        elif first.gone or first.keys:
            types = {name: column.name for name, column in self.column_types(first.table).items()}
            self._take(_Step(self._delete(first, types) if first.gone else self._upsert(first, types), (), table))
        else:
            self.append(first.table, table.drop([_ORDER]))

    def append(self, table: str, rows: pa.Table) -> None:
        """Insert the rows of an Arrow table, whose columns have the names of those of the table."""
        names = ", ".join(map(self.column, rows.column_names))
        self._take(_Step(f"INSERT INTO {self.quoted(table)} ({names}) SELECT * FROM conduit_py_rows", (), rows))

    def _upsert(self, row: TableRow, types: Mapping[str, str]) -> str:
        values = ", ".join(f"CAST({self.column(name)} AS {types[name]})" for name in row.columns)
        keys = ", ".join(f"CAST({self.column(name)} AS {types[name]})" for name in row.keys)
        # Of two rows with one key in a statement DuckDB would keep the first, without a word.
        last = f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {_ORDER} DESC) = 1"
        columns = ", ".join(map(self.column, row.columns))
        selected = f"SELECT {values} FROM conduit_py_rows {last} ORDER BY {_ORDER}"
        return f"INSERT INTO {self.quoted(row.table)} ({columns}) {selected} {self.replacing(row)}"

    def _delete(self, row: TableRow, types: Mapping[str, str]) -> str:
        keys = ", ".join(map(self.column, row.columns))
        values = ", ".join(f"CAST({self.column(name)} AS {types[name]})" for name in row.columns)
        return f"DELETE FROM {self.quoted(row.table)} WHERE ({keys}) IN (SELECT ({values}) FROM conduit_py_rows)"

    def columns(self, table: str) -> list[str]:
        return list(self.column_types(table))

    def column_types(self, table: str) -> dict[str, ColumnType]:
        schema, dot, name = table.rpartition(".")
        found = self.rows(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = current_database()"
            " AND schema_name = ? AND table_name = ? AND NOT internal ORDER BY column_index",
            (schema if dot else "main", name),
        )
        return {column: parse_type(kind) for column, kind in found}

    def plain_schema(self, table: str) -> pa.Schema | None:
        """Return the columns of a table, if each holds all values of a type of Arrow, and none has a default."""
        types = self.column_types(table)
        schema, dot, name = table.rpartition(".")
        defaults = self.rows(
            "SELECT 1 FROM duckdb_columns() WHERE database_name = current_database()"
            " AND schema_name = ? AND table_name = ? AND column_default IS NOT NULL",
            (schema if dot else "main", name),
        )
        return None if defaults else arrow_schema(types)

    def has_constraints(self, table: str) -> bool:
        """True if the table may refuse a row whose values have the types of its columns."""
        schema, dot, name = table.rpartition(".")
        where = "database_name = current_database() AND schema_name = ? AND table_name = ?"
        [(count,)] = self.rows(
            f"SELECT (SELECT count(*) FROM duckdb_constraints() WHERE {where})"
            f" + (SELECT count(*) FROM duckdb_indexes() WHERE {where})",
            (schema if dot else "main", name) * 2,
        )
        return bool(count)

    def fit(self, kind: str, column: ColumnType) -> Fit | None:
        return column_fit(kind, column)

    def unique_count(self, table: str) -> int:
        schema, dot, name = table.rpartition(".")
        where = "database_name = current_database() AND schema_name = ? AND table_name = ?"
        # An index that was created by itself is not a constraint, and refuses rows as well.
        [(count,)] = self.rows(
            f"SELECT (SELECT count(*) FROM duckdb_constraints() WHERE {where} AND constraint_type IN"
            f" ('PRIMARY KEY', 'UNIQUE')) + (SELECT count(*) FROM duckdb_indexes() WHERE {where} AND is_unique)",
            (schema if dot else "main", name) * 2,
        )
        return int(count)

    def create_missing(self, table: str, definition: str) -> None:
        # Two open transactions that create one table are a conflict. Only one process has the file open, so a lock
        # and a transaction of its own put each creation after the other.
        with self._creating, self._connection.cursor() as connection:
            try:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({definition})")
            except duckdb.Error as error:
                raise self._translate(error) from error

    def add_column(self, table: str, name: str, kind: str) -> None:
        column = f"{self.column(name)} {self.type_of(kind)}"
        self.run(f"ALTER TABLE {self.quoted(table)} ADD COLUMN IF NOT EXISTS {column}")

    def change_type(self, table: str, name: str, column: ColumnType, family: str) -> None:
        kind = self.wider_types[family]
        self.run(f"ALTER TABLE {self.quoted(table)} ALTER COLUMN {self.column(name)} TYPE {kind}")

    def close(self) -> None:
        self._connection.close()

    def _take(self, step: _Step) -> int:
        # By this name the statement finds the table: DuckDB looks at the variables of its caller.
        conduit_py_rows = step.table  # noqa: F841
        try:
            found = self._connection.execute(step.sql, list(step.parameters)).fetchall()
        except (duckdb.Error, UnicodeEncodeError) as error:
            self._broken = True
            raise self._translate(error) from error
        if self._steps is not None:
            self._steps.append(step)
        return int(found[0][0]) if found and isinstance(found[0][0], int) else 0

    def _translate(self, error: Exception) -> Exception:
        text = " ".join(str(error).split())
        if isinstance(error, UnicodeEncodeError) or "surrogate" in text:
            return NotThisRow("has half of a surrogate pair in a text, which no SQL text can carry")
        if isinstance(error, duckdb.IntegrityError | duckdb.DataError | duckdb.InvalidInputException):
            return NotThisRow(text)
        if isinstance(error, duckdb.TransactionException):
            return TransientError(f"{self._path}: {text}", suggestion="another writer of this process changed the same")
        if isinstance(error, duckdb.ProgrammingError | duckdb.NotSupportedError):
            return StatementRefused(f"{self._path}: {text}", suggestion="check the table and its key")
        return unusable(self._path, error)


def _arrow_table(rows: Sequence[TableRow]) -> pa.Table | None:
    """Return the values of rows as columns, with their order; None if a column has values of several types."""
    try:
        columns = [pa.array(values) for values in zip(*(row.values for row in rows), strict=True)]
    except ARROW_ERRORS:
        return None
    return pa.table([*columns, pa.array(range(len(rows)))], names=[*rows[0].columns, _ORDER])


def connect(path: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a database file. Raises TransientError while another process has it."""
    try:
        # Not the path as it is written: DuckDB has names that are no files, such as ":memory:".
        return duckdb.connect(str(path.resolve()), read_only=read_only)
    except (duckdb.Error, OSError) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> FatalError | TransientError:
    """Return what it means that a file cannot be used."""
    text = " ".join(str(error).split())
    if "lock on file" in text:
        return TransientError(
            f"another process has {path} open: {text}",
            suggestion="close it there: DuckDB lets one process write a file, and nobody else read it meanwhile",
        )
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException) and "not a valid" not in text:
        return TransientError(f"{path} cannot be used: {text}", suggestion="check the disk and its free space")
    return FatalError(f"{path} cannot be used: {text}", suggestion="check that it is a DuckDB database and writable")
