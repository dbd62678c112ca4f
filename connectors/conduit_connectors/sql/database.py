"""SqlDatabase: what the SQL destinations need from a connection, and the statements they run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from conduit_connectors.sql.column_fit import ColumnType, Fit, fit_of
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
    number_type: ClassVar[str] = "BIGINT"
    """The type of a number in a table of our own."""
    keep_existing: ClassVar[str] = "ON CONFLICT (owner, place) DO NOTHING"
    """The clause with which an insert into our own table leaves a row with the same key alone."""
    wider_types: ClassVar[Mapping[str, str]] = {}
    """The type to which a column is changed, for each family that it may be widened to."""
    alters: ClassVar[bool] = False
    """True if a table can be altered within a transaction, and `change_type` works."""
    typed: ClassVar[bool] = True
    """False if columns take values of every type and convert some of them."""

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

    def column_types(self, table: str) -> dict[str, ColumnType]:
        """The columns of a table with their types. Without an override, the database alone judges values."""
        return {name: ColumnType("", "other") for name in self.columns(table)}

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
        self.start()
        try:
            yield
        except BaseException:
            self.roll_back()
            raise
        self.commit()

    def start(self) -> None:
        """Begin a transaction."""
        self.run(self.begin)

    def commit(self) -> None:
        """Commit the transaction, so that it survives a crash."""
        self.run("COMMIT")

    def roll_back(self) -> None:
        """Undo the transaction."""
        self.run("ROLLBACK")

    def set_savepoint(self, name: str) -> None:
        """Begin a part of the transaction that can be undone by itself. Parts may be inside of others."""
        self.run(f"SAVEPOINT {name}")

    def roll_back_to(self, name: str) -> None:
        """Undo what was done since the savepoint, which remains. Works after an error of a statement too."""
        self.run(f"ROLLBACK TO SAVEPOINT {name}")

    def release_savepoint(self, name: str) -> None:
        """Forget a savepoint: what was done since then belongs to the part around it."""
        self.run(f"RELEASE SAVEPOINT {name}")

    def quoted(self, name: str) -> str:
        """Quote a name for SQL; a dot separates schema and table."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))

    def create_missing(self, table: str, definition: str) -> None:
        """Create a table of our own, unless it exists."""
        self.run(f"CREATE TABLE IF NOT EXISTS {table} ({definition})")

    def insert_missing(self, insert: str, values: Sequence[Any]) -> None:
        """Run an insert into a table of our own that leaves a row with the same key alone."""
        self.run(f"{insert} {self.keep_existing}", values)

    def create_table(self, row: TableRow) -> None:
        columns = [
            f"{self.column(name)} {self.type_of(kind)}" for name, kind in zip(row.columns, row.kinds, strict=True)
        ]
        if row.keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(self.column, row.keys))})")
        self.run(f"CREATE TABLE IF NOT EXISTS {self.quoted(row.table)} ({', '.join(columns)})")

    def type_of(self, kind: str) -> str:
        """Return the type of a new column for values of this kind."""
        return self.types.get(kind) or self.types["decimal" if kind == "wide" else _TYPE_OF_KIND.get(kind, "text")]

    def fit(self, kind: str, column: ColumnType) -> Fit | None:
        """Return when a column holds values of a kind; None: always, or the database refuses others itself."""
        return fit_of(kind, column, typed=self.typed)

    def accepts(self, value: Any, column: ColumnType) -> bool:
        """True if the database reads this text as the type of the column."""
        return True

    def add_column(self, table: str, name: str, kind: str) -> None:
        """Add a column for values of this kind. Others may have added it meanwhile."""
        self.run(f"ALTER TABLE {self.quoted(table)} ADD COLUMN {self.column(name)} {self.type_of(kind)}")

    def change_type(self, table: str, name: str, column: ColumnType, family: str) -> None:
        """Change the type of a column, with its values."""
        raise NotImplementedError(f"{type(self).__qualname__} changes no types")

    def statement(self, row: TableRow) -> str:
        """Return the statement that writes or deletes rows of this shape."""
        table = self.quoted(row.table)
        if row.truncate:
            # Not TRUNCATE: readers see the rows until the commit, and nobody waits for a lock of the whole table.
            return f"DELETE FROM {table}"
        if row.unchanged:
            # An upsert would need values for the other columns too, wherever they must not be null.
            found = " AND ".join(f"{self.column(key)} = {self.mark}" for key in row.keys)
            others = [name for name in row.columns if name not in row.keys]
            changes = [f"{self.column(name)} = {self.mark}" for name in others] or [
                f"{self.column(row.keys[0])} = {self.column(row.keys[0])}"
            ]
            return f"UPDATE {table} SET {', '.join(changes)} WHERE {found}"
        if row.gone:
            return (
                f"DELETE FROM {table} WHERE {' AND '.join(f'{self.column(key)} = {self.mark}' for key in row.columns)}"
            )
        columns = ", ".join(map(self.column, row.columns))
        insert = f"INSERT INTO {table} ({columns}) VALUES ({', '.join([self.mark] * len(row.columns))})"
        if not row.keys:
            return insert
        return f"{insert} {self.replacing(row)}"

    def write_rows(self, rows: Sequence[TableRow]) -> None:
        """Write rows of the same shape. Raises NotThisRow if one of them is refused."""
        self.run_many(self.statement(rows[0]), [row.values for row in rows])

    def write_row(self, row: TableRow) -> int:
        """Write one row and return how many rows of the table it changed. Raises NotThisRow if it is refused."""
        return self.run(self.statement(row), self.parameters(row))

    def parameters(self, row: TableRow) -> Sequence[Any]:
        """Return the values of a row in the order of the parameters of its statement."""
        if not row.unchanged:
            return row.values
        named = dict(zip(row.columns, row.values, strict=True))
        return [*(value for name, value in named.items() if name not in row.keys), *(named[key] for key in row.keys)]

    def replacing(self, row: TableRow) -> str:
        """Return the clause that makes an insert of rows of this shape replace those with the same key."""
        others = [name for name in row.columns if name not in row.keys]
        changes = ", ".join(f"{self.column(name)} = excluded.{self.column(name)}" for name in others)
        found = f"ON CONFLICT ({', '.join(map(self.column, row.keys))})"
        return f"{found} " + (f"DO UPDATE SET {changes}" if others else "DO NOTHING")

    def column(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


_TYPE_OF_KIND = {"long": "integer"}


def no_table(table: str) -> StatementRefused:
    return StatementRefused(
        f"there is no table {table!r}", suggestion="create it, or let it be created with create=True"
    )
