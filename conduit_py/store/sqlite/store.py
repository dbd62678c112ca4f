"""SqliteStore: the default store, one SQLite file in a directory that one process owns."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.group_commit import GroupCommitter
from conduit_py.store.sqlite.letters import SqliteDeadLetterStore
from conduit_py.store.sqlite.tables import SqliteSession, SqliteTables
from conduit_py.store.store import Kind, Store, StoredEntry

T = TypeVar("T")


class SqliteStore(Store):
    """Durable on the local disk. Concurrent writes share commits, so a hundred cost little more than one.

    After a failed commit every write raises StateFailed until the database was rescued, which later writes attempt;
    after a full disk the next write is attempted as it is. Reads go on and show what was durable before.
    """

    def __init__(self, database: StateDatabase, clock: Callable[[], float] = time.time) -> None:
        self._committer = GroupCommitter(database)
        self._clock = clock
        self.letters = SqliteDeadLetterStore(database.file.parent)

    @classmethod
    async def open(cls, directory: Path) -> "SqliteStore":
        """Open the store of a state directory, creating it if missing.

        Raises StateLocked when another process has it, and EnvironmentUnfit, with nothing changed, when
        it cannot be used: not a directory, not writable, damaged, foreign, or written by a newer version.
        """
        # Not abandoned on cancellation: the lock would be left behind with nobody to release it.
        return cls(await trio.to_thread.run_sync(StateDatabase.open, directory))

    @property
    def commits(self) -> int:
        """How many transactions became durable since the store was opened."""
        return self._committer.commits

    async def transact(self, work: Callable[[SqliteTables], T]) -> T:
        result: T = await self._committer.transact(lambda connection: work(self._tables(connection)))
        return result

    async def look(self, work: Callable[[SqliteTables], T]) -> T:
        result: T = await self._committer.look(lambda connection: work(self._tables(connection)))
        return result

    async def pipelines(self) -> list[str]:
        return await self.look(SqliteTables.pipelines)

    async def close(self) -> None:
        await self.letters.close()
        # Last, because it holds the lock of the directory.
        await self._committer.close()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        return await self.look(lambda tables: tables.entries(pipeline, kind))

    async def _save(self, rows: list[StoredEntry]) -> None:
        await self._committer.save(rows)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self.transact(lambda tables: tables.forget_entries(pipeline, kind, node))

    def _tables(self, connection: sqlite3.Connection) -> SqliteTables:
        return SqliteTables(SqliteSession(connection, self._clock))
