"""`lookup.table` adds rows of a database table, with a cache of bounded size and age."""

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Required, Unpack

from pydantic import Field, SecretStr
from sqlalchemy import Engine, MetaData, Select, create_engine, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, NoSuchTableError, OperationalError

from conduit_processors.lookup.enrichment import LookupArguments, LookupOptions, enrich
from conduit_py.sdk import Batch, FatalError, Processor, RecordRefused, Result, Structured, TransientError
from conduit_py.sdk.template import kind_of

_KEYS_MAX = 500
"""The most keys of one query: databases limit parameters."""


class TableOptions(LookupOptions):
    """Options of lookup.table."""

    url: SecretStr = Field(description="the database as SQLAlchemy has it: postgresql+psycopg://…, sqlite:///a.db")
    table: str = Field(min_length=1, description="the table, or schema.table")
    cache_size: int = Field(default=10_000, ge=0, description="how many keys are remembered, missing ones included")
    cache_seconds: float = Field(default=60.0, ge=0, description="for how long they are; then the table is asked again")


class TableLookupArguments(LookupArguments, total=False):
    """TableOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    table: Required[str]
    cache_size: int
    cache_seconds: float


class Table(Processor[TableOptions]):
    """Looks up a value in a table of a database, one query for the values of a batch that the cache does not have.

    A key that several rows have refuses its records. If the database does not answer, the records wait for the retries
    of the node or the recovery of the pipeline.
    """

    blocking = True
    _engine: Engine | None = None

    def __init__(self, **options: Unpack[TableLookupArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._cache: OrderedDict[Any, tuple[float, Structured | Exception | None]] = OrderedDict()
        self._query: Select[Any] | None = None

    def process_batch(self, batch: Batch) -> Sequence[Result]:
        results: list[Result] = []
        keys: list[Any] = []
        for record in batch:
            try:
                value = self.options.key.get(record)
                if isinstance(value, dict | list):
                    raise RecordRefused(f"{self.options.key} is {kind_of(value)}, which no column holds")
                keys.append(value)
            except RecordRefused as refusal:
                keys.append(refusal)
        rows = self._find({key for key in keys if key is not None and not isinstance(key, RecordRefused)})
        for record, key in zip(batch, keys, strict=True):
            row = key if isinstance(key, RecordRefused) else rows.get(key)
            try:
                if isinstance(row, Exception):
                    raise row
                results.append(enrich(record, row and dict(row), self.options, key))
            except RecordRefused as refusal:
                results.append(refusal)
        return results

    def _find(self, keys: set[Any]) -> dict[Any, Structured | Exception | None]:
        now = time.monotonic()
        found = {key: self._cache[key][1] for key in keys if key in self._cache and self._cache[key][0] > now}
        for key in found:
            self._cache.move_to_end(key)
        for part in _parts(keys - found.keys()):
            found |= self._ask(part)
        for key in keys:
            if key not in self._cache or self._cache[key][0] <= now:
                self._cache[key] = (now + self.options.cache_seconds, found[key])
                self._cache.move_to_end(key)
        while len(self._cache) > self.options.cache_size:
            self._cache.popitem(last=False)
        return found

    def _ask(self, keys: list[Any]) -> dict[Any, Structured | Exception | None]:
        try:
            return self._select(keys)
        except OperationalError as error:
            raise TransientError(f"the table {self.options.table} does not answer: {error.orig}") from error
        except DBAPIError as error:
            # One value of the wrong type fails the query for all: each is asked alone.
            if len(keys) > 1:
                return {key: row for each in keys for key, row in self._ask([each]).items()}
            return {keys[0]: RecordRefused(f"cannot look up {str(keys[0])[:100]!r}: {error.orig}")}

    def _select(self, keys: list[Any]) -> dict[Any, Structured | Exception | None]:
        query, column = self._prepared(), self.options.column
        found: dict[Any, Structured | Exception | None] = dict.fromkeys(keys)
        assert self._engine is not None
        with self._engine.connect() as connection:
            for row in connection.execute(query.where(query.selected_columns[column].in_(keys))).mappings():
                key = row[column]
                if found.get(key) is not None:
                    found[key] = RecordRefused(f"several rows have {column} = {str(key)[:100]!r}")
                elif key in found:
                    wanted = self.options.columns or [str(name) for name in row]
                    found[key] = {name: row[name] for name in wanted}
        return found

    def _prepared(self) -> Select[Any]:
        """Return the query without its condition; connect and look at the table first, if that was not done."""
        if self._query is None:
            options = self.options
            schema, _, name = options.table.rpartition(".")
            try:
                self._engine = self._engine or create_engine(options.url.get_secret_value(), pool_pre_ping=True)
                table = SqlTable(name, MetaData(), schema=schema or None, autoload_with=self._engine)
                chosen = [options.column, *(options.columns or [each.name for each in table.columns])]
                self._query = select(*[table.c[each] for each in dict.fromkeys(chosen)])
            except NoSuchTableError as error:
                raise FatalError(f"there is no table {options.table!r}", suggestion="check table and url") from error
            except KeyError as error:
                known = ", ".join(each.name for each in table.columns)
                raise FatalError(f"{options.table} has no column {error}", suggestion=f"it has {known}") from error
            except (ArgumentError, NoSuchModuleError, ImportError) as error:
                what = f"url is none that SQLAlchemy can use here: {type(error).__name__}"
                raise FatalError(what, suggestion="write driver://user:password@host/database") from None
        return self._query

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()


def _parts(keys: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(keys)
    while part := list(islice(rest, _KEYS_MAX)):
        yield part
