"""SqlDatabase: what the SQL destinations need from a connection, and the statements they run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from conduit_connectors.sql.row import TableRow
from conduit_py.sdk import FatalError


class NotThisRow(Exception):
    """The database refuses the values of a row. The transaction can continue without it."""


class StatementRefused(FatalError):
    """The database refuses a statement because of what it names: the table, its kind, or the key.

    It stops a pipeline that names these itself, and refuses a record that names them.
    """


class SqlDatabase(ABC):
    """One connection, used by one call at a time. Only `commit` commits."""

    mark: ClassVar[str]
    """What stands for a parameter."""
    types: ClassVar[Mapping[str, str]]
    """The type of a column for each kind of value."""
    key_type: ClassVar[str] = "TEXT"
    """The type of a text that is part of a key of our own."""
    keep_existing: ClassVar[str] = "ON CONFLICT (owner, place) DO NOTHING"
    """The clause with which an insert into our own table leaves a row with the same key alone."""

    @abstractmethod
    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed. Raises NotThisRow if the values are the cause."""

    @abstractmethod
    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...

    @abstractmethod
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """The columns of a table; none when there is no such table."""

    @abstractmethod
    def unique_count(self, table: str) -> int:
        """How many keys and other unique indexes a table has."""

    def refuses_repeats(self, row: TableRow) -> bool:
        """True if a row may be refused because of another row: by a unique index other than its upsert key."""
        return self.unique_count(row.table) > (1 if row.keys else 0)

    @abstractmethod
    def close(self) -> None: ...

    begin: ClassVar[str] = "BEGIN"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does. If it raises, roll everything back."""
        self.run(self.begin)
        try:
            yield
        except BaseException:
            self.run("ROLLBACK")
            raise
        self.run("COMMIT")

    def quoted(self, name: str) -> str:
        """Quote a name for SQL; a dot separates schema and table."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))

    def create_table(self, row: TableRow) -> None:
        columns = [f"{self.column(name)} {self.types[kind]}" for name, kind in zip(row.columns, row.kinds, strict=True)]
        if row.keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(self.column, row.keys))})")
        self.run(f"CREATE TABLE IF NOT EXISTS {self.quoted(row.table)} ({', '.join(columns)})")

    def statement(self, row: TableRow) -> str:
        """Return the statement that writes or deletes rows of this shape."""
        table = self.quoted(row.table)
        if row.gone:
            return (
                f"DELETE FROM {table} WHERE {' AND '.join(f'{self.column(key)} = {self.mark}' for key in row.columns)}"
            )
        columns = ", ".join(map(self.column, row.columns))
        insert = f"INSERT INTO {table} ({columns}) VALUES ({', '.join([self.mark] * len(row.columns))})"
        if not row.keys:
            return insert
        return f"{insert} {self.replacing(row)}"

    def replacing(self, row: TableRow) -> str:
        """Return the clause that makes an insert of rows of this shape replace those with the same key."""
        others = [name for name in row.columns if name not in row.keys]
        changes = ", ".join(f"{self.column(name)} = excluded.{self.column(name)}" for name in others)
        found = f"ON CONFLICT ({', '.join(map(self.column, row.keys))})"
        return f"{found} " + (f"DO UPDATE SET {changes}" if others else "DO NOTHING")

    def column(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


def no_table(table: str) -> StatementRefused:
    return StatementRefused(
        f"there is no table {table!r}", suggestion="create it, or let it be created with create=True"
    )
