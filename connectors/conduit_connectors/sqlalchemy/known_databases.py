"""The databases that have a connector of their own: it writes through connections that SQLAlchemy makes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import Engine

from conduit_connectors.sql.database import SqlDatabase
from conduit_connectors.sql.destination import SqlDestination


class KnownDatabase(NamedTuple):
    """What writes to a database, and the destination whose rules for names and values hold for it."""

    connect: Callable[[Engine], SqlDatabase]
    like: Callable[[], type[SqlDestination[Any]]]


def known_database(engine: Engine) -> KnownDatabase | None:
    """Return what is known of the database of an engine; None if nothing but its dialect is."""
    return _KNOWN.get((engine.dialect.name, engine.dialect.driver))


# Imported only here: the driver of another database may not be installed.
def _like_sqlite() -> type[SqlDestination[Any]]:
    from conduit_connectors.sqlite import Destination

    return Destination


def _connect_sqlite(engine: Engine) -> SqlDatabase:
    import sqlite3

    from conduit_connectors.sqlite import SqliteDatabase, unusable

    path = Path(engine.url.database or "")
    try:
        connection = _make_connection(engine)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    connection.isolation_level = None
    return SqliteDatabase(path, connection)


def _like_postgres() -> type[SqlDestination[Any]]:
    from conduit_connectors.postgres.destination import Destination

    return Destination


def _connect_postgres(engine: Engine) -> SqlDatabase:
    import psycopg

    from conduit_connectors.postgres.database import PostgresDatabase, connection_error

    try:
        connection = _make_connection(engine)
    except psycopg.OperationalError as error:
        raise connection_error(error) from error
    connection.autocommit = True
    return PostgresDatabase(connection)


def _like_mysql() -> type[SqlDestination[Any]]:
    from conduit_connectors.mysql.destination import Destination

    return Destination


def _connect_mysql(engine: Engine) -> SqlDatabase:
    import pymysql

    from conduit_connectors.mysql.address import connection_error
    from conduit_connectors.mysql.database import MySqlDatabase

    def make_connection() -> Any:
        try:
            connection = _make_connection(engine)
        except (pymysql.Error, OSError, RuntimeError) as error:
            raise connection_error(error) from error
        connection.autocommit(True)
        return connection

    return MySqlDatabase(make_connection)


def _make_connection(engine: Engine) -> Any:
    """Return a connection of the driver, which belongs to no pool."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    return engine.dialect.connect(*arguments, **options)


_MYSQL = KnownDatabase(_connect_mysql, _like_mysql)
_KNOWN = {
    ("sqlite", "pysqlite"): KnownDatabase(_connect_sqlite, _like_sqlite),
    ("postgresql", "psycopg"): KnownDatabase(_connect_postgres, _like_postgres),
    ("mysql", "pymysql"): _MYSQL,
    ("mariadb", "pymysql"): _MYSQL,
}
