"""AnyDatabase: a database that is known by its dialect of SQLAlchemy only, for the SQL destinations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.sql.elements import quoted_name

from conduit_connectors.sql.column_fit import ColumnType, Family, Fit, fit_of
from conduit_connectors.sql.database import NotThisRow, SqlDatabase
from conduit_connectors.sql.row import TableRow
from conduit_connectors.sqlalchemy.engine import connection_error, translate
from conduit_py.sdk import FatalError

T = TypeVar("T")

_KEY_LENGTH = 255
"""So long is a text of a key in a table that is created: hardly a database indexes one of any length."""
_TYPES: Mapping[str, Any] = {
    "boolean": sa.Boolean(),
    "integer": sa.BigInteger(),
    "real": sa.Double(),
    "bytes": sa.LargeBinary(),
}
"""Of other values, such as decimals and times, the text is stored: which type has all of their digits differs."""
_FAMILIES: Sequence[tuple[type[Any], Family]] = (
    (sa.Boolean, "boolean"),
    (sa.SmallInteger, "int16"),
    (sa.BigInteger, "int64"),
    (sa.Integer, "int32"),
    (sa.REAL, "float32"),
    (sa.Float, "float64"),
    (sa.Numeric, "decimal"),
    (sa.Uuid, "other"),
    (sa.Enum, "other"),
    (sa.String, "text"),
    (sa.LargeBinary, "bytes"),
    (sa.JSON, "json"),
)


class AnyDatabase(SqlDatabase):
    """One connection of SQLAlchemy. What differs between databases is left to its dialect.

    Tables are created on a second connection: where a statement that creates one commits the transaction, it would tear
    it. Such databases are known by nothing, so no table is altered.
    """

    # No name has it, so it differs from all that names have.
    mark: ClassVar[str] = "\0"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._name = engine.dialect.name
        compiled = {kind: each.compile(engine.dialect) for kind, each in _TYPES.items()}
        self.types: Mapping[str, str] = compiled | {"text": sa.Text().compile(engine.dialect)}  # type: ignore[misc]
        self.key_type: str = sa.String(_KEY_LENGTH).compile(engine.dialect)  # type: ignore[misc]
        self.number_type: str = compiled["integer"]  # type: ignore[misc]
        try:
            self._connection = engine.connect()
        except (exc.SQLAlchemyError, OSError) as error:
            raise connection_error(error, self._name) from error
        self._transaction: Any = None
        self._check_savepoints()

    def _check_savepoints(self) -> None:
        try:
            with self.transaction():
                self.set_savepoint("conduit")
                self.roll_back_to("conduit")
                self.release_savepoint("conduit")
        except Exception as error:
            raise FatalError(
                f"{self._name} has no savepoints, so a row that is refused would take others with it: {error}",
                suggestion="use a database with transactions and savepoints",
            ) from error

    def start(self) -> None:
        self._transaction = self._call(Connection.begin)

    def commit(self) -> None:
        self._call(lambda _: self._transaction.commit())

    def roll_back(self) -> None:
        self._call(lambda _: self._transaction.rollback())

    # By the dialect and not by SQLAlchemy's own objects, which must end in the order in which they began.
    def set_savepoint(self, name: str) -> None:
        self._call(lambda connection: self._engine.dialect.do_savepoint(connection, name))

    def roll_back_to(self, name: str) -> None:
        self._call(lambda connection: self._engine.dialect.do_rollback_to_savepoint(connection, name))

    def release_savepoint(self, name: str) -> None:
        self._call(lambda connection: self._engine.dialect.do_release_savepoint(connection, name))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement of our own, in which nothing but a mark has a meaning to SQLAlchemy."""
        return self._call(lambda connection: connection.execute(_text(sql), _named(parameters)).rowcount)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self.run(sql, row)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._call(lambda connection: [tuple(row) for row in connection.execute(_text(sql), _named(parameters))])

    def create_missing(self, table: str, definition: str) -> None:
        if self._has_table(table):
            return
        try:
            with self._other() as other:
                other.execute(sa.text(f"CREATE TABLE {table} ({definition})"))
        except Exception:
            # Another pipeline may have created it at the same moment.
            if not self._has_table(table):
                raise

    def _has_table(self, table: str) -> bool:
        return self._call(lambda connection: sa.inspect(connection).has_table(table))

    def insert_missing(self, insert: str, values: Sequence[Any]) -> None:
        self.set_savepoint("conduit_missing")
        try:
            self.run(insert, values)
        except NotThisRow:
            # There is such a row.
            self.roll_back_to("conduit_missing")
        self.release_savepoint("conduit_missing")

    def write_rows(self, rows: Sequence[TableRow]) -> None:
        first = rows[0]
        if first.truncate or first.unchanged or (first.keys and not first.gone):
            for row in rows:
                self.write_row(row)
            return
        statement = _delete(first) if first.gone else _insert(first)
        self._call(lambda connection: connection.execute(statement, [_named(row.values) for row in rows]))

    def write_row(self, row: TableRow) -> int:
        values = _named(row.values)
        if row.truncate or row.gone:
            return self._change(_delete(row), values)
        if not row.keys:
            return self._change(_insert(row), values)
        others = [name for name in row.columns if name not in row.keys]
        if others:
            changed = self._change(_update(row, others), values)
        else:
            changed = self._call(lambda connection: len(connection.execute(_select(row), values).all()))
        return changed if changed or row.unchanged else self._change(_insert(row), values)

    def _change(self, statement: Any, values: Mapping[str, Any]) -> int:
        return self._call(lambda connection: connection.execute(statement, dict(values)).rowcount)

    def columns(self, table: str) -> list[str]:
        return list(self.column_types(table))

    def column_types(self, table: str) -> dict[str, ColumnType]:
        schema, name = _split(table)

        def read(connection: Connection) -> list[Any]:
            inspector = sa.inspect(connection)
            found = inspector.has_table(name, schema=schema)
            return list(inspector.get_columns(name, schema=schema)) if found else []

        return {str(column["name"]): self._parse(column["type"]) for column in self._call(read)}

    def _parse(self, kind: Any) -> ColumnType:
        try:
            name = str(kind.compile(self._engine.dialect))
        except exc.SQLAlchemyError:
            name = type(kind).__name__
        family: Family = next((family for each, family in _FAMILIES if isinstance(kind, each)), "other")
        size = {"decimal": getattr(kind, "precision", None), "text": getattr(kind, "length", None)}.get(family)
        return ColumnType(name, family, size, getattr(kind, "scale", 0) or 0 if family == "decimal" else 0)

    def fit(self, kind: str, column: ColumnType) -> Fit | None:
        if kind == "boolean" and column.family in ("int16", "int32", "int64"):
            # Some databases have no truths, and dialects make small integers of them.
            return None
        fit = fit_of(kind, column, typed=True)
        # It is unknown whether this database would refuse the value, or round it.
        return fit if fit is None or fit.holds is None else fit._replace(silent=True)

    def unique_count(self, table: str) -> int:
        schema, name = _split(table)

        def read(connection: Connection) -> int:
            inspector = sa.inspect(connection)
            keys = bool(inspector.get_pk_constraint(name, schema=schema).get("constrained_columns"))
            unique = {each["name"] for each in inspector.get_unique_constraints(name, schema=schema)}
            indexes = {each["name"] for each in inspector.get_indexes(name, schema=schema) if each["unique"]}
            return int(keys) + len(unique | indexes)

        return self._call(read)

    def create_table(self, row: TableRow) -> None:
        schema, name = _split(row.table)
        columns = [
            sa.Column(_exact(each), self._column_type(kind, each in row.keys), primary_key=each in row.keys)
            for each, kind in zip(row.columns, row.kinds, strict=True)
        ]
        for column in columns:
            # A number that the database would choose itself is nothing that a record brought.
            column.autoincrement = False
        table = sa.Table(_exact(name), sa.MetaData(), *columns, schema=None if schema is None else _exact(schema))
        with self._other() as other:
            table.create(other)

    def _column_type(self, kind: str, in_key: bool) -> Any:
        found = _TYPES.get("integer" if kind == "long" else kind)
        return found if found is not None else sa.String(_KEY_LENGTH) if in_key else sa.Text()

    def close(self) -> None:
        try:
            self._connection.close()
        except exc.SQLAlchemyError:
            self._connection.invalidate()
        self._engine.dispose()

    @contextmanager
    def _other(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (exc.SQLAlchemyError, OSError, UnicodeEncodeError) as error:
            raise translate(error, self._name) from error

    def _call(self, call: Callable[[Connection], T]) -> T:
        try:
            return call(self._connection)
        except (exc.SQLAlchemyError, OSError, UnicodeEncodeError) as error:
            raise translate(error, self._name) from error


@lru_cache(maxsize=64)
def _text(sql: str) -> sa.TextClause:
    first, *others = sql.split("\0")
    return sa.text(first + "".join(f":p{place}{part}" for place, part in enumerate(others)))


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{place}": value for place, value in enumerate(values)}


def _split(table: str) -> tuple[str | None, str]:
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


def _exact(name: str) -> quoted_name:
    return quoted_name(name, quote=True)


def _table(row: TableRow) -> sa.TableClause:
    schema, name = _split(row.table)
    columns: list[Any] = [sa.column(_exact(each)) for each in row.columns]
    return sa.table(_exact(name), *columns, **({} if schema is None else {"schema": _exact(schema)}))


def _value(row: TableRow, name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(f"p{row.columns.index(name)}")


def _found(table: sa.TableClause, row: TableRow, names: Sequence[str]) -> Any:
    return sa.and_(sa.true(), *(table.c[name] == _value(row, name) for name in names))


def _insert(row: TableRow) -> sa.Insert:
    return sa.insert(_table(row)).values({_exact(name): _value(row, name) for name in row.columns})


def _update(row: TableRow, names: Sequence[str]) -> sa.Update:
    table, changes = _table(row), {_exact(name): _value(row, name) for name in names}
    return sa.update(table).where(_found(table, row, row.keys)).values(changes)


def _delete(row: TableRow) -> sa.Delete:
    table = _table(row)
    return sa.delete(table) if row.truncate else sa.delete(table).where(_found(table, row, row.columns))


def _select(row: TableRow) -> sa.Select[Any]:
    table = _table(row)
    return sa.select(sa.literal(1)).select_from(table).where(_found(table, row, row.keys))
