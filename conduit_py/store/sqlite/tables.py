"""SqliteSession and SqliteTables: the dialect of SQLite, and its statements about many rows at once."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from conduit_py.store.claim import PublishedMessage
from conduit_py.store.sql_tables import Dialect, SqlSession, SqlTables

_VARIABLES_MAX = 960
"""In one statement: SQLite before 3.32 takes 999."""
T = TypeVar("T")


SQLITE = Dialect(
    placeholder="?",
    lock_rows="",  # One transaction runs at a time.
    text_position="instr",
    json_array="json_each({})",
    no_limit="-1",
    allows_nul=True,
)


class SqliteSession(SqlSession):
    """A transaction on a SQLite file, which one process has to itself: its clock is the time."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.connection = connection
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    def run(self, sql: str, *parameters: object) -> int:
        return self.connection.execute(sql, parameters).rowcount

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()


class SqliteTables(SqlTables):
    """Many rows go into one statement: each call releases the GIL, which a busy trio thread returns late."""

    def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        known: set[bytes] = set()
        for chunk in _chunks(keys, _VARIABLES_MAX):
            known.update(key for (key,) in self.sql.rows(_select_keys(len(chunk)), scope, *chunk))
        return known

    def record(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        # Sorted, so that neighbours in the index are written together.
        for chunk in _chunks(sorted(keys), _VARIABLES_MAX):
            try:
                self.sql.run(_record(len(chunk)), scope, self.sql.now(), *chunk)
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                    raise
                # The statement has undone itself.
                return self.known(scope, chunk)
        return set()

    def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        repeated = self.known(scope, list(keys))
        # Without the repeated ones: a single one of them would undo the statement for all.
        self.record(scope, list(set(keys) - repeated))
        return repeated

    def forget(self, scope: str, age_seconds: float, limit: int) -> int:
        before = self.sql.now() - age_seconds
        # Rows are in the order of their times, unless the clock was set back. So the last old row is found by
        # bisection, without an index that every insert would have to update; the time of each is checked anyway.
        old = "SELECT number FROM seen WHERE number <= ? AND scope = ? AND at < ? ORDER BY number LIMIT ?"
        return self.sql.run(f"DELETE FROM seen WHERE number IN ({old})", self._last(before), scope, before, limit)

    def _last(self, before: float) -> int:
        """A number up to which rows are older than that, and after which they are not."""
        [(low, high)] = self.sql.rows("SELECT coalesce(min(number), 0), coalesce(max(number), 0) FROM seen")
        while low < high:
            middle = (low + high) // 2
            [(number, at)] = self.sql.rows(
                "SELECT number, at FROM seen WHERE number > ? ORDER BY number LIMIT 1", middle
            )
            low, high = (number, high) if at < before else (low, middle)
        return int(high)

    def get_all(self, owner: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for chunk in _chunks(keys, _VARIABLES_MAX):
            sql = f"SELECT key, value FROM owned WHERE owner = ? AND key IN ({_marks(len(chunk))})"
            found += self.sql.rows(sql, owner, *chunk)
        return found

    def put(self, owner: str, values: Sequence[tuple[bytes, bytes]]) -> None:
        for chunk in _chunks(values, _VARIABLES_MAX // 2):
            self.sql.run(_put(len(chunk)), owner, *(part for row in chunk for part in row))

    def delete(self, owner: str, keys: Sequence[bytes]) -> None:
        for chunk in _chunks(keys, _VARIABLES_MAX):
            self.sql.run(f"DELETE FROM owned WHERE owner = ? AND key IN ({_marks(len(chunk))})", owner, *chunk)

    def add_messages(self, owner: str, messages: Sequence[PublishedMessage]) -> None:
        for chunk in _chunks(messages, _VARIABLES_MAX // 3):
            parts = (part for each in chunk for part in (each.target, each.key, each.body))
            self.sql.run(_add(len(chunk)), owner, *parts)


def _chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _marks(count: int) -> str:
    return ", ".join("?" * count)


# Numbered variables: the scope, the owner and the time are bound once for all rows.


@lru_cache(maxsize=64)
def _select_keys(count: int) -> str:
    return f"SELECT key FROM seen WHERE scope = ? AND key IN ({_marks(count)})"


@lru_cache(maxsize=64)
def _record(count: int) -> str:
    return "INSERT INTO seen (scope, at, key) VALUES " + ", ".join(f"(?1, ?2, ?{row + 3})" for row in range(count))


@lru_cache(maxsize=64)
def _put(count: int) -> str:
    rows = ", ".join(f"(?1, ?{2 * row + 2}, ?{2 * row + 3})" for row in range(count))
    return f"INSERT OR REPLACE INTO owned (owner, key, value) VALUES {rows}"


@lru_cache(maxsize=64)
def _add(count: int) -> str:
    rows = ", ".join(f"(?1, ?{3 * row + 2}, ?{3 * row + 3}, ?{3 * row + 4})" for row in range(count))
    return f"INSERT INTO intents (owner, target, key, body) VALUES {rows}"
