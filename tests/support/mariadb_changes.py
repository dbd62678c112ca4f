"""Reads a MySQL source in tests, as `postgres_changes` does with that of PostgreSQL, and runs statements."""

from contextlib import closing
from typing import Any

import postgres_changes
from conduit_connectors.mysql.address import connect, parse_address

open_reader: Any = postgres_changes.open_reader
"""A fresh copy of a source, opened at a position."""


def database_of(url: str) -> str:
    return str(parse_address(url)["database"])


def replica_of(url: str) -> int:
    """The number of a replica for the tests of this database: two with the same one end each other."""
    return int(database_of(url).rpartition("_")[2]) % (2**32 - 2) + 1


def run_sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each in its own transaction; return the rows of the last one, as texts."""
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def run_transaction(url: str, *statements: str) -> None:
    """Run statements in one transaction."""
    run_sql(url, "BEGIN", *statements, "COMMIT")
