"""SqlAlchemyTracker: records handled messages in the user's own database and transaction."""

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Engine, Float, LargeBinary, MetaData, String, Table, delete, insert, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

# MySQL cannot index a BLOB without a length.
_KEY = LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")


class SqlAlchemyTracker:
    """One row for each message, in the database that the handler changes.

    `once` writes in the given session and never commits, so the row commits or rolls back with the user's
    transaction. Two transactions with the same message wait for each other. For the second, the message is a repeat
    if the first committed, and new if it did not.
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
            # Trackers of several scopes may declare the same table in the user's MetaData.
            extend_existing=True,
        )

    def create(self, bind: Engine | Connection) -> None:
        """Create the table if it does not exist."""
        self.table.create(bind, checkfirst=True)

    def once(self, session: Session, key: bytes) -> bool:
        """Record the key in the transaction of the session. Return False if it was recorded before.

        Only an existing key means a repeat; every other error of the database is raised.
        """
        row = {"scope": self._scope, "key": key, "at": self._clock()}
        ignoring = _IGNORING.get(session.get_bind().dialect.name)
        if ignoring is None:
            return self._once_by_error(session, row)
        inserted = ignoring(self.table).values(row).on_conflict_do_nothing().returning(self.table.c.scope)
        return session.execute(inserted).first() is not None

    def _once_by_error(self, session: Session, row: Mapping[str, Any]) -> bool:
        """`once` for databases without an insert that skips existing rows."""
        try:
            with session.begin_nested():
                session.execute(insert(self.table).values(row))
        except IntegrityError:
            # Another constraint may have failed, such as a foreign key of the user's. That is no repeat.
            if self.seen(session, row["key"]):
                return False
            raise
        return True

    async def once_async(self, session: AsyncSession, key: bytes) -> bool:
        """`once` in a session of asyncio."""
        return await session.run_sync(self.once, key)

    def seen(self, session: Session, key: bytes) -> bool:
        """Return True if this session sees the key. Records nothing."""
        found = select(self.table.c.scope).where(self.table.c.scope == self._scope, self.table.c.key == key)
        return session.execute(found).first() is not None

    def forget(self, session: Session, age_seconds: float) -> int:
        """Delete keys older than `age_seconds`, in this session; return how many.

        Choose more than the longest time after which a message may be delivered again, also by hand.
        """
        old = delete(self.table).where(self.table.c.scope == self._scope, self.table.c.at < self._clock() - age_seconds)
        forgotten: int = session.execute(old).rowcount  # type: ignore[attr-defined]
        return forgotten


_IGNORING: dict[str, Callable[[Table], Any]] = {"postgresql": postgresql.insert}
if sqlite3.sqlite_version_info >= (3, 35):
    _IGNORING["sqlite"] = sqlite.insert
