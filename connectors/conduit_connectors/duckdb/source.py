"""The DuckDB source: the rows of a table or of a query, in the order of a key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import duckdb
from pydantic import Field, model_validator

from conduit_connectors.duckdb.database import connect, unusable
from conduit_connectors.duckdb.exact_values import check_type, inexact_condition
from conduit_connectors.sql.keyset import KeyValues, check_keys, decode_key, encode_key
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, Operation, Options, Payload, Reading, Record, metadata


class SourceOptions(Options):
    """Options of the DuckDB source."""

    path: Path = Field(description="the database file")
    table: str | None = Field(default=None, min_length=1, description="the table or view to read")
    query: str | None = Field(default=None, min_length=1, description="a query to read in place of a table")
    key: list[str] = Field(min_length=1, description="columns that are unique together and never null: the order")

    @model_validator(mode="after")
    def _has_one_input(self) -> "SourceOptions":
        if (self.table is None) == (self.query is None):
            raise ValueError("give `table` or `query`, and not both")
        return self


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    table: str | None
    query: str | None
    key: Required[Sequence[str]]


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of a table, a view or a query of a DuckDB file, in the order of `key`; it ends after the last.

    Resumes exactly after any row; at-least-once on its own, exactly-once with a destination that can. The next run
    reads rows whose key is greater than that of the last one. Changes of rows that were read are not seen.

    A row with a value that Python cannot hold becomes a dead letter with its key and without content: an infinite date
    or time, one before the year 1 or after 9999, an interval with months or years. A query can cast it to VARCHAR.

    While it runs no process can write the file: that is a rule of DuckDB. A query may be any that reads: it is the
    operator's, and may read other files too.
    """

    gives = dict

    _connection: duckdb.DuckDBPyConnection | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "a file of DuckDB is opened by one process"

    def data_file(self) -> Path:
        return self.options.path

    def probe(self) -> str:
        try:
            return f"{self.options.table or 'the query'} has the columns {', '.join(self._connect())}"
        finally:
            self.teardown()

    def open(self, position: bytes | None) -> None:
        options = self.options
        self._last = None if position is None else decode_key(position, options.key)
        self._collection = {metadata.COLLECTION: options.table} if options.table is not None else {}
        self._connect()
        # No row is greater than null, and null than none: after a restart such a row would be skipped.
        order, without = (
            ", ".join(map(_quote, options.key)),
            " OR ".join(f"{_quote(each)} IS NULL" for each in options.key),
        )
        check_keys(self._run(f"SELECT {order} FROM {self._from} WHERE {without} LIMIT 1", ()).fetchall(), options.key)

    def read(self, n: int) -> Reading:
        key = self.options.key
        order = ", ".join(map(_quote, key))
        after = "" if self._last is None else f" WHERE ({order}) > ({', '.join('?' * len(key))})"
        # One more than wanted: the next query would skip a row with the same key as the last one.
        select = f"SELECT {self._selected} FROM {self._from}{after} ORDER BY {order} LIMIT {n + 1}"
        found = self._run(select, self._last or ()).fetchall()
        if not found:
            raise EndOfSource
        refused = self._refuse_inexact(found)
        refused.pop(n, None)
        rows = [dict(zip(self._names, row, strict=False)) for row in found]
        keys: list[KeyValues] = [tuple(row[name] for name in key) for row in rows]
        check_keys(keys, key)
        records = [self._record(row, values) for row, values in zip(rows[:n], keys, strict=False)]
        for index in refused:
            records[index].payload = Payload()
        self._last = keys[len(records) - 1]
        return Reading(records, refused)

    def check_position(self, position: bytes) -> None:
        decode_key(position, self.options.key)

    def locate_record(self, position: bytes) -> str:
        values = decode_key(position, self.options.key)
        shown = ", ".join(f"{name} {value}" for name, value in zip(self.options.key, values, strict=True))
        return f"{self.options.path} {self.options.table or 'query'} {shown}"

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> list[str]:
        """Open the database, read only; return the columns of the table or query."""
        options = self.options
        if not options.path.exists():
            raise FatalError(f"there is no {options.path}", suggestion="check the path")
        self._connection = connect(options.path, read_only=True)
        self._from = _quote_path(options.table) if options.table is not None else f"({options.query})"
        self._run("SET TimeZone = 'UTC'", ())
        described = self._run(f"SELECT * FROM {self._from} LIMIT 0", ()).description or ()
        self._read_columns({name: kind for name, kind, *_ in described})
        return self._names

    def _record(self, row: dict[str, Any], values: KeyValues) -> Record:
        key = dict(zip(self.options.key, values, strict=True))
        return Record(encode_key(values), Operation.SNAPSHOT, dict(self._collection), key, Payload(after=row))

    def _read_columns(self, types: dict[str, Any]) -> None:
        """Note what is selected: the columns, null where Python does not hold a value, and then whether it does."""
        for name in self.options.key:
            if name not in types:
                raise FatalError(f"there is no column {name!r}", suggestion=f"columns are {', '.join(types)}")
        for name, kind in types.items():
            check_type(name, kind)
        conditions = {name: inexact_condition(_quote(name), kind) for name, kind in types.items()}
        self._names = list(types)
        self._checked = {name: f"coalesce({each}, false)" for name, each in conditions.items() if each is not None}
        held = ", ".join(
            f"CASE WHEN {each} THEN NULL ELSE {_quote(name)} END AS {_quote(name)}"
            for name, each in self._checked.items()
            # Rows are ordered by the key as it is.
            if name not in self.options.key
        )
        self._selected = ", ".join([f"* REPLACE ({held})" if held else "*", *self._checked.values()])

    def _refuse_inexact(self, found: Sequence[Sequence[Any]]) -> dict[int, str]:
        """Return which rows have a value that Python does not hold. Raises FatalError if it is in a key."""
        refused: dict[int, str] = {}
        for name, number in zip(self._checked, range(len(self._names), len(found[0])), strict=True):
            inexact = [index for index, row in enumerate(found) if row[number]]
            why = f"a value of {name!r} is none that Python has: infinite, out of its years, or with months"
            if inexact and name in self.options.key:
                raise FatalError(why, suggestion=f"leave such rows out, or use `query` and cast it: {name}::VARCHAR")
            refused = dict.fromkeys(inexact, f"{why}; use `query` and cast it: {name}::VARCHAR") | refused
        return refused

    def _run(self, sql: str, values: Sequence[Any]) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None, "opened"
        try:
            return self._connection.execute(sql, list(values))
        except duckdb.ProgrammingError as error:
            text = " ".join(str(error).split())
            raise FatalError(
                f"DuckDB refuses to read: {text}", suggestion="check `table`, `query` and `key`"
            ) from error
        except duckdb.Error as error:
            raise unusable(self.options.path, error) from error


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_path(table: str) -> str:
    return ".".join(map(_quote, table.split(".")))
