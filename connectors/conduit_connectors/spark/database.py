"""JdbcDatabase: the SQL of a JDBC destination: staging tables, and the ledger of those that were applied."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conduit_connectors.spark.changes import GONE, ORDER
from conduit_py.sdk import FatalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = "conduit_ledger"


class JdbcDatabase:
    """A database that Spark's Java has a driver for. Every method is a transaction of its own.

    The ledger has a row for each staging table, inserted before the table is created. `apply` marks it in the
    transaction that copies the rows, so they are copied once. Tables that are not applied can be found and dropped.
    """

    def __init__(self, session: "SparkSession", url: str, driver: str, table: str, options: dict[str, str]) -> None:
        self._java: Any = session._jvm
        self._url = url
        self._table = table
        self._options = options
        schema, dot, _ = table.rpartition(".")
        self._schema = f"{schema}{dot}"
        self._register(driver)

    def prepare(self) -> None:
        """Create the ledger if it does not exist."""
        if self._exists(LEDGER):
            return
        columns = "stage VARCHAR(128) PRIMARY KEY, owner VARCHAR(64), fence BIGINT, applied INT"
        self._run(f"CREATE TABLE {self._schema}{LEDGER} ({columns})")

    def stage(self, owner: str, fence: int, number: int, key: Sequence[str] = ()) -> str:
        """Enter a new staging table in the ledger and return its name. In PostgreSQL it is created like the target."""
        name = f"{self._schema}conduit_stage_{_short(owner)}_{fence if fence >= 0 else 'plain'}_{number}"
        insert = f"INSERT INTO {self._schema}{LEDGER} (stage, owner, fence, applied) VALUES (?, ?, ?, 0)"
        # Before the table exists: a crash in between leaves an entry to drop, never a table that nothing finds.
        self._run(insert, name, _short(owner), fence)
        if self._url.startswith("jdbc:postgresql:"):
            # With constraints, so that a violation shows before anything is committed.
            self._run(f"CREATE TABLE {name} (LIKE {self._table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
            if key:
                self._run(self._with_changes(name, key))
        return name

    def count(self, table: str) -> int:
        with self._connection() as connection:
            found = connection.createStatement().executeQuery(f"SELECT count(*) FROM {table}")
            found.next()
            return int(found.getLong(1))

    def is_unique(self, key: Sequence[str]) -> bool:
        """Whether PostgreSQL has a unique index of exactly these columns."""
        query = (
            'SELECT string_agg(attname, chr(1) ORDER BY attname COLLATE "C") FROM pg_index '
            "JOIN LATERAL unnest((indkey::int2[])[0:indnkeyatts - 1]) AS number ON true "
            "JOIN pg_attribute ON attrelid = indrelid AND attnum = number "
            "WHERE indrelid = to_regclass(?) AND indisunique AND indimmediate AND indpred IS NULL GROUP BY indexrelid"
        )
        return "\1".join(sorted(key)) in self._texts(query, self._table)

    def apply(self, stage: str, columns: Sequence[str], key: Sequence[str] = ()) -> None:
        """Copy the rows of a stage to the table and mark it applied, in one transaction; a second call copies nothing.

        With a key, rows replace those with the same key, and rows marked GONE are deleted.
        """
        with self._connection() as connection:
            quote = str(connection.getMetaData().getIdentifierQuoteString()).strip()
            names = [f"{quote}{name}{quote}" for name in columns]
            keys = [f"{quote}{name}{quote}" for name in key]
            mark = f"UPDATE {self._schema}{LEDGER} SET applied = 1 WHERE stage = ? AND applied = 0"
            if _execute(connection, mark, (stage,)):
                for statement in self._merge(stage, names, keys) if key else [self._insert(stage, names)]:
                    _execute(connection, statement, ())
                connection.commit()
        self._drop(stage)

    def _insert(self, stage: str, names: Sequence[str]) -> str:
        listed = ", ".join(names)
        return f"INSERT INTO {self._table} ({listed}) SELECT {listed} FROM {stage}"

    def _merge(self, stage: str, names: Sequence[str], keys: Sequence[str]) -> list[str]:
        """In PostgreSQL's SQL. Of several changes of one key only the last counts."""
        listed, by = ", ".join(names), ", ".join(keys)
        last = f"(SELECT DISTINCT ON ({by}) * FROM {stage} ORDER BY {by}, {ORDER} DESC) AS last"
        same = " AND ".join(f"old.{name} = last.{name}" for name in keys)
        values = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name not in keys)
        update = f"UPDATE SET {values}" if values else "NOTHING"
        return [
            f"DELETE FROM {self._table} AS old USING {last} WHERE last.{GONE} AND {same}",
            f"INSERT INTO {self._table} ({listed}) SELECT {listed} FROM {last} WHERE NOT last.{GONE} "
            f"ON CONFLICT ({by}) DO {update}",
        ]

    def _with_changes(self, stage: str, key: Sequence[str]) -> str:
        """Add the columns of changes. A deletion has only the key, so other columns may be null in its row."""
        query = (
            "SELECT attname FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped AND attnotnull"
        )
        changes = [f"ADD COLUMN {ORDER} BIGINT", f"ADD COLUMN {GONE} BOOLEAN"]
        for name in self._texts(query, self._table):
            if name not in key:
                changes.append(f'ALTER COLUMN "{name}" DROP NOT NULL')
                changes.append(f'ADD CHECK ({GONE} OR "{name}" IS NOT NULL)')
        return f"ALTER TABLE {stage} {', '.join(changes)}"

    def discard(self, owner: str, fence: int) -> None:
        """Drop the stages of this owner up to a fence. Those not applied were never committed, so they must go."""
        where = "WHERE owner = ? AND fence <= ?"
        for stage in self._texts(f"SELECT stage FROM {self._schema}{LEDGER} {where}", _short(owner), fence):
            self._drop(stage)
        self._run(f"DELETE FROM {self._schema}{LEDGER} {where}", _short(owner), fence)

    def forget(self, stage: str) -> None:
        """Drop a stage, and its row in the ledger."""
        self._drop(stage)
        self._run(f"DELETE FROM {self._schema}{LEDGER} WHERE stage = ?", stage)

    def _drop(self, stage: str) -> None:
        if self._exists(stage.rpartition(".")[2]):
            self._run(f"DROP TABLE {stage}")

    def _exists(self, table: str) -> bool:
        """Whether a table exists. Databases store unquoted names in upper or lower case."""
        with self._connection() as connection:
            catalog = connection.getMetaData()
            return any(catalog.getTables(None, None, name, None).next() for name in (table.lower(), table.upper()))

    def _texts(self, sql: str, *values: str | int) -> list[str]:
        """The first column of a query's result."""
        with self._connection() as connection:
            query = connection.prepareStatement(sql)
            _bind(query, values)
            found, texts = query.executeQuery(), []
            while found.next():
                texts.append(str(found.getString(1)))
            return texts

    def _run(self, sql: str, *values: str | int) -> None:
        with self._connection() as connection:
            _execute(connection, sql, values)
            connection.commit()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        properties = self._java.java.util.Properties()
        for name, value in self._options.items():
            properties.setProperty(name, value)
        connection = self._java.java.sql.DriverManager.getConnection(self._url, properties)
        try:
            connection.setAutoCommit(False)
            yield connection
            connection.rollback()
        finally:
            connection.close()

    def _register(self, driver: str) -> None:
        from py4j.protocol import Py4JError

        try:
            self._java.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(driver)
        except Py4JError as error:
            raise FatalError(
                f"Spark has no JDBC driver {driver}",
                suggestion='give the path of its jar in conf={"spark.jars": "…"}, or correct `driver`',
            ) from error


def _execute(connection: Any, sql: str, values: Sequence[str | int]) -> int:
    statement = connection.prepareStatement(sql)
    _bind(statement, values)
    return int(statement.executeUpdate())


def _bind(statement: Any, values: Sequence[str | int]) -> None:
    for index, value in enumerate(values, 1):
        if isinstance(value, str):
            statement.setString(index, value)
        else:
            statement.setLong(index, value)


def _short(owner: str) -> str:
    """A name for an owner that fits into the name of a table."""
    return hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()
