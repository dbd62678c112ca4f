"""SqlAlchemyOutbox: an outbox in the user's own database, written in the user's own transaction."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from conduit_py.errors import StateFailed
from conduit_py.store.tables import OutboxMessage

T = TypeVar("T")
# SQLite counts up only primary keys of type INTEGER.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")


class SqlAlchemyOutbox:
    """`add` writes a message in the user's session. A Forwarder with this outbox sends it after the commit.

    Messages of one target are sent in the order in which they were written; those of concurrent transactions in any
    order. Forwarders in several processes share the targets.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: str = "conduit_outbox",
        metadata: MetaData | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._clock = clock
        metadata = metadata if metadata is not None else MetaData()
        self.messages = Table(
            table,
            metadata,
            Column("number", _NUMBER, primary_key=True, autoincrement=True),
            Column("target", String(255), nullable=False, index=True),
            Column("key", LargeBinary, nullable=False),
            Column("body", LargeBinary, nullable=False),
            # Otherwise SQLite gives the number of a removed message to a new one, and numbers would not only grow.
            sqlite_autoincrement=True,
        )
        self.leases = Table(
            f"{table}_leases",
            metadata,
            Column("target", String(255), primary_key=True),
            Column("holder", String(255), nullable=False),
            # Double precision: a single-precision time is off by minutes.
            Column("expires", Float(53), nullable=False),
        )

    def create(self, bind: Engine | Connection | None = None) -> None:
        """Create the tables if they do not exist."""
        for table in (self.messages, self.leases):
            table.create(bind if bind is not None else self._engine, checkfirst=True)

    def add(self, session: Session, target: str, body: bytes, *, key: bytes | None = None) -> bytes:
        """Send `body` to `target` after the transaction of the session is committed, and only then.

        Returns the key by which a receiver recognises a repeat: the given one, or a new one.
        """
        key = key if key is not None else uuid.uuid4().bytes
        session.execute(insert(self.messages).values(target=target, key=key, body=body))
        return key

    async def add_async(self, session: AsyncSession, target: str, body: bytes, *, key: bytes | None = None) -> bytes:
        """`add` in a session of asyncio."""
        return await session.run_sync(lambda inner: self.add(inner, target, body, key=key))

    async def targets(self) -> list[str]:
        target = self.messages.c.target
        return await self._run(lambda on: list(on.scalars(select(target).distinct().order_by(target))))

    async def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        return await self._run(lambda on: self._lease(on, target, holder, seconds, limit))

    async def extend(self, target: str, holder: str, seconds: float) -> bool:
        mine = (self.leases.c.target == target, self.leases.c.holder == holder)
        longer = update(self.leases).where(*mine).values(expires=self._clock() + seconds)
        return await self._run(lambda on: on.execute(longer).rowcount == 1)

    async def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        return await self._run(lambda on: self._forwarded(on, target, holder, numbers))

    async def release(self, target: str, holder: str) -> None:
        mine = (self.leases.c.target == target, self.leases.c.holder == holder)
        await self._run(lambda on: on.execute(delete(self.leases).where(*mine)) and None)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        def in_transaction() -> T:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                raise StateFailed(f"the outbox {self.messages.name!r} failed: {error.orig}") from error

        return await trio.to_thread.run_sync(in_transaction)

    def _lease(
        self, on: Connection, target: str, holder: str, seconds: float, limit: int
    ) -> list[OutboxMessage] | None:
        now = self._clock()
        row = {"holder": holder, "expires": now + seconds}
        free = (self.leases.c.holder == holder) | (self.leases.c.expires <= now)
        taken = on.execute(update(self.leases).where(self.leases.c.target == target, free).values(row)).rowcount
        if not taken and not self._first(on, row | {"target": target}):
            return None
        table = self.messages.c
        oldest = select(table.number, table.key, table.body).where(table.target == target).order_by(table.number)
        return [OutboxMessage(number, "", target, key, body) for number, key, body in on.execute(oldest.limit(limit))]

    def _first(self, on: Connection, row: dict[str, Any]) -> bool:
        """Insert the lease of a target that never had one. Return False if another holder was faster."""
        # In a savepoint: a failed insert would end the whole transaction in PostgreSQL.
        try:
            with on.begin_nested():
                on.execute(insert(self.leases).values(row))
        except IntegrityError:
            return False
        return True

    def _forwarded(self, on: Connection, target: str, holder: str, numbers: Sequence[int]) -> bool:
        mine = (self.leases.c.target == target, self.leases.c.holder == holder)
        # An update, not a select: it locks the row, so no other holder gets the lease before the messages are removed.
        if not on.execute(update(self.leases).where(*mine).values(holder=holder)).rowcount:
            return False
        on.execute(delete(self.messages).where(self.messages.c.number.in_(numbers)))
        return True
