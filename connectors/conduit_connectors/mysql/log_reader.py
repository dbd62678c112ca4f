"""BinlogReader: turns the events of the binary log into records with positions, and gives chunks their place."""

from collections.abc import Mapping

import msgspec

from conduit_connectors.change_queue import ChangeOrigin, ChangeQueue
from conduit_connectors.mysql import binlog_events as events
from conduit_connectors.mysql.binlog_events import BinlogEvent
from conduit_connectors.mysql.catalog import read_table
from conduit_connectors.mysql.changes import (
    LoggedChange,
    LoggedTable,
    LoggedTransaction,
    changes_of_row,
    truncate_change,
)
from conduit_connectors.mysql.log_cursor import LogCursor
from conduit_connectors.mysql.logged_statement import ParsedStatement, StatementEffect, TableName, parse_effect
from conduit_connectors.mysql.position import VERSION, BinlogPosition, UnreadTable, parse_gtid
from conduit_connectors.mysql.row_values import LoggedRowDecoder
from conduit_connectors.mysql.schemas import logged_type, table_schema
from conduit_connectors.mysql.server_checks import START_AGAIN, WantedTables
from conduit_connectors.mysql.session import DatabaseStatements, StatementDenied
from conduit_connectors.mysql.snapshot import ChunkedSnapshot
from conduit_connectors.mysql.table_map import STRING, TableMap, parse_table_map, table_names
from conduit_py.sdk import FatalError

_SHAPES_MAX = 1_000
_MAYBE_TYPED = frozenset({4, 16})
"""Sizes of fixed bytes that are perhaps an address or a UUID: the log does not tell."""

RecordPlace = tuple[int, int, int]
"""The number of an event in its transaction, of a row in it, and of a record of that row."""


class BinlogReader:
    """Handles the events of a stream, in order, from `start` on. What it made of them is in `ready`."""

    def __init__(
        self,
        start: BinlogPosition,
        wanted: WantedTables,
        session: DatabaseStatements,
        collations: Mapping[int, str],
        *,
        chunk_size: int,
        ignores_unlogged: bool,
    ) -> None:
        self.ready: ChangeQueue[BinlogPosition] = ChangeQueue()
        self.snapshot = ChunkedSnapshot(start.snapshot, chunk_size)
        self.cursor = LogCursor(start.state)
        self._session = session
        self._wanted = wanted
        self._collations = collations
        self._ignores_unlogged = ignores_unlogged
        self._server = start.server
        self._resume = None if start.transaction is None else (parse_gtid(start.transaction), start.place)
        self._state = self._given = start.state
        self._transaction: LoggedTransaction | None = None
        self._tables: dict[int, LoggedTable | None] = {}
        self._shapes: dict[bytes, LoggedTable] = {}

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    @property
    def needs_chunk(self) -> bool:
        return self.snapshot.needs_chunk and self._transaction is None and self.cursor.place is not None

    def progress(self) -> bytes:
        """Return the position after everything that was handled. Not for the inside of a transaction."""
        assert self._transaction is None
        self._given = self._state
        return BinlogPosition.at(self._server, self._state, self.snapshot.progress).encode()

    def request(self, progress: UnreadTable) -> None:
        """Read a table after all others. Records that are ready have the request in their positions too."""
        before = self.snapshot.progress
        self.snapshot.request(progress)
        if self.snapshot.progress == before:
            return
        self.ready.move(lambda each: msgspec.structs.replace(each, snapshot=(*each.snapshot, progress)))

    def give_chunk(self) -> None:
        """Make the rows of a chunk ready if the stream is at its place."""
        if self._transaction is None and self.cursor.place is not None:
            # The state at the last record, not at the chunk: a row has the same position in every run.
            at = BinlogPosition.at(self._server, self._given, self.snapshot.progress)
            for change in self.snapshot.finish_chunk(self.cursor.place, at, self._session.escape):
                self.ready.append(change)

    async def handle(self, event: BinlogEvent) -> None:
        """Handle one event. Raises FatalError for what cannot be read, and EventMalformed."""
        kind = event.kind
        if kind in events.ROWS:
            self._handle_rows(event)
        elif kind == events.TABLE_MAP:
            await self._handle_table(event)
        elif kind == events.GTID:
            self._begin(event)
        elif kind in (events.QUERY, events.QUERY_COMPRESSED):
            self._handle_statement(event)
        elif kind in (events.XID, events.XA_PREPARE):
            self._end(event)
        elif kind == events.ROTATE:
            self.cursor.enter_file(*events.parse_rotate(event))
        elif kind == events.GTID_LIST:
            self.cursor.pass_list(event, events.parse_gtid_list(event))
        elif kind in (events.EXECUTE_LOAD_QUERY, events.INCIDENT):
            raise self._refuse(_UNREADABLE[kind])
        elif kind not in _PASSED and not event.ignorable:
            raise self._refuse(f"an event of the kind {kind}, which is unknown to this source")
        if self._transaction is None:
            self.cursor.pass_event(event)
            self.give_chunk()

    def _begin(self, event: BinlogEvent) -> None:
        start = events.parse_group_start(event)
        place = self.cursor.begin_group(event)
        if self._transaction is not None:
            raise self._refuse("a transaction that does not end")
        self.cursor.place = place
        self.give_chunk()
        if self._resume is not None and start.gtid != self._resume[0]:
            raise FatalError(
                f"the log goes on with the transaction {start.gtid}, and the position is inside of {self._resume[0]}",
                suggestion=f"check `url`; if the server was restored or created again: {START_AGAIN}",
            )
        self._transaction = LoggedTransaction.of(event, start, self._state)
        self._tables.clear()

    def _end(self, event: BinlogEvent) -> None:
        gtid = self._open_transaction.gtid
        self._state = self._state.plus(gtid)
        if self.ready.release(BinlogPosition.at(self._server, self._state, self.snapshot.progress)):
            self._given = self._state
        self._transaction = self._resume = None

    @property
    def _open_transaction(self) -> LoggedTransaction:
        if self._transaction is None:
            raise self._refuse("a change outside of a transaction")
        return self._transaction

    async def _handle_table(self, event: BinlogEvent) -> None:
        number, database, name = table_names(event)
        if not self._wanted.has(database, name):
            self._tables[number] = None
            return
        shape = event.body[6:]
        table = self._shapes.get(shape)
        if table is None:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            table = self._shapes[shape] = await self._read_shape(parse_table_map(event))
        self._tables[number] = table

    async def _read_shape(self, table: TableMap) -> LoggedTable:
        collection = f"{table.database}.{table.name}"
        if not table.described:
            raise self._refuse(
                f"rows of {collection} without the names of their columns",
                "SET GLOBAL binlog_row_metadata = FULL, and",
            )
        types: dict[str, str] = {}
        if any(each.kind == STRING and each.length in _MAYBE_TYPED for each in table.columns):
            types = await self._types_of(table)
        decoder = LoggedRowDecoder(table.columns, self._collations, types)
        named = [(each.name, logged_type(each, self._collations, types.get(each.name, ""))) for each in table.columns]
        schema = table_schema(collection, named, table.key)
        return LoggedTable(tuple(each.name for each in table.columns), table.key, decoder, schema)

    async def _types_of(self, table: TableMap) -> dict[str, str]:
        try:
            found = await read_table(self._session, table.database, table.name)
        except StatementDenied as error:
            raise FatalError(f"cannot read the catalog: {error}", suggestion="check the rights of the user") from error
        return {each.name: each.type_name for each in found.columns} if found else {}

    def _handle_rows(self, event: BinlogEvent) -> None:
        transaction = self._open_transaction
        index = transaction.events
        transaction.events += 1
        number, _ = events.rows_body(event)
        if number not in self._tables:
            raise self._refuse(f"rows of the unknown table {number}")
        table = self._tables[number]
        if table is None:
            return
        if transaction.prepared:
            raise self._refuse(
                f"rows of {table.collection} in an XA transaction that is prepared and not committed",
                "use no XA transactions for this table,",
            )
        transaction.given = True
        origin = ChangeOrigin(transaction.metadata, table.schema)
        for row, (before, after) in enumerate(table.decoder.rows(event)):
            for change in changes_of_row(table, before, after, origin, self._place(transaction, (index, row, 0))):
                self._give(change)

    def _handle_statement(self, event: BinlogEvent) -> None:
        transaction = self._open_transaction
        statement = parse_effect(events.parse_statement(event))
        if statement.effect is StatementEffect.ROWS:
            raise self._refuse(
                "a statement that changes rows in place of the rows",
                "let no session set binlog_format to STATEMENT or MIXED,",
            )
        if statement.effect in _UNDOES and transaction.given:
            raise self._refuse("a transaction that was rolled back after its rows")
        if statement.effect is StatementEffect.EMPTIES:
            self._empty(statement.tables)
        elif statement.effect in (StatementEffect.REPLACES, StatementEffect.DROPS_DATABASE):
            self._refuse_unlogged(statement)
        if transaction.standalone or statement.ends_transaction:
            # It may have changed types that the log does not have.
            self._shapes.clear()
            self._end(event)

    def _empty(self, tables: tuple[TableName, ...]) -> None:
        transaction = self._open_transaction
        index = transaction.events
        transaction.events += 1
        wanted = [name for name in tables if self._wanted.has(*name)]
        for part, (database, name) in enumerate(wanted):
            at = self._place(transaction, (index, 0, part))
            self._give(truncate_change(f"{database}.{name}", transaction.metadata, at))

    def _refuse_unlogged(self, statement: ParsedStatement) -> None:
        touched = [f"{database}.{name}" for database, name in statement.tables if self._wanted.has(database, name)]
        if statement.effect is StatementEffect.DROPS_DATABASE and self._wanted.has_database(statement.database):
            touched = [f"the database {statement.database}"]
        if touched and not self._ignores_unlogged:
            raise self._refuse(
                f"a statement that changes the rows of {', '.join(touched)} without logging them",
                'set unlogged_changes="ignore" to go on without these changes, or',
            )

    def _place(self, transaction: LoggedTransaction, place: RecordPlace) -> BinlogPosition:
        return BinlogPosition(
            self._server, transaction.before, transaction.name, *place, self.snapshot.progress, VERSION
        )

    def _give(self, change: LoggedChange) -> None:
        """Hold this change back until it is certain whether it is the last one of its transaction."""
        # Invariant 11: the end of the last run may have cut this transaction after its first records.
        if self._resume is None or change.position.place > self._resume[1]:
            self.ready.hold(*change.parts)

    def _refuse(self, what: str, advice: str = "") -> FatalError:
        where = f" in the transaction {self._transaction.gtid}" if self._transaction is not None else ""
        return FatalError(
            f"the log of the server has {what}{where}", suggestion=" ".join(filter(None, (advice, START_AGAIN)))
        )


_UNDOES = (StatementEffect.ROLLBACK, StatementEffect.ROLLBACK_TO)
_PASSED = events.IGNORED | {events.FORMAT_DESCRIPTION, events.HEARTBEAT}
_UNREADABLE = {
    events.EXECUTE_LOAD_QUERY: "a file that a statement loads, in place of the rows",
    events.INCIDENT: "a note that it lost changes",
}
