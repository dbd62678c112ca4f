"""Reads a PostgreSQL source in tests: opens it, collects its records, acks them, tears it down."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import trio
from conduit_connectors import postgres

from conduit_py.sdk import Record

PATIENCE_SECONDS = 300


class ChangeReader:
    """An open source. Every call has a generous deadline, so that a test fails and does not hang."""

    def __init__(self, source: postgres.Source) -> None:
        self.source = source
        self.progress: list[bytes] = []
        """The positions that came without a record."""

    async def take(self, count: int, n: int = 100) -> list[Record]:
        """Read until there are this many records."""
        records: list[Record] = []
        with trio.fail_after(PATIENCE_SECONDS):
            while len(records) < count:
                reading = await self.source.read(min(n, count - len(records)))
                records += reading.records
                self.progress += [reading.position] if reading.position is not None else []
        return records

    async def take_until_quiet(self, seconds: float = 0.5) -> list[Record]:
        """Read until nothing comes for some time: for what a test shows, not for what it relies on."""
        records: list[Record] = []
        while True:
            with trio.move_on_after(seconds) as waiting:
                records += (await self.source.read(100)).records
            if waiting.cancelled_caught:
                return records

    async def progress_after(self, position: bytes | None = None) -> bytes:
        """Read until there is progress without a record."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                reading = await self.source.read(100)
                assert not reading.records, reading.records
                if reading.position is not None and reading.position != position:
                    return reading.position


@asynccontextmanager
async def open_reader(source: postgres.Source, position: bytes | None = None) -> AsyncIterator[ChangeReader]:
    """A fresh copy of the source, opened at the position."""
    fresh = source.fresh()
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            await fresh.open(position)
        yield ChangeReader(fresh)
    finally:
        with trio.CancelScope(shield=True):
            await fresh.teardown()


def slot_of(dsn: str) -> str:
    """The name of a slot for the tests of this database: slots are of the whole server, which other tests use too."""
    return f"slot_of_{dsn.rpartition('/')[2]}"


DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"


def run_sql(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each in its own transaction; return the rows of the last one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def run_transaction(dsn: str, *statements: str) -> None:
    """Run statements in one transaction."""
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement.encode())
