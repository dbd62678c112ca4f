"""MemoryLetterBox: dead letters that last as long as the process, for tests, simulation and throw-away runs."""

import sqlite3
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TypeVar

import trio

from conduit_py.store.letter_table import FORMAT, LetterTable
from conduit_py.store.letters import LetterBox

T = TypeVar("T")


class MemoryLetterBox(LetterBox):
    """Behaves as the SQLite box does, on a database in memory: without thread or disk, at once.

    `enter` and `enter_write` are awaited before a look and before a change, and may raise instead.
    """

    def __init__(self, enter: Callable[[], Awaitable[None]], enter_write: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._enter = enter
        self._enter_write = enter_write

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        # Most memory stores never see a letter. One may be used in several threads, one after the other.
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(FORMAT.schema)
        return connection

    @cached_property
    def _table(self) -> LetterTable:
        return LetterTable(self._connection)

    async def close(self) -> None:
        """Nothing to let go of: the store refuses what comes after its end."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _look(self, work: Callable[[LetterTable], T]) -> T:
        await self._enter()
        return work(self._table)

    async def _change(self, work: Callable[[LetterTable], T]) -> T:
        await self._enter_write()
        table = self._table
        self._connection.execute("BEGIN")
        try:
            result = work(table)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return result
