"""PostgresTables: the tables of a store in PostgreSQL."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from conduit_py.store.claim import Intent
from conduit_py.store.sql_tables import SqlTables

if TYPE_CHECKING:
    from psycopg import Connection

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


class PostgresTables(SqlTables):
    """Many rows go as arrays into one statement. Times are those of the server, which all clients share."""

    for_update: ClassVar[str] = " FOR UPDATE"

    def __init__(self, connection: "Connection[Any]") -> None:
        self._connection = connection
        self._now: float | None = None

    def now(self) -> float:
        # Once for each transaction: it is a question to the server.
        if self._now is None:
            self._now = float(self.rows(_NOW)[0][0])
        return self._now

    def run(self, sql: str, *parameters: object) -> int:
        return self._connection.execute(sql.replace("?", "%s"), parameters, binary=True).rowcount

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        return self._connection.execute(sql.replace("?", "%s"), parameters, binary=True).fetchall()

    def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        found = self.rows("SELECT key FROM seen WHERE scope = ? AND key = ANY(?::bytea[])", scope, list(keys))
        return {key for (key,) in found}

    def record(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        # In their order: two transactions that record the same keys then wait for each other one way only.
        new = self.rows(
            "INSERT INTO seen (scope, key, at) SELECT ?, key, ? FROM unnest(?::bytea[]) AS key"
            " ON CONFLICT DO NOTHING RETURNING key",
            scope,
            self.now(),
            sorted(keys),
        )
        return set(keys) - {key for (key,) in new} if len(new) < len(keys) else set()

    def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        return self.record(scope, list(set(keys)))

    def put(self, owner: str, values: Sequence[tuple[bytes, bytes]]) -> None:
        keys, contents = zip(*values, strict=True)
        self.run(
            "INSERT INTO owned (owner, key, value) SELECT ?, key, value FROM unnest(?::bytea[], ?::bytea[])"
            " AS new (key, value) ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value",
            owner,
            list(keys),
            list(contents),
        )

    def delete(self, owner: str, keys: Sequence[bytes]) -> None:
        self.run("DELETE FROM owned WHERE owner = ? AND key = ANY(?::bytea[])", owner, list(keys))

    def add_intents(self, owner: str, intents: Sequence[Intent]) -> None:
        self.run(
            "INSERT INTO intents (owner, target, key, body) SELECT ?, target, key, body"
            " FROM unnest(?::text[], ?::bytea[], ?::bytea[]) WITH ORDINALITY AS new (target, key, body, place)"
            " ORDER BY place",
            owner,
            [intent.target for intent in intents],
            [intent.key for intent in intents],
            [intent.body for intent in intents],
        )
