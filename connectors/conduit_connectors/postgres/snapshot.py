"""Snapshot: reads tables as a whole while their changes stream, in chunks, without locks and long transactions.

A chunk is selected by key, and then a watermark is written into the log. Until the watermark arrives in the stream,
rows of the chunk that change are dropped: the stream has them. At the watermark, the rows that are left are given. At
that point the stream has given everything that the chunk could see, and nothing newer about these rows.
"""

from collections.abc import Collection
from itertools import count
from uuid import uuid4

import msgspec
import trio
from msgspec.structs import replace

from conduit_connectors.postgres.catalog import PublishedTable, read_tables
from conduit_connectors.postgres.changes import Change, PublishedRelation, RowKey, snapshot_change
from conduit_connectors.postgres.pgoutput import UNCHANGED, LogicalMessage, RowValues
from conduit_connectors.postgres.position import SourcePosition, TableProgress, add_request
from conduit_connectors.postgres.publication import give_up_request
from conduit_connectors.postgres.schemas import TableShape, TypeCatalog
from conduit_connectors.postgres.session import DatabaseSession, QueryResult, StatementFailed, quote_name
from conduit_connectors.postgres.snapshot_request import check_condition
from conduit_py.sdk import FatalError, SnapshotRefused, TransientError

PREFIX = "conduit-py"
"""The prefix of our messages in the log of the server."""
_VISIBLE_SECONDS = 0.05
_UNDEFINED_COLUMN = "42703"


class SelectedChunk(msgspec.Struct):
    """Rows of a table, without those that the stream has changed since."""

    table: PublishedTable
    shape: TableShape
    """How its rows are read: made when they were selected, because types may change before the watermark."""
    rows: dict[RowKey, RowValues]
    watermark: bytes
    last: RowKey | None
    """The key of the last row that was selected; None if it was the last one of the table."""


class Snapshot:
    """The tables that are still to be read, and the chunk that waits for its watermark."""

    def __init__(
        self, publication: str, oids: dict[str, int], progress: tuple[TableProgress, ...], chunk_size: int
    ) -> None:
        self.progress = progress
        self._publication = publication
        self._oids = oids
        self._chunk_size = chunk_size
        self.chunk: SelectedChunk | None = None
        """What was selected last, until its watermark arrives."""
        self._selecting = False

    @property
    def needs_chunk(self) -> bool:
        return bool(self.progress) and self.chunk is None

    def add_request(self, request: TableProgress, oid: int) -> None:
        """Read one more table, after the others."""
        self._oids[request.table] = oid
        # What is being selected must stay the first: its place is found again by its number.
        self.progress = add_request(self.progress, request, begun=self.chunk is not None or self._selecting)

    async def select_chunk(self, session: DatabaseSession, types: TypeCatalog, delivered: Collection[int]) -> None:
        """Select the next chunk and write its watermark. `delivered` are the transactions last seen in the stream."""
        # A request may come at every await of this.
        self._selecting = True
        try:
            await self._select_first(session, types, delivered)
        finally:
            self._selecting = False

    async def _select_first(self, session: DatabaseSession, types: TypeCatalog, delivered: Collection[int]) -> None:
        todo, table = self.progress[0], None
        try:
            # For every chunk: a column may have come since the last one, and a row that is not changed has it too.
            tables = await read_tables(session, self._publication, self._oids[todo.table])
            if not tables or not tables[0].key:
                self._refuse(todo, "is not published any more, or has no key")
                return
            table = tables[0]
            found, until = await self._select(session, table, todo, delivered)
            await types.learn(session, found.columns)
            watermark = uuid4().hex
            # Transactional: the commit flushes it, and only what is flushed is in the stream.
            await session.run("SELECT pg_logical_emit_message(true, $1, $2::text)", [PREFIX, watermark])
        except StatementFailed as error:
            await session.run("ROLLBACK")
            if error.sqlstate == _UNDEFINED_COLUMN and (table is None or await _is_sound(session, table, todo)):
                raise TransientError(f"the table {todo.table} was changed while it was read: {error}") from error
            self._refuse(todo, f"cannot be read: {error}")
            return
        names = [name for name, _, _ in found.columns]
        places = [names.index(name) for name in table.key]
        chosen = found.rows[: self._chunk_size]
        rows: dict[RowKey, RowValues] = {tuple(row[place] or b"" for place in places): row for row in chosen}
        last = next(reversed(rows)) if len(found.rows) > self._chunk_size else None
        # Without an end, a table that grows as fast as it is read would never be read to its end.
        self.progress = (replace(todo, until=until), *self.progress[1:])
        shape = types.table_shape(table.collection, found.columns, table.key)
        self.chunk = SelectedChunk(table, shape, rows, watermark.encode(), last)

    async def _select(
        self, session: DatabaseSession, table: PublishedTable, todo: TableProgress, delivered: Collection[int]
    ) -> tuple[QueryResult, tuple[str, ...] | None]:
        """Return the rows of the next chunk, one more if others follow, and the key at which the snapshot ends."""
        while True:
            await session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [[visible]] = (await session.run("SELECT pg_current_snapshot()")).rows
            # One more than the chunk has shows whether it is the last one.
            bounds = (*(todo.key or ()), *(todo.until or ()))
            found = await session.run(_chunk_statement(table, todo, self._chunk_size + 1), bounds)
            until = todo.until
            if until is None and len(found.rows) > self._chunk_size:
                [highest] = (await session.run(_last_key_statement(table, todo), todo.key or ())).rows
                until = _texts(tuple(value or b"" for value in highest))
            await session.run("COMMIT")
            # A transaction is in the stream a moment before others see it, and longer while it waits for a
            # standby. A chunk that does not see it would give rows that are older than those of the stream.
            if sees_transactions(visible or b"", delivered):
                return found, until
            await trio.sleep(_VISIBLE_SECONDS)

    def _refuse(self, todo: TableProgress, reason: str) -> None:
        """Give up the first table if it was requested. Else raise FatalError: its rows would be missing."""
        if todo.request is None:
            raise FatalError(
                f"the table {todo.table} was not read to its end: it {reason}",
                suggestion="restore the table and the rights of the user,"
                ' or set snapshot="never" to go on without the rest of its rows',
            )
        give_up_request(todo, f"it {reason}")
        self.progress = self.progress[1:]

    def drop(self, relation: PublishedRelation, row: RowValues) -> None:
        """Leave a row out of the chunk, because the stream has a change of it."""
        chunk = self.chunk
        if chunk is None or relation.oid != chunk.table.oid:
            return
        key = relation.key_values(row, chunk.table.key)
        if key is None:
            # The change says too little to find the row, so the whole chunk is selected again.
            self.chunk = None
        elif key in chunk.rows and UNCHANGED in row:
            self._complete(chunk, key, relation, row)
        else:
            chunk.rows.pop(key, None)

    def _complete(self, chunk: SelectedChunk, key: RowKey, relation: PublishedRelation, row: RowValues) -> None:
        """Keep the changed row with the large values of the chunk: the stream has it without them."""
        if sorted(relation.columns) != sorted(chunk.shape.columns):
            self.chunk = None
            return
        sent = dict(zip(relation.columns, row, strict=True))
        # What no change since the selection has sent is as it was then.
        pairs = zip(chunk.shape.columns, chunk.rows[key], strict=True)
        chunk.rows[key] = tuple(old if sent[column] is UNCHANGED else sent[column] for column, old in pairs)

    def truncate(self, oid: int) -> None:
        """Leave all rows of a table out of the chunk."""
        if self.chunk is not None and oid == self.chunk.table.oid:
            self.chunk.rows.clear()

    def finish_chunk(self, message: LogicalMessage, system: str, lsn: int) -> list[Change]:
        """Return the rows of the chunk if this message is its watermark. Their place in the log is `lsn`."""
        chunk = self.chunk
        if chunk is None or message.prefix != PREFIX or message.content != chunk.watermark:
            return []
        self.chunk = None
        todo, *rest = self.progress
        after = tuple(rest) if chunk.last is None else (replace(todo, key=_texts(chunk.last)), *rest)
        self.progress = after
        given: list[Change] = []
        for key, row in chunk.rows.items():
            at = SourcePosition.at(system, lsn, (replace(todo, key=_texts(key)), *rest))
            given.append(snapshot_change(chunk.shape, chunk.table.key, row, at))
        if given:
            given[-1].position = replace(given[-1].position, snapshot=after)
        return given


async def _is_sound(session: DatabaseSession, table: PublishedTable, todo: TableProgress) -> bool:
    """Return True if the condition of a request still fits its table."""
    try:
        if todo.where is not None:
            await check_condition(session, table, todo.where)
    except SnapshotRefused:
        return False
    return True


def _chunk_statement(table: PublishedTable, todo: TableProgress, size: int) -> str:
    columns = ", ".join(map(quote_name, table.columns))
    return f"SELECT {columns} {_rows_left(table, todo)} ORDER BY {_key_columns(table)} LIMIT {size}"


def _last_key_statement(table: PublishedTable, todo: TableProgress) -> str:
    backwards = ", ".join(f"{quote_name(name)} DESC" for name in table.key)
    return f"SELECT {_key_columns(table)} {_rows_left(table, todo)} ORDER BY {backwards} LIMIT 1"


def _key_columns(table: PublishedTable) -> str:
    return ", ".join(map(quote_name, table.key))


def _rows_left(table: PublishedTable, todo: TableProgress) -> str:
    """Return FROM and WHERE of what is to be read. Its parameters are the key after which, and the one until which."""
    by, places = _key_columns(table), count(1)
    where = [f"({table.row_filter})"] if table.row_filter else []
    for operator, key in ((">", todo.key), ("<=", todo.until)):
        if key is not None:
            where.append(f"({by}) {operator} ({', '.join(f'${next(places)}' for _ in key)})")
    if todo.where is not None:
        # On lines of its own: it may end with a comment.
        where.append(f"(\n{todo.where}\n)")
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    # The changes of a table that inherits have its own name, and its rows may have the same keys as other ones.
    only = "" if table.partitioned else "ONLY "
    return f"FROM {only}{table.quoted}{condition}"


def sees_transactions(visible: bytes, xids: Collection[int]) -> bool:
    """True if a snapshot, in PostgreSQL's text form, sees what all of these transactions did."""
    low, high, running = visible.split(b":")
    xmin, xmax = int(low), int(high)
    in_progress = {int(each) % 2**32 for each in running.split(b",") if each}
    for xid in xids:
        # The numbers of transactions in the stream have 32 bits and begin again after the last one.
        if (xid - xmax) % 2**32 < 2**31:
            return False
        if (xid - xmin) % 2**32 < 2**31 and xid in in_progress:
            return False
    return True


def _texts(key: RowKey) -> tuple[str, ...]:
    return tuple(value.decode() for value in key)
