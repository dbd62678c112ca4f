"""The SQLAlchemy source: rows of a table by a column that grows, from any database with a dialect."""

import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Required, TypedDict, Unpack
from uuid import UUID

import sqlalchemy as sa
from pydantic import Field, SecretStr
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.sql.elements import quoted_name

from conduit_connectors.sql.database import NotThisRow
from conduit_connectors.sql.keyset import KeyRange, KeyValues, check_keys, decode_key, encode_key
from conduit_connectors.sqlalchemy.engine import connection_error, make_engine, table_datasets, translate
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Operation, Options, Payload, Reading, Record, metadata

_MEASURED = 100
"""How many rows tell how large rows are."""
_INEXACT = (sa.Float, sa.LargeBinary, sa.JSON, sa.Boolean)
_PLAIN = (bool, int, float, str, bytes, dict, list, type(None), Decimal, datetime, date, clock, timedelta, UUID)


class SourceOptions(Options):
    """Which table, and by which column."""

    url: SecretStr = Field(description="the database, as dialect+driver://user:password@host:port/name")
    table: str = Field(min_length=1, description="the table or view, as `table` or `schema.table`")
    column: str = Field(
        min_length=1, description="the column that grows: a number from a sequence, or the time of the last change"
    )
    key: list[str] | None = Field(
        default=None,
        min_length=1,
        description="columns that tell rows with the same value of `column` apart; None: the primary key",
    )
    tail: bool = Field(default=False, description="wait for more rows at the end")
    delay_seconds: float = Field(
        default=0,
        ge=0,
        description="how long after a row is seen rows with smaller values may still be committed: so long it waits",
    )


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    table: Required[str]
    column: Required[str]
    key: Sequence[str] | None
    tail: bool
    delay_seconds: float


class Source(sdk.SplittableSource[SourceOptions]):
    """The rows of a table in the order of a column that grows, and rows again when their value grows.

    Resumes exactly after any row; at-least-once, exactly-once in an exactly-once pipeline. It ends at the last row, or
    with `tail` waits for more.

    A row that is committed later than one with a larger value, which was read, is skipped: there is no way common to
    all databases to list open transactions. `delay_seconds` prevents that, if no transaction takes longer from its
    value to its commit: rows are read up to the largest value that was seen so long ago. On PostgreSQL
    `postgres.polling` asks the server instead of waiting. Deleted rows are not seen, nor changes that leave
    the column as it is. `column` and `key` together must be unique and never null; an index on both helps.

    On Spark executors read ranges of the order, each with a connection of its own; a row that moves or goes meanwhile
    is seen as it is when its range is read. SQLite files are read by the driver.

    Values are what the driver gives. A row with one that a record cannot hold becomes a dead letter without content.
    """

    clock: ClassVar[Any] = staticmethod(time.monotonic)
    _engine: Engine | None = None
    _connection: Connection | None = None

    _part: KeyRange | None = None
    """On an executor: the range that it reads."""

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return table_datasets(self.options.url.get_secret_value(), self.options.table)

    @property
    def gives(self) -> Any:
        return dict[str, Any]

    def probe(self) -> str:
        engine = make_engine(self.options.url.get_secret_value())
        path = (engine.url.database or "").removeprefix("file:").partition("?")[0]
        # To connect would create the file.
        if engine.dialect.name == "sqlite" and not Path(path).exists():
            raise FatalError(f"there is no {path}", suggestion="check `url`")
        try:
            names, _ = self._connect()
        finally:
            self.teardown()
        return f"{self.options.table} has the columns {', '.join(names)}"

    def open(self, position: bytes | None) -> None:
        names, key = self._connect()
        self._begin(position, names, key)
        self._check_nulls()

    def _begin(self, position: bytes | None, names: Sequence[str], key: list[str]) -> None:
        options = self.options
        schema, dot, name = options.table.rpartition(".")
        self._order = [options.column, *(each for each in key if each != options.column)]
        self._last = None if position is None else decode_key(position, self._order)
        self._bound: KeyValues | None = None
        self._due = 0.0
        self._row_size = 0
        columns: list[Any] = [sa.column(quoted_name(each, quote=True)) for each in names]
        place: dict[str, Any] = {"schema": quoted_name(schema, quote=True)} if dot else {}
        self._table = sa.table(quoted_name(name, quote=True), *columns, **place)
        self._key = key

    def read(self, n: int) -> Reading:
        if self._bound is None:
            self._bound = self._find_bound()
        if self._bound is not None and self.clock() >= self._due:
            if found := self._select(self._bound, n):
                return found
            # Everything up to the bound was read.
            self._bound = None
            if self._part is not None:
                raise EndOfSource
            return self.read(n)
        if self._bound is not None or self.options.tail:
            raise NothingYet
        raise EndOfSource

    def reads_alone(self) -> str | None:
        if self.options.url.get_secret_value().startswith("sqlite"):
            return "a file of SQLite is on one machine"
        return None

    def split(self, size: int) -> bytes:
        if self._bound is None:
            self._bound = self._find_bound()
        if self._bound is None:
            raise NothingYet if self.options.tail else EndOfSource
        if self.clock() < self._due:
            raise NothingYet
        self._row_size = self._row_size or self._measure_row(self._bound)
        last = self._find_end(self._bound, max(1, size // self._row_size))
        after = None if self._last is None else encode_key(self._last)
        part = KeyRange(after, encode_key(last), [str(column.name) for column in self._table.columns], self._key)
        self._last = last
        if last == self._bound:
            # The next part is of what has come since.
            self._bound = None
        return part.encode()

    def open_part(self, part: bytes) -> None:
        self._part = KeyRange.decode(part)
        # The driver has looked at the table and its rows: to do so again would take longer than to read a part.
        self._connect_only()
        self._begin(self._part.after, self._part.columns, self._part.key)
        self._bound = decode_key(self._part.until, self._order)

    def check_position(self, position: bytes) -> None:
        if self.options.key is not None:
            decode_key(
                position, [self.options.column, *(each for each in self.options.key if each != self.options.column)]
            )

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connect(self) -> tuple[list[str], list[str]]:
        """Connect; return the columns of the table and its key."""
        self._connect_only()
        schema, dot, name = self.options.table.rpartition(".")
        found: tuple[list[str], list[str]] = self._call(
            lambda connection: self._describe(connection, schema if dot else None, name)
        )
        return found

    def _connect_only(self) -> None:
        self._engine = make_engine(self.options.url.get_secret_value())
        try:
            self._connection = self._engine.connect()
        except (exc.SQLAlchemyError, OSError) as error:
            raise connection_error(error, self._engine.dialect.name) from error

    def _describe(self, connection: Connection, schema: str | None, name: str) -> tuple[list[str], list[str]]:
        """Return the columns of the table and its key. Raises FatalError if it cannot be read in this order."""
        options, inspector = self.options, sa.inspect(connection)
        try:
            columns = {str(each["name"]): each for each in inspector.get_columns(name, schema=schema)}
            primary = inspector.get_pk_constraint(name, schema=schema).get("constrained_columns") or []
        except exc.NoSuchTableError as error:
            raise FatalError(f"there is no table {options.table}", suggestion="check `table` and `url`") from error
        key = list(primary) if options.key is None else options.key
        if not key:
            raise FatalError(
                f"{options.table} has no primary key, so rows with the same {options.column} have no order",
                suggestion="give `key`: columns that are unique together",
            )
        for each in (options.column, *key):
            _check_column(options.table, each, columns)
        self._nullable = [each for each in (options.column, *key) if columns[each].get("nullable", True)]
        return list(columns), key

    def _check_nulls(self) -> None:
        """Raise FatalError if a row has no place in the order: no row is greater than null, so it would be skipped."""
        if self._nullable:
            without = sa.or_(*(self._table.c[name].is_(None) for name in self._nullable))
            statement = sa.select(*(self._table.c[name] for name in self._order)).where(without).limit(1)
            rows = self._call(lambda connection: connection.execute(statement).all())
            check_keys([tuple(map(_plain, row)) for row in rows], self._order)

    def _find_bound(self) -> KeyValues | None:
        """Return the place of the last row that is visible now; None if there is none that was not read."""
        columns = [self._table.c[name] for name in self._order]
        statement = sa.select(*columns).order_by(*(column.desc() for column in columns)).limit(1)
        if self._last is not None:
            statement = statement.where(self._after(self._last))
        rows = self._call(lambda connection: connection.execute(statement).all())
        if not rows:
            return None
        bound = tuple(map(_plain, rows[0]))
        check_keys([bound], self._order)
        # Read earlier, a row before the bound might not be committed yet, and would be skipped for ever.
        self._due = self.clock() + self.options.delay_seconds
        return bound

    def _select(self, bound: KeyValues, n: int) -> Reading | None:
        # One more than wanted: the next query would skip a row with the same key as the last one.
        statement = self._rows_within(bound, n + 1)
        found = self._call(lambda connection: connection.execute(statement).mappings().all())
        rows = [{str(name): _plain(value) for name, value in row.items()} for row in found]
        keys: list[KeyValues] = [tuple(row[name] for name in self._order) for row in rows]
        check_keys(keys, self._order)
        if not rows:
            return None
        self._last = keys[:n][-1]
        return self._give(rows[:n], keys)

    def _measure_row(self, bound: KeyValues) -> int:
        """Return about how many bytes a row has, by the first of those that follow."""
        rows = self._call(lambda connection: connection.execute(self._rows_within(bound, _MEASURED)).all())
        return max(1, sum(len(str(value)) for row in rows for value in row) // max(1, len(rows)))

    def _find_end(self, bound: KeyValues, count: int) -> KeyValues:
        """Return the place of the last of so many rows that follow; the bound if there are not so many."""
        columns = [self._table.c[name] for name in self._order]
        # The database walks over the keys in its index, and sends one of them.
        statement = self._rows_within(bound, 1).with_only_columns(*columns).offset(count - 1)
        rows = self._call(lambda connection: connection.execute(statement).all())
        if not rows:
            return bound
        found = tuple(map(_plain, rows[0]))
        check_keys([found], self._order)
        return found

    def _rows_within(self, bound: KeyValues, count: int) -> Any:
        """Return the statement that finds the next rows up to the bound."""
        columns = [self._table.c[name] for name in self._order]
        statement = sa.select(self._table).where(sa.not_(self._after(bound))).order_by(*columns).limit(count)
        return statement if self._last is None else statement.where(self._after(self._last))

    def _give(self, rows: Sequence[dict[str, Any]], keys: Sequence[KeyValues]) -> Reading:
        records, refused = [], {}
        for index, (row, values) in enumerate(zip(rows, keys, strict=False)):
            about = {metadata.COLLECTION: self.options.table}
            record = Record(encode_key(values), Operation.SNAPSHOT, about, {name: row[name] for name in self._key})
            strange = [name for name, value in row.items() if not _is_plain(value)]
            if strange:
                refused[index] = f"a record cannot hold the value of {', '.join(map(repr, strange))}"
            else:
                record.payload = Payload(after=row)
            records.append(record)
        return Reading(records, refused)

    def _after(self, values: KeyValues) -> Any:
        """Rows after these values: the first column is greater, or equal and the next is greater, …"""
        columns = [self._table.c[name] for name in self._order]
        condition: Any = columns[-1] > values[-1]
        for column, value in reversed(list(zip(columns[:-1], values[:-1], strict=True))):
            # The first half says nothing more, but databases find rows by it in an index.
            condition = sa.and_(column >= value, sa.or_(column > value, condition))
        return condition

    def _call(self, call: Any) -> Any:
        assert self._connection is not None, "opened"
        try:
            found = call(self._connection)
            # Or the next query would see what was there at the time of this one.
            self._connection.rollback()
        except (exc.SQLAlchemyError, OSError) as error:
            translated = translate(error, self._connection.dialect.name)
            if isinstance(translated, NotThisRow):
                translated = FatalError(str(translated), suggestion="check `column`, `key` and their types")
            raise translated from error
        return found


def _check_column(table: str, name: str, columns: dict[str, Any]) -> None:
    if name not in columns:
        raise FatalError(f"{table} has no column {name!r}", suggestion=f"columns are {', '.join(columns)}")
    kind = columns[name]["type"]
    if isinstance(kind, _INEXACT) and not isinstance(kind, sa.Uuid):
        raise FatalError(
            f"{table}.{name} is of the type {type(kind).__name__}, which gives no exact order to resume in",
            suggestion="order by integers, decimals, text, dates or timestamps",
        )


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN)
