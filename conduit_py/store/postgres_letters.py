"""PostgresLetterBox: the dead letters of a store in PostgreSQL."""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import trio

from conduit_py.store.letter_table import LetterTable
from conduit_py.store.letters import LetterBox
from conduit_py.store.postgres_pool import Connection, PostgresPool

T = TypeVar("T")


class PostgresLetterBox(LetterBox):
    """Letters that every server sees which shares the database.

    A pipeline that runs in another server sends letters that were queued here when its next run begins.
    """

    def __init__(self, pool: PostgresPool) -> None:
        super().__init__()
        self._pool = pool

    async def close(self) -> None:
        """Nothing to let go of: the connections are the store's."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _look(self, work: Callable[[LetterTable], T]) -> T:
        return await self._pool.transact(lambda connection: work(_Table(connection)), durably=False)

    async def _change(self, work: Callable[[LetterTable], T]) -> T:
        return await self._pool.transact(lambda connection: work(_Table(connection)))


class _Table(LetterTable):
    """The table for one transaction. Turns are counted in the database, for all servers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = cast(sqlite3.Connection, _Translator(connection))

    @property
    def _turn(self) -> int:
        turn: int = self._one("SELECT turn FROM turns FOR UPDATE")
        return turn

    @_turn.setter
    def _turn(self, turn: int) -> None:
        self._connection.execute("UPDATE turns SET turn = ?", (turn,))


class _Translator:
    """A connection that takes the statements of LetterTable, which are written for SQLite."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> Any:
        for theirs, ours in _WORDS:
            sql = sql.replace(theirs, ours)
        sql = re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql).replace("?", "%s")
        if isinstance(values, Mapping):
            # Text in PostgreSQL has no zero byte; what is shown in its place is in the letter as it was.
            values = {name: v.replace("\0", "␀") if isinstance(v, str) else v for name, v in values.items()}
        return self._connection.execute(sql, values)


_WORDS = (
    ("(SELECT value FROM json_each(?))", "(SELECT json_array_elements_text(?::json))"),
    ("FROM json_each(nodes)", "FROM json_array_elements_text(nodes::json) AS each (value)"),
    ("instr(", "strpos("),
    ("sum(bytes)", "sum(bytes)::bigint"),
    ("WHERE 1", "WHERE TRUE"),
    ("LIMIT -1 OFFSET", "OFFSET"),
)
