"""Checks that a server logs everything that a source needs, and finds where to start.

Whatever is missing is refused with what to do. To go on without it would skip changes silently.
"""

from collections.abc import Sequence

import msgspec

from conduit_connectors.mysql.catalog import (
    ServerState,
    SourceTable,
    list_tables,
    read_server,
    read_table,
    version_number,
)
from conduit_connectors.mysql.position import BinlogPosition, GtidState, UnreadTable
from conduit_connectors.mysql.session import DatabaseStatements, StatementDenied
from conduit_py.sdk import FatalError

_VERSION_MIN = (10, 5)
START_AGAIN = "reset the position of the source, and read everything again"
_SETTINGS = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_WHY = {
    "log_bin": "start the server with --log-bin",
    "binlog_format": "SET GLOBAL binlog_format = ROW, and in the configuration of the server; sessions that are open"
    " keep the old one",
    "binlog_row_image": "SET GLOBAL binlog_row_image = FULL, and in the configuration of the server",
    "binlog_row_metadata": "SET GLOBAL binlog_row_metadata = FULL, and in the configuration of the server: without"
    " it the log does not say which columns its rows have",
}


class WantedTables(msgspec.Struct, frozen=True):
    """Which tables a source reads: all of a database, or these."""

    database: str
    names: frozenset[tuple[str, str]] | None
    ignores_case: bool = False

    @classmethod
    def of(cls, database: str, tables: Sequence[str] | None, *, ignores_case: bool) -> "WantedTables":
        names = None if tables is None else frozenset(_split(each, database, ignores_case) for each in tables)
        return cls(_folded(database, ignores_case), names, ignores_case)

    def has(self, database: str, table: str) -> bool:
        folded = _folded(database, self.ignores_case), _folded(table, self.ignores_case)
        return folded in self.names if self.names is not None else folded[0] == self.database

    def has_database(self, database: str) -> bool:
        folded = _folded(database, self.ignores_case)
        return folded == self.database if self.names is None else any(folded == each for each, _ in self.names)

    def split(self, collection: str) -> tuple[str, str]:
        """Return the database and the table of a name."""
        return _split(collection, self.database, self.ignores_case)


async def check_server(session: DatabaseStatements) -> ServerState:
    """Return the state of the server. Raises FatalError if it does not log what is needed."""
    server = await read_server(session)
    number = version_number(server.version)
    if number is None:
        raise FatalError(
            f"the server has the version {server.version[:100]}, and this source reads the log of MariaDB only",
            suggestion="use MariaDB 10.5 or later: the GTIDs of MySQL are others, and it is not tested",
        )
    if number < _VERSION_MIN:
        raise FatalError(
            f"the server has the version {server.version[:100]}, and the source needs 10.5 or later",
            suggestion="upgrade the server: before, its log does not say which columns its rows have",
        )
    for name, wanted in _SETTINGS.items():
        if server.settings[name].upper() != wanted:
            raise FatalError(
                f"the server has {name} = {server.settings[name] or 'nothing'}, and the source needs {wanted}",
                suggestion=_WHY[name],
            )
    return server


async def find_start(
    session: DatabaseStatements,
    server: ServerState,
    wanted: WantedTables,
    position: BinlogPosition | None,
    *,
    snapshot: bool,
    follow: bool,
    first: str | None,
) -> BinlogPosition:
    """Return where to start: at `position`, or at a new beginning, which is after `first` or now."""
    try:
        tables = await _read_tables(session, wanted)
    except StatementDenied as error:
        raise FatalError(f"cannot read the catalog: {error}", suggestion="check the rights of the user") from error
    if position is None:
        todo = _plan_snapshot(tables) if snapshot else ()
        return BinlogPosition.at(server.identity, GtidState.parse(first or server.gtids), todo)
    if position.server != server.identity:
        position = _follow(position, server.identity, follow=follow)
    return _check_snapshot(position, wanted, snapshot=snapshot)


def check_chunks(table: SourceTable) -> str | None:
    """Return why a table cannot be read in chunks, if so."""
    if not table.key:
        return f"the table {table.collection} has no primary key, so it cannot be read in chunks"
    if table.engine.lower() != "innodb":
        return (
            f"the table {table.collection} is of the engine {table.engine}, and only InnoDB shows a state of the past"
        )
    return None


async def _read_tables(session: DatabaseStatements, wanted: WantedTables) -> list[SourceTable]:
    names = sorted(wanted.names or [(wanted.database, each) for each in await list_tables(session, wanted.database)])
    tables: list[SourceTable] = []
    for database, name in names:
        table = await read_table(session, database, name)
        if table is None:
            raise FatalError(
                f"there is no table {database}.{name}, or the user has no right to it",
                suggestion="create it, correct `tables`, or GRANT SELECT ON the table TO the user",
            )
        if table.versioned:
            raise FatalError(
                f"the table {table.collection} is system-versioned, and its log has old versions as rows",
                suggestion="take it out of `tables`",
            )
        tables.append(table)
    return tables


def _follow(position: BinlogPosition, identity: str, *, follow: bool) -> BinlogPosition:
    if not follow:
        raise FatalError(
            f"the position is of the server {position.server}, and this is the server {identity}",
            suggestion='check `url`; after a fail-over to a replica of it set other_server="follow";'
            f" if the server was created again: {START_AGAIN}",
        )
    if position.transaction is not None:
        raise FatalError(
            f"the position is inside of the transaction {position.transaction}, and another server may have logged"
            " it in other parts",
            suggestion=f"go on at the old server until the transaction ends, or {START_AGAIN}",
        )
    return msgspec.structs.replace(position, server=identity)


def _plan_snapshot(tables: list[SourceTable]) -> tuple[UnreadTable, ...]:
    for table in tables:
        reason = check_chunks(table)
        if reason is not None:
            raise FatalError(reason, suggestion='change that, take it out of `tables`, or set snapshot="never"')
    return tuple(UnreadTable(table.collection) for table in tables)


def _check_snapshot(position: BinlogPosition, wanted: WantedTables, *, snapshot: bool) -> BinlogPosition:
    if not snapshot:
        return msgspec.structs.replace(position, snapshot=tuple(each for each in position.snapshot if each.request))
    gone = [each for each in position.snapshot if not wanted.has(*wanted.split(each.table))]
    missing = [each.table for each in gone if each.request is None]
    if missing:
        raise FatalError(
            f"{', '.join(missing)} was not read to its end, and is not in `tables` any more",
            suggestion='restore it, or set snapshot="never" to go on without the rest of its rows',
        )
    # A request is never a reason to stop.
    return msgspec.structs.replace(position, snapshot=tuple(each for each in position.snapshot if each not in gone))


def _split(name: str, database: str, ignores_case: bool) -> tuple[str, str]:
    first, dot, rest = name.partition(".")
    found = (first, rest) if dot else (database, name)
    return _folded(found[0], ignores_case), _folded(found[1], ignores_case)


def _folded(name: str, ignores_case: bool) -> str:
    return name.lower() if ignores_case else name
