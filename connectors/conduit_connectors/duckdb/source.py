"""The DuckDB source: the rows of a table or of a query, in the order of a key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import duckdb
from pydantic import Field, model_validator

from conduit_connectors.duckdb.database import connect, unusable
from conduit_connectors.sql.keyset import KeyValues, check_keys, decode_key, encode_key
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, Operation, Options, Payload, Record, metadata

_CUT = ("TIMESTAMP_NS", "TIME_NS")
"""Types that have more digits than the times of Python."""


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

    While it runs no process can write the file: that is a rule of DuckDB. A query may be any that reads: it is the
    operator's, and may read other files too.
    """

    gives = dict

    _connection: duckdb.DuckDBPyConnection | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

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

    def read(self, n: int) -> list[Record]:
        key = self.options.key
        order = ", ".join(map(_quote, key))
        after = "" if self._last is None else f" WHERE ({order}) > ({', '.join('?' * len(key))})"
        # One more than wanted: the next query would skip a row with the same key as the last one.
        found = self._run(f"SELECT * FROM {self._from}{after} ORDER BY {order} LIMIT {n + 1}", self._last or ())
        names = [column[0] for column in found.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        keys: list[KeyValues] = [tuple(row[name] for name in key) for row in rows]
        check_keys(keys, key)
        if not rows:
            raise EndOfSource
        records = [self._record(row, values) for row, values in zip(rows[:n], keys, strict=False)]
        self._last = keys[len(records) - 1]
        return records

    def check_position(self, position: bytes) -> None:
        decode_key(position, self.options.key)

    def locate_record(self, position: bytes) -> str:
        values = decode_key(position, self.options.key)
        told = ", ".join(f"{name} {value}" for name, value in zip(self.options.key, values, strict=True))
        return f"{self.options.path} {self.options.table or 'query'} {told}"

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
        described = self._run(f"DESCRIBE SELECT * FROM {self._from}", ()).fetchall()
        self._check_columns({name: str(kind) for name, kind, *_ in described})
        return [name for name, *_ in described]

    def _record(self, row: dict[str, Any], values: KeyValues) -> Record:
        key = dict(zip(self.options.key, values, strict=True))
        return Record(encode_key(values), Operation.SNAPSHOT, dict(self._collection), key, Payload(after=row))

    def _check_columns(self, types: dict[str, str]) -> None:
        for name in self.options.key:
            if name not in types:
                raise FatalError(f"there is no column {name!r}", suggestion=f"columns are {', '.join(types)}")
        for name, kind in types.items():
            if any(each in kind for each in _CUT):
                raise FatalError(
                    f"the column {name!r} is of the type {kind}, of which Python would cut digits",
                    suggestion=f"use `query` and cast it: {name}::TIMESTAMP, or {name}::VARCHAR",
                )

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
