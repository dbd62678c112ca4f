"""The polling source of PostgreSQL: reads rows of a table by a column that grows, without replication."""

from collections.abc import Sequence
from typing import Any, ClassVar, Required, TypedDict, Unpack

import msgspec
import trio
from pydantic import Field, SecretStr

from conduit_connectors.change_queue import in_columns
from conduit_connectors.postgres.catalog import read_key
from conduit_connectors.postgres.changes import snapshot_change
from conduit_connectors.postgres.publication import full_name
from conduit_connectors.postgres.schemas import TableShape, TypeCatalog
from conduit_connectors.postgres.session import DatabaseSession, QueryResult, StatementFailed, quote_name
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, Options, Reading, foreign_position

_VERSION = 1
_LOOK_SECONDS = 0.05
_BEGIN_SECONDS = 0.5
"""How long a session may take from the time of its BEGIN until its transaction can be seen: mostly microseconds."""
_NUMBERS = (20, 21, 23, 1700)
_TIMES = (1114, 1184)
_FULL_PRECISION = (-1, 6)


class SourceOptions(Options):
    """Which table, and by which column."""

    url: SecretStr = Field(description="the database, as postgresql://user:password@host:port/name")
    table: str = Field(min_length=1, description="the table, as `schema.table`, or `table` for one of public")
    column: str = Field(
        min_length=1, description="the column that grows: a number from a sequence, or the time of the last change"
    )
    poll_seconds: float = Field(default=1.0, gt=0, description="how long to wait when there is nothing new")
    tail: bool = Field(
        default=True, description="wait for more at the end; False: end after the rows that were there, for a schedule"
    )


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    table: Required[str]
    column: Required[str]
    poll_seconds: float
    tail: bool


class RowPlace(msgspec.Struct, frozen=True):
    """The place of a row in the order in which rows are read: its value of the column, then its key."""

    version: int
    values: tuple[str, ...]

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, position: bytes) -> "RowPlace":
        """Read what was encoded. Raises FatalError for anything else."""
        try:
            found = _DECODER.decode(position)
            if found.version != _VERSION or not found.values:
                raise ValueError(f"version {found.version} with {len(found.values)} values")
        except (msgspec.DecodeError, ValueError) as error:
            raise foreign_position(position, reason=error) from error
        return found


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(RowPlace)


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of a table in the order of a column that grows, and rows again when their value grows. No replication.

    Resumes exactly after any row; at-least-once, exactly-once in an exactly-once pipeline. A row whose transaction
    commits later than one with a larger value is not skipped: rows are read up to the largest value that is visible,
    after all transactions that were open at that moment have ended. So a transaction of hours delays what is read.

    That holds if a transaction takes larger values than those that were visible when it began: a sequence does, and
    so does `now()`, as default or in a trigger. Clocks of applications do not. Deleted rows are not seen, nor changes
    that leave the column as it is. The table needs a key, and the column must be NOT NULL; an index on both helps.
    """

    requires: ClassVar = {"psycopg": "conduit-dataflow[postgres]"}

    _session: DatabaseSession | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "it tells the schema of its table with the rows, which only the driver passes on"

    @property
    def endless(self) -> bool:
        return self.options.tail

    @property
    def gives(self) -> Any:
        return dict[str, Any]

    def datasets(self) -> Sequence[sdk.Dataset]:
        url = self.options.url.get_secret_value()
        return sdk.Dataset.tables(url, [self.options.table], port=5432, schema="public")

    async def probe(self) -> str:
        session = await DatabaseSession.connect(self.options.url.get_secret_value())
        try:
            await self._check_table(session)
            return f"PostgreSQL {session.server_version // 10000} has the table {full_name(self.options.table)}"
        finally:
            session.close()

    async def open(self, position: bytes | None) -> None:
        self._last = None if position is None else RowPlace.decode(position).values
        self._bound: tuple[str, ...] | None = None
        self._types = TypeCatalog()
        self._columns: list[tuple[str, int, int]] = []
        self._shape: TableShape | None = None
        self._session = await DatabaseSession.connect(self.options.url.get_secret_value())
        await self._check_table(self._session)
        self._ordering = [self.options.column, *(name for name in self._key if name != self.options.column)]
        if self._last is not None and len(self._last) != len(self._ordering):
            raise FatalError(
                f"the key of {self._collection} was changed: the position has {len(self._last)} values",
                suggestion="reset the position of the source to start again",
            )
        self._order = ", ".join(map(quote_name, self._ordering))
        self._downwards = ", ".join(f"{quote_name(each)} DESC" for each in self._ordering)

    async def read(self, n: int) -> Reading:
        try:
            while True:
                if self._bound is not None:
                    found = await self._select_rows(self._bound, n)
                    if found.rows:
                        return await self._give(found)
                    self._bound = None
                    if not self.options.tail:
                        raise EndOfSource
                bound = await self._find_last_place()
                if bound is None and not self.options.tail:
                    raise EndOfSource
                if bound is None:
                    await trio.sleep(self.options.poll_seconds)
                else:
                    # Read earlier, a row before the bound might not be visible yet, and would be skipped for ever.
                    await wait_for_transactions(self._asked, _BEGIN_SECONDS if self._is_time else 0)
                    self._bound = bound
        except StatementFailed as error:
            raise self._refusal(error) from error

    def check_position(self, position: bytes) -> None:
        RowPlace.decode(position)

    def locate_record(self, position: bytes) -> str | None:
        value, *key = RowPlace.decode(position).values
        row = f"{full_name(self.options.table)} with {self.options.column} {value}"
        return f"{row} and key {', '.join(key)}" if key else row

    async def teardown(self) -> None:
        if self._session is not None:
            self._session.close()
        await trio.lowlevel.checkpoint()

    @property
    def _asked(self) -> DatabaseSession:
        assert self._session is not None, "the source is not open"
        return self._session

    async def _find_last_place(self) -> tuple[str, ...] | None:
        """Return the place of the last row that is visible now; None if there is none that was not read."""
        where = "" if self._last is None else f" WHERE ({self._order}) > {_parameters(self._last)}"
        found = await self._asked.run(
            f"SELECT {self._order} FROM {self._table}{where} ORDER BY {self._downwards} LIMIT 1", self._last or ()
        )
        if not found.rows:
            return None
        bound = tuple((value or b"").decode() for value in found.rows[0])
        if bound[0] in ("infinity", "Infinity", "NaN"):
            raise FatalError(
                f"a row of {self._collection} has {bound[0]} in {self.options.column}, so no other can be after it",
                suggestion="correct the row, or choose another column",
            )
        return bound

    async def _select_rows(self, bound: tuple[str, ...], n: int) -> QueryResult:
        first = "" if self._last is None else f"({self._order}) > {_parameters(self._last, len(bound))} AND "
        return await self._asked.run(
            f"SELECT * FROM {self._table} WHERE {first}({self._order}) <= {_parameters(bound)}"
            f" ORDER BY {self._order} LIMIT {n}",
            (*bound, *(self._last or ())),
        )

    async def _give(self, found: QueryResult) -> Reading:
        new = self._shape is None or found.columns != self._columns
        if new:
            await self._types.learn(self._asked, found.columns)
            self._columns = found.columns
            self._shape = self._types.table_shape(self._collection, found.columns, self._key)
        shape = self._shape
        assert shape is not None, "it was just made"
        names = [name for name, _, _ in found.columns]
        places = [names.index(name) for name in self._ordering]
        changes = []
        for row in found.rows:
            self._last = tuple((row[place] or b"").decode() for place in places)
            changes.append(snapshot_change(shape, self._key, row, RowPlace(_VERSION, self._last)))
        return Reading(in_columns(changes), schemas=(shape.schema,) if new else ())

    async def _check_table(self, session: DatabaseSession) -> None:
        self._collection = full_name(self.options.table)
        schema, _, name = self._collection.partition(".")
        self._table = f"{quote_name(schema)}.{quote_name(name)}"
        try:
            self._key, self._is_time = await check_table(session, self._table, self._collection, self.options.column)
        except StatementFailed as error:
            raise self._refusal(error) from error

    def _refusal(self, error: StatementFailed) -> FatalError:
        return FatalError(
            f"PostgreSQL refuses to read {self._collection}: {error}",
            suggestion="check `table` and `column`, and the rights of the user",
        )


def _parameters(values: Sequence[str], before: int = 0) -> str:
    return f"({', '.join(f'${number}' for number in range(before + 1, before + len(values) + 1))})"


async def check_table(
    session: DatabaseSession, table: str, collection: str, column: str
) -> tuple[tuple[str, ...], bool]:
    """Return the key of a table, and whether the column is a time. Raises FatalError if it cannot be read by that."""
    [[standby, oid]] = (await session.run("SELECT pg_is_in_recovery(), to_regclass($1)::oid::int8", [table])).rows
    if standby == b"t":
        # It does not say which transactions are open on the primary.
        raise FatalError("the server is a standby, where late commits cannot be found", suggestion="read the primary")
    if oid is None:
        raise FatalError(f"there is no table {collection}", suggestion="check `table` and `url`")
    key = await read_key(session, int(oid))
    if not key:
        raise FatalError(
            f"the table {collection} has no key, so rows with the same {column} have no order",
            suggestion="add a primary key",
        )
    found = await session.run(
        "SELECT a.atttypid::int8, a.atttypmod, a.attnotnull, coalesce(s.seqcache, 1) FROM pg_attribute a"
        " LEFT JOIN pg_sequence s ON s.seqrelid = to_regclass(pg_get_serial_sequence($2, a.attname))"
        " WHERE a.attrelid = $1::oid AND a.attname = $3 AND a.attnum > 0 AND NOT a.attisdropped",
        [oid, table, column],
    )
    for kind, modifier, not_null, cache in found.rows:
        _check_column(f"{collection}.{column}", int(kind or 0), int(modifier or 0), not_null == b"t", int(cache or 1))
        return key, int(kind or 0) in _TIMES
    raise FatalError(f"the table {collection} has no column {column}", suggestion="check `column`")


def _check_column(name: str, kind: int, modifier: int, not_null: bool, cache: int) -> None:
    if kind not in _NUMBERS + _TIMES:
        raise FatalError(f"{name} is no number and no time, so it does not grow", suggestion="choose another column")
    if kind in _TIMES and modifier not in _FULL_PRECISION:
        # A transaction may take the same rounded time as a row that was read, with a smaller key.
        raise FatalError(
            f"{name} is rounded, so a later row may have the time of one that was read",
            suggestion="use a time with microseconds",
        )
    if not not_null:
        raise FatalError(f"{name} may be NULL, and such rows would not be read", suggestion="make it NOT NULL")
    if cache > 1:
        raise FatalError(
            f"the sequence of {name} has a cache of {cache}, so a session may take a smaller number later",
            suggestion="ALTER SEQUENCE … CACHE 1",
        )


async def wait_for_transactions(session: DatabaseSession, begin_seconds: float) -> None:
    """Wait until all transactions of this database that are open now have ended.

    Not by their ids: a transaction takes the value of a sequence, or its `now()`, before it has an id. With
    `begin_seconds` also those that are about to begin: `now()` is the time at which the server received the BEGIN.
    """
    await trio.sleep(begin_seconds)
    open_now = {row[0] for row in (await session.run(_OPEN)).rows}
    await _wait_while(session, _OPEN, open_now)
    # A transaction that is prepared is no session's any more, and not yet committed.
    prepared = {row[0] for row in (await session.run(_PREPARED)).rows}
    await _wait_while(session, _PREPARED, prepared)


async def _wait_while(session: DatabaseSession, statement: str, names: set[bytes | None]) -> None:
    while names:
        await trio.sleep(_LOOK_SECONDS)
        names &= {row[0] for row in (await session.run(statement)).rows}


_OPEN = """
    SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
    AND a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
"""
_PREPARED = "SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()"
