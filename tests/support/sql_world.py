"""Databases for the same tests: destinations for a database, and what a reader sees in it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest
from conduit_connectors import duckdb as duckdb_connector
from conduit_connectors import mysql, postgres, sqlalchemy, sqlite
from conduit_connectors.mysql.address import connect
from conduit_connectors.sql.database import SqlDatabase
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import RowEncoder
from conduit_connectors.sqlalchemy.any_database import AnyDatabase
from pymysql.converters import conversions


class World:
    """A database, destinations for it, and what a reader sees in it."""

    def __init__(
        self, kind: str, make: Callable[..., SqlDestination[Any]], read: Callable[[str], list[tuple[Any, ...]]]
    ) -> None:
        self.kind = kind
        self.make = make
        self.read = read

    def rows_of(self, table: str) -> list[tuple[Any, ...]]:
        """None, too, when there is no such table."""
        try:
            return self.read(f"SELECT * FROM {table}")
        except (
            sqlite3.OperationalError,
            psycopg.errors.UndefinedTable,
            duckdb.CatalogException,
            pymysql.err.ProgrammingError,
        ):
            return []

    def dicts(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table by their columns; none when there is no such table."""
        names = list(self.types(table))
        return [dict(zip(names, row, strict=True)) for row in self.rows_of(table)]

    def opened(self, **options: Any) -> SqlDestination[Any]:
        destination = self.make(**options)
        destination.open()
        return destination

    def run(self, *statements: str) -> None:
        """Run statements of a user of the database."""
        destination = self.opened(table="t")
        for statement in statements:
            destination._db.run(statement)
        destination.teardown()

    def types(self, table: str = "t") -> dict[str, str]:
        """The types of the columns, in lower case."""
        destination = self.opened(table=table)
        found = {name: column.name.lower() for name, column in destination._db.column_types(table).items()}
        destination.teardown()
        return found


def sqlite_world(path: Path) -> World:
    def read(sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql).fetchall()

    return World("sqlite", lambda **options: sqlite.Destination(path=path, **options), read)


def postgres_world(url: str) -> World:
    def read(sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    return World("postgres", lambda **options: postgres.Destination(url=url, **options), read)


def duckdb_world(path: Path) -> World:
    def read(sql: str) -> list[tuple[Any, ...]]:
        with closing(duckdb.connect(str(path))) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return list(connection.execute(sql).fetchall())

    return World("duckdb", lambda **options: duckdb_connector.Destination(path=path, **options), read)


def mysql_world(url: str) -> World:
    def read(sql: str) -> list[tuple[Any, ...]]:
        with closing(connect(url, conv=conversions)) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ANSI_QUOTES'")
            cursor.execute(sql)
            return list(cursor.fetchall())

    return World("mysql", lambda **options: mysql.Destination(url=url, **options), read)


def alchemy_world(world: World, url: str, *, known: bool = True) -> World:
    """The same database through SQLAlchemy; not `known`: as if it were one that only its dialect is known of."""
    kind = sqlalchemy.Destination if known else _Unknown
    return World(f"sqlalchemy-{world.kind}", lambda **options: kind(url=url, **options), world.read)


class _Unknown(sqlalchemy.Destination):
    """Writes to a database of which it has nothing but the dialect."""

    def connect(self) -> SqlDatabase:
        return AnyDatabase(self._engine())

    def make_encoder(self) -> RowEncoder:
        return self._plain_encoder(self._engine())


def alchemy_url(url: str) -> str:
    """The address of a server of the fixtures, as SQLAlchemy writes it."""
    return url.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A world of each kind, with an empty database."""
    if request.param == "sqlite":
        return sqlite_world(tmp_path / "data.db")
    return postgres_world(request.getfixturevalue("postgres"))
