"""SqlAlchemyTracker: messages that were handled, in the user's own database and transaction."""

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Engine, Float, LargeBinary, MetaData, String, Table, delete, insert, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

_KEY = LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")


class SqlAlchemyTracker:
    """One row for each message, in a table of the database that holds what handling it changed.

    `once` writes in the session that it is given and never commits: the row is there when the user's own
    transaction is committed and not when it is rolled back. Two transactions with the same message wait
    for each other; the second is told of a repeat if the first was committed, and goes on if not.
    """

    def __init__(
        self,
        scope: str = "",
        *,
        table: str = "conduit_seen",
        metadata: MetaData | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Trackers with different scopes may share a table. With `metadata` the table is one of the user's own."""
        self._scope = scope
        self._clock = clock
        self.table = Table(
            table,
            metadata if metadata is not None else MetaData(),
            Column("scope", String(255), primary_key=True),
            Column("key", _KEY, primary_key=True),
            Column("at", Float(53), nullable=False, index=True),
            extend_existing=True,
        )

    def create(self, bind: Engine | Connection) -> None:
        """Create the table unless it is there."""
        self.table.create(bind, checkfirst=True)

    def once(self, session: Session, key: bytes) -> bool:
        """Record the key in the transaction of the session; False when it was recorded before.

        Only a key that is there means a repeat; any other error of the database is raised as it is.
        """
        row = {"scope": self._scope, "key": key, "at": self._clock()}
        ignoring = _IGNORING.get(session.get_bind().dialect.name)
        if ignoring is None:
            return self._once_by_error(session, row)
        inserted = ignoring(self.table).values(row).on_conflict_do_nothing().returning(self.table.c.scope)
        return session.execute(inserted).first() is not None

    def _once_by_error(self, session: Session, row: Mapping[str, Any]) -> bool:
        """For databases without a way to insert a row unless it is there."""
        try:
            with session.begin_nested():
                session.execute(insert(self.table).values(row))
        except IntegrityError:
            if self.seen(session, row["key"]):
                return False
            raise
        return True

    async def once_async(self, session: AsyncSession, key: bytes) -> bool:
        """`once` in a session of asyncio."""
        return await session.run_sync(self.once, key)

    def seen(self, session: Session, key: bytes) -> bool:
        """Whether the key is recorded, as far as this session sees; records nothing."""
        found = select(self.table.c.scope).where(self.table.c.scope == self._scope, self.table.c.key == key)
        return session.execute(found).first() is not None

    def forget(self, session: Session, age_seconds: float) -> int:
        """Forget what was recorded longer ago than that, in this session; returns how many it was.

        Choose it longer than a message may be delivered again, by hand too.
        """
        old = delete(self.table).where(self.table.c.scope == self._scope, self.table.c.at < self._clock() - age_seconds)
        forgotten: int = session.execute(old).rowcount  # type: ignore[attr-defined]
        return forgotten


_IGNORING: dict[str, Callable[[Table], Any]] = {"postgresql": postgresql.insert}
if sqlite3.sqlite_version_info >= (3, 35):
    _IGNORING["sqlite"] = sqlite.insert
