"""PostgresSession and PostgresTables: the dialect of PostgreSQL, and its statements about many rows at once."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from conduit_py.store.claim import Intent
from conduit_py.store.dialect import Dialect, SqlSession
from conduit_py.store.sql_tables import SqlTables
from conduit_py.store.store import StoredEntry

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


POSTGRES = Dialect(
    placeholder="%s",
    lock_rows=" FOR UPDATE",
    text_position="strpos",
    json_array="json_array_elements_text({}::json) AS element (value)",
    no_limit="ALL",
    allows_nul=False,
)


class PostgresSession(SqlSession):
    """A transaction on a server. Times are those of the server, which all clients share."""

    dialect = POSTGRES

    def __init__(self, connection: "Connection[Any]") -> None:
        self._connection = connection
        self._now: float | None = None

    def now(self) -> float:
        # Once for each transaction: it is a question to the server.
        if self._now is None:
            self._now = float(self.value(_NOW))
        return self._now

    def run(self, sql: str, *parameters: object) -> int:
        return self._execute(sql, parameters).rowcount

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        return self._execute(sql, parameters).fetchall()

    def _execute(self, sql: str, parameters: tuple[object, ...]) -> "Cursor[Any]":
        return self._connection.execute(sql.replace("?", POSTGRES.placeholder), parameters, binary=True)


class PostgresTables(SqlTables):
    """Many rows go as arrays into one statement."""

    def save_entries(self, entries: Sequence[StoredEntry]) -> None:
        # In their order, so that two servers that save the same ones do not wait for each other.
        columns = zip(*sorted(entries), strict=True)
        self.sql.run(
            "INSERT INTO entries (pipeline, kind, node, value)"
            " SELECT * FROM unnest(?::text[], ?::text[], ?::text[], ?::bytea[])"
            " ON CONFLICT (pipeline, kind, node) DO UPDATE SET value = excluded.value",
            *map(list, columns),
        )

    def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        found = self.sql.rows("SELECT key FROM seen WHERE scope = ? AND key = ANY(?::bytea[])", scope, list(keys))
        return {key for (key,) in found}

    def record(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        # In their order: two transactions that record the same keys then wait for each other one way only.
        new = self.sql.rows(
            "INSERT INTO seen (scope, key, at) SELECT ?, key, ? FROM unnest(?::bytea[]) AS key"
            " ON CONFLICT DO NOTHING RETURNING key",
            scope,
            self.sql.now(),
            sorted(keys),
        )
        return set(keys) - {key for (key,) in new} if len(new) < len(keys) else set()

    def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        return self.record(scope, list(set(keys)))

    def put(self, owner: str, values: Sequence[tuple[bytes, bytes]]) -> None:
        keys, contents = zip(*values, strict=True)
        self.sql.run(
            "INSERT INTO owned (owner, key, value) SELECT ?, key, value FROM unnest(?::bytea[], ?::bytea[])"
            " AS new (key, value) ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value",
            owner,
            list(keys),
            list(contents),
        )

    def delete(self, owner: str, keys: Sequence[bytes]) -> None:
        self.sql.run("DELETE FROM owned WHERE owner = ? AND key = ANY(?::bytea[])", owner, list(keys))

    def add_intents(self, owner: str, intents: Sequence[Intent]) -> None:
        self.sql.run(
            "INSERT INTO intents (owner, target, key, body) SELECT ?, target, key, body"
            " FROM unnest(?::text[], ?::bytea[], ?::bytea[]) WITH ORDINALITY AS new (target, key, body, place)"
            " ORDER BY place",
            owner,
            [intent.target for intent in intents],
            [intent.key for intent in intents],
            [intent.body for intent in intents],
        )
