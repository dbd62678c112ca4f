"""ChunkedSnapshot: reads tables as a whole while their changes stream, in chunks, without locks and long transactions.

A chunk is selected in a consistent snapshot, whose place in the log MariaDB tells. The chunk has the effect of
everything before that place, and of nothing after it. So its rows are given exactly when the stream is there: a row
that changed before is given after its change, and one that changes later is given before.
"""

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from conduit_connectors.mysql.catalog import SourceTable, TableColumn, read_table
from conduit_connectors.mysql.changes import LoggedChange, snapshot_change
from conduit_connectors.mysql.log_cursor import LogPlace, parse_file_number
from conduit_connectors.mysql.position import BinlogPosition, UnreadTable
from conduit_connectors.mysql.schemas import table_schema
from conduit_connectors.mysql.selected_values import SelectedDecoder, literal, ordered_by, selected
from conduit_connectors.mysql.server_checks import WantedTables, check_chunks
from conduit_connectors.mysql.session import DatabaseStatements, Rows, StatementDenied
from conduit_py.sdk import FatalError, SnapshotRefused, SnapshotRequest, TransientError

_VISIBLE_SECONDS = 0.05
_UNKNOWN_COLUMN = 1054
_logger = logging.getLogger(__name__)


class _Chunk(msgspec.Struct):
    table: SourceTable
    rows: Rows
    """Each with the values of the key at the end."""
    place: LogPlace
    more: bool
    """True if the table has more rows."""


class ChunkedSnapshot:
    """The tables that are still to be read, and the chunk that waits for its place."""

    def __init__(self, progress: tuple[UnreadTable, ...], chunk_size: int) -> None:
        self.progress = progress
        self._chunk_size = chunk_size
        self._chunk: _Chunk | None = None

    @property
    def needs_chunk(self) -> bool:
        return bool(self.progress) and self._chunk is None

    def request(self, progress: UnreadTable) -> None:
        """Read a table after all others. A request that waits for its turn already is the same one."""
        waiting = self.progress[1:] if self.progress and self.progress[0].key is not None else self.progress
        if not any((each.table, each.where) == (progress.table, progress.where) for each in waiting):
            self.progress = (*self.progress, progress)

    async def select_chunk(self, session: DatabaseStatements, place: LogPlace) -> None:
        """Select the next chunk. `place` is where the stream is."""
        todo = self.progress[0]
        database, _, name = todo.table.partition(".")
        try:
            # For every chunk: a column may have come since the last one, and a row that is not changed has it too.
            table = await read_table(session, database, name)
            reason = "it is gone" if table is None else check_chunks(table)
            if table is None or reason is not None:
                self._refuse(todo, reason or "")
                return
            while True:
                rows, last, seen = await session.run_all(partial(_select, session, table, todo, self._chunk_size))
                # A transaction is in the stream a moment before others see it, and longer while it waits for a
                # replica. A chunk that does not see it would give rows that are older than those of the stream.
                if seen >= place:
                    break
                await trio.sleep(_VISIBLE_SECONDS)
        except StatementDenied as error:
            if error.code == _UNKNOWN_COLUMN and todo.where is None:
                raise TransientError(f"the table {todo.table} was changed while it was read: {error}") from error
            self._refuse(todo, str(error))
            return
        if last is not None:
            # Without an end, a table that grows as fast as it is read would never be read to its end.
            self.progress = (replace(todo, until=_literals(table, last, session.escape)), *self.progress[1:])
        self._chunk = _Chunk(table, rows[: self._chunk_size], seen, len(rows) > self._chunk_size)

    def _refuse(self, todo: UnreadTable, reason: str) -> None:
        """Give up the first table if it was requested. Else raise FatalError: its rows would be missing."""
        if todo.request is None:
            raise FatalError(
                f"the table {todo.table} was not read to its end: {reason}",
                suggestion="restore the table and the rights of the user,"
                ' or set snapshot="never" to go on without the rest of its rows',
            )
        # A request is never a reason to stop changes. The user can make it again.
        _logger.error("the snapshot of %r that was requested is given up: %s", todo.table, reason)
        self.progress = self.progress[1:]

    def finish_chunk(self, place: LogPlace, at: BinlogPosition, escape: Callable[[str], str]) -> list[LoggedChange]:
        """Return the rows of the chunk if the stream is at its place, which is that of `at`."""
        chunk = self._chunk
        if chunk is None or place < chunk.place:
            return []
        self._chunk = None
        first, rest = self.progress[0], self.progress[1:]
        table, width = chunk.table, len(chunk.table.columns)
        schema = table_schema(table.collection, [(each.name, each.native) for each in table.columns], table.key)
        decoder = SelectedDecoder(table.columns)
        given: list[LoggedChange] = []
        for row in chunk.rows:
            progress = (replace(first, key=_literals(table, row[width:], escape)), *rest)
            row_at = replace(at, snapshot=progress)
            given.append(snapshot_change(schema, table.key, decoder.decode(row[:width]), row_at))
        if not chunk.more:
            if given:
                given[-1].position = replace(at, snapshot=rest)
            self.progress = rest
        else:
            self.progress = given[-1].position.snapshot
        return given


def _literals(table: SourceTable, key: Sequence[Any], escape: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(literal(each, value, escape) for each, value in zip(key_columns(table), key, strict=True))


def _select(
    session: DatabaseStatements, table: SourceTable, todo: UnreadTable, size: int
) -> tuple[Rows, Sequence[Any] | None, LogPlace]:
    """Return the rows, the last key if it is wanted and there are more rows, and the place whose state they have."""
    session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        found = {name.lower(): value for name, value in session.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")}
        # One more than the chunk has shows whether it is the last one.
        rows = session.execute(chunk_statement(table, todo, size + 1))
        ends = session.execute(_last_key_statement(table, todo)) if todo.until is None and len(rows) > size else []
    finally:
        session.execute("COMMIT")
    place = (parse_file_number(found["binlog_snapshot_file"]), int(found["binlog_snapshot_position"]))
    return rows, ends[0] if ends else None, place


def chunk_statement(table: SourceTable, todo: UnreadTable, size: int) -> str:
    """Return the statement that selects the rows after the last one that was given."""
    columns = ", ".join([*map(selected, table.columns), *map(_key_value, key_columns(table))])
    order = ", ".join(map(ordered_by, key_columns(table)))
    return f"SELECT {columns} {_rows_left(table, todo)} ORDER BY {order} LIMIT {size}"


def _last_key_statement(table: SourceTable, todo: UnreadTable) -> str:
    columns = ", ".join(map(_key_value, key_columns(table)))
    backwards = ", ".join(f"{ordered_by(each)} DESC" for each in key_columns(table))
    return f"SELECT {columns} {_rows_left(table, todo)} ORDER BY {backwards} LIMIT 1"


def _rows_left(table: SourceTable, todo: UnreadTable) -> str:
    """Return FROM and WHERE of what is to be read."""
    order = [ordered_by(each) for each in key_columns(table)]
    where = [f"({todo.where})"] if todo.where is not None else []
    if todo.key is not None:
        where.append(_after(order, todo.key))
    if todo.until is not None:
        where.append(_up_to(order, todo.until))
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    return f"FROM {table.quoted}{condition}"


def key_columns(table: SourceTable) -> list[TableColumn]:
    by_name = {each.name: each for each in table.columns}
    return [by_name[name] for name in table.key]


def _key_value(column: TableColumn) -> str:
    return ordered_by(column) if column.type_name in ("enum", "set") else selected(column)


def _after(order: list[str], key: tuple[str, ...]) -> str:
    """Return the condition for what follows a key. An index finds its first part, which a row value would hide."""
    if len(order) == 1:
        return f"{order[0]} > {key[0]}"
    rest = _after(order[1:], key[1:])
    return f"{order[0]} >= {key[0]} AND ({order[0]} > {key[0]} OR ({order[0]} = {key[0]} AND {rest}))"


def _up_to(order: list[str], key: tuple[str, ...]) -> str:
    """Return the condition for a key and what is before it."""
    if len(order) == 1:
        return f"{order[0]} <= {key[0]}"
    rest = _up_to(order[1:], key[1:])
    return f"{order[0]} <= {key[0]} AND ({order[0]} < {key[0]} OR ({order[0]} = {key[0]} AND {rest}))"


async def check_request(session: DatabaseStatements, wanted: WantedTables, request: SnapshotRequest) -> SourceTable:
    """Return the table of a request. Raises SnapshotRefused if it cannot be read, or the condition does not fit."""
    database, name = wanted.split(request.collection)
    try:
        table = await read_table(session, database, name) if wanted.has(database, name) else None
        if table is None:
            raise SnapshotRefused(
                f"the source does not read a table {request.collection[:200]}",
                suggestion="name a table of `tables`, as `table` or `database.table`",
            )
        reason = check_chunks(table)
        if reason is not None:
            raise SnapshotRefused(reason, suggestion="change that first")
        if request.where is not None:
            if not is_condition(request.where):
                raise SnapshotRefused(
                    "the condition has a comment, a semicolon or a parenthesis without its other half",
                    suggestion="write what would follow WHERE in a SELECT",
                )
            # The server checks it without reading a row.
            await session.run(chunk_statement(table, UnreadTable(table.collection, None, request.where), 0))
    except StatementDenied as error:
        raise SnapshotRefused(
            f"MariaDB refuses the condition: {error}", suggestion="write what would follow WHERE in a SELECT"
        ) from error
    return table


_CONDITION = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|--|/\*|[#;()'\"`]", re.DOTALL)


def is_condition(text: str) -> bool:
    """True if a condition cannot end the parentheses that it is put into."""
    depth = 0
    for found in _CONDITION.finditer(text):
        mark = found.group()
        if mark in ("--", "/*", "#", ";", "'", '"', "`"):
            return False
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0:
            return False
    return depth == 0 and bool(text.strip())
