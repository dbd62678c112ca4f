"""PostgresSession and PostgresTables: the dialect of PostgreSQL, and its statements about many rows at once.

`prepare` creates the schema, migrates an older one and refuses a newer one.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from conduit_py.errors import EnvironmentUnfit
from conduit_py.store.claim import PublishedMessage
from conduit_py.store.sql_tables import Dialect, SqlSession, SqlTables
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
        # Once for each transaction: it costs a round trip to the server.
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
        # Sorted, so that two servers that save the same entries cannot deadlock.
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
        # Sorted, so that two transactions that record the same keys cannot deadlock. The second one waits until the
        # first has ended, so that only one of them finds the key new.
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

    def get_all(self, owner: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        sql = "SELECT key, value FROM owned WHERE owner = ? AND key = ANY(?::bytea[])"
        return self.sql.rows(sql, owner, list(keys))

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

    def add_messages(self, owner: str, messages: Sequence[PublishedMessage]) -> None:
        # In this order: a target gets its messages by number, and the database numbers rows as they come.
        self.sql.run(
            "INSERT INTO intents (owner, target, key, body) SELECT ?, target, key, body"
            " FROM unnest(?::text[], ?::bytea[], ?::bytea[]) WITH ORDINALITY AS new (target, key, body, place)"
            " ORDER BY place",
            owner,
            [message.target for message in messages],
            [message.key for message in messages],
            [message.body for message in messages],
        )


SCHEMA = "conduit_py"
"""The schema that has all of our tables and nothing else."""
LOCK = 0x436E6470
"""The first half of the keys of our advisory locks: "Cndp"."""

# Text is compared byte by byte, as everywhere else.
_VERSIONS: tuple[tuple[str, ...], ...] = (
    (
        'CREATE TABLE entries (pipeline text COLLATE "C" NOT NULL, kind text COLLATE "C" NOT NULL,'
        ' node text COLLATE "C" NOT NULL, value bytea NOT NULL, PRIMARY KEY (pipeline, kind, node))',
        'CREATE TABLE claims (owner text COLLATE "C" PRIMARY KEY, fence bigint NOT NULL CHECK (fence > 0),'
        " committed bigint NOT NULL, checkpoint bytea)",
        'CREATE TABLE owned (owner text COLLATE "C" NOT NULL, key bytea NOT NULL, value bytea NOT NULL,'
        " PRIMARY KEY (owner, key))",
        'CREATE TABLE seen (number bigint GENERATED ALWAYS AS IDENTITY, scope text COLLATE "C" NOT NULL,'
        " key bytea NOT NULL, at double precision NOT NULL, PRIMARY KEY (scope, key))",
        "CREATE INDEX seen_by_age ON seen (scope, at)",
        "CREATE TABLE intents (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL,"
        ' target text COLLATE "C" NOT NULL, key bytea NOT NULL, body bytea NOT NULL)',
        "CREATE INDEX intents_in_order ON intents (target, number)",
        'CREATE TABLE leases (target text COLLATE "C" PRIMARY KEY, holder text NOT NULL,'
        " expires double precision NOT NULL)",
        'CREATE TABLE shards (scope text COLLATE "C" NOT NULL, shard text COLLATE "C" NOT NULL, token text NOT NULL,'
        " position bytea NOT NULL, done integer NOT NULL, updated double precision NOT NULL,"
        " PRIMARY KEY (scope, shard))",
        "CREATE TABLE letters (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE,"
        ' pipeline text COLLATE "C" NOT NULL, source text NOT NULL, nodes text NOT NULL,'
        ' node text COLLATE "C" NOT NULL, error text NOT NULL,'
        ' cause text COLLATE "C" NOT NULL, state text NOT NULL, queued_for text NOT NULL,'
        " turn bigint NOT NULL, attempts bigint NOT NULL, edited boolean NOT NULL, first_at double precision NOT NULL,"
        " last_at double precision NOT NULL, bytes bigint NOT NULL, letter bytea NOT NULL)",
        "CREATE INDEX letters_by_pipeline ON letters (pipeline, state, turn, bytes)",
        "CREATE INDEX letters_by_cause ON letters (pipeline, node, md5(cause), last_at)",
        "CREATE TABLE turns (turn bigint NOT NULL)",
        "INSERT INTO turns VALUES (0)",
        'CREATE TABLE holders (pipeline text COLLATE "C" PRIMARY KEY, holder text NOT NULL)',
    ),
)

FORMAT_VERSION = len(_VERSIONS)


def prepare(connection: "Connection[Any]", place: str) -> None:
    """Create the tables, or migrate those of an earlier version. Raises EnvironmentUnfit for a later version.

    Several servers may call it at once: they take turns, and the later ones find it done.
    """
    with connection.transaction():
        # Held to the end of the transaction, so the next server finds the tables complete.
        connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", [LOCK])
        version = _version(connection)
        if version > FORMAT_VERSION:
            raise EnvironmentUnfit(
                f"{place} has format version {version}; this conduit-py can read versions 1 to {FORMAT_VERSION}",
                suggestion="use the version of conduit-py that wrote it, or choose another database with --state",
            )
        if version < FORMAT_VERSION:
            _bring_up_to_date(connection, version)


def _version(connection: "Connection[Any]") -> int:
    """0 when there is nothing yet."""
    if connection.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.format"]).fetchone() == (None,):
        return 0
    row = connection.execute(f"SELECT version FROM {SCHEMA}.format").fetchone()
    return int(row[0]) if row else 0


def _bring_up_to_date(connection: "Connection[Any]", version: int) -> None:
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    connection.execute(f"SET LOCAL search_path = {SCHEMA}")
    if version == 0:
        connection.execute("CREATE TABLE format (version integer NOT NULL)")
        connection.execute("INSERT INTO format VALUES (0)")
    for statements in _VERSIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute("UPDATE format SET version = %s", [FORMAT_VERSION])
