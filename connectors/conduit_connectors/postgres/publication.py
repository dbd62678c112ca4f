"""Checks that a publication and a slot have everything after a position, and creates them for a new source.

Whatever is missing is refused with what to do. To go on without it would skip changes silently.
"""

import logging
from collections.abc import Sequence

import msgspec
import trio

from conduit_connectors.postgres.catalog import PublishedTable, create_slot, has_publication, read_slot, read_tables
from conduit_connectors.postgres.position import SourcePosition, TableProgress
from conduit_connectors.postgres.replication import ReplicationStream, format_lsn, parse_lsn
from conduit_connectors.postgres.session import DatabaseSession, StatementFailed, quote_name
from conduit_py.sdk import FatalError, TransientError

_log = logging.getLogger("conduit_py.postgres")

_VERSION_MIN = 140000
_START_AGAIN = "drop the slot, reset the position of the source, and read everything again"
_UNDEFINED = "42704"
_NO_TABLE = "42P01"
_IN_USE = "55006"
_BUSY_SECONDS = 30.0


class Publication(msgspec.Struct, frozen=True):
    """What a source reads: the tables of a publication, or these of them, through a slot."""

    name: str
    slot: str
    tables: Sequence[str] | None

    def explain(self, error: StatementFailed) -> FatalError:
        """Return the error for a statement about the publication, the slot or the stream."""
        advice = "check the rights of the user: REPLICATION, and SELECT on the tables"
        if error.sqlstate == _UNDEFINED and self.name in str(error):
            # Created again it would not help: the log before that has no changes of its tables.
            advice = f"the publication was dropped, and changes with it: {_START_AGAIN}"
        elif error.sqlstate == _NO_TABLE:
            advice = "create the table, or correct `tables`"
        elif "wal_level" in str(error):
            advice = "set wal_level = logical in the configuration of the server and restart it"
        elif "can no longer" in str(error) or "invalidat" in str(error):
            advice = f"the server deleted changes that were not read: {_START_AGAIN}"
        return FatalError(f"PostgreSQL refuses to replicate through slot {self.slot}: {error}", suggestion=advice)


async def prepare(
    session: DatabaseSession,
    replication: DatabaseSession,
    publication: Publication,
    position: SourcePosition | None,
    *,
    snapshot: bool,
) -> tuple[dict[str, int], SourcePosition]:
    """Return the tables to read, and where to start: at `position`, or at a new beginning."""
    await _check_server(session)
    try:
        [[system, _, here, database]] = (await replication.run("IDENTIFY_SYSTEM")).rows
        # The publication comes first: what is in the log before it has no changes of its tables.
        tables = await _prepare_tables(session, publication, create=position is None)
        names = {table.collection: table.oid for table in tables}
        server = (system or b"").decode()
        if position is None:
            lsn = await _find_start(session, publication, (database or b"").decode())
            todo = _plan_snapshot(tables) if snapshot else ()
            return names, SourcePosition.at(server, lsn, todo)
        await _check_position(session, publication, position, server, parse_lsn((here or b"").decode()))
        return names, _check_snapshot(position, names, snapshot=snapshot)
    except StatementFailed as error:
        raise publication.explain(error) from error


async def start_stream(session: DatabaseSession, publication: Publication, lsn: int) -> ReplicationStream:
    """Start to read the slot. After a kill the server may need a moment to free it."""
    deadline = trio.current_time() + _BUSY_SECONDS
    while True:
        try:
            return await ReplicationStream.start(session, publication.slot, publication.name, lsn)
        except StatementFailed as error:
            if error.sqlstate != _IN_USE:
                raise publication.explain(error) from error
            if trio.current_time() > deadline:
                raise TransientError(
                    f"the slot {publication.slot} is in use: {error}",
                    suggestion="stop the other reader, or give each pipeline a slot of its own",
                ) from error
        await trio.sleep(0.1)


async def drop_slot(session: DatabaseSession, slot: str) -> None:
    """Drop a slot, if it is there."""
    try:
        await session.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", [slot]
        )
    except StatementFailed as error:
        raise FatalError(
            f"the replication slot {slot} cannot be dropped: {error}",
            suggestion=f"drop it with pg_drop_replication_slot('{slot}'): it keeps the log of the server",
        ) from error


async def _check_server(session: DatabaseSession) -> None:
    if session.server_version < _VERSION_MIN:
        raise FatalError(
            f"the server has version {session.server_version // 10000}, and replication needs 14 or later",
            suggestion="upgrade the server",
        )
    [[encoding]] = (await session.run("SHOW server_encoding")).rows
    if encoding == b"SQL_ASCII":
        # Invariant 12: its texts have no encoding, so nobody can tell what they say.
        raise FatalError(
            "the database has the encoding SQL_ASCII, so its texts cannot be read",
            suggestion="move it to a database with the encoding UTF8",
        )


async def _prepare_tables(session: DatabaseSession, publication: Publication, *, create: bool) -> list[PublishedTable]:
    name, wanted = publication.name, publication.tables and [full_name(table) for table in publication.tables]
    if not await has_publication(session, name):
        if not create:
            raise FatalError(
                f"there is no publication {name} any more, so changes are missing", suggestion=_START_AGAIN
            )
        if wanted is None:
            raise FatalError(
                f"there is no publication {name}",
                suggestion="name the tables with `tables`, or create the publication for the tables to read",
            )
        # ONLY: tables that inherit were not asked for. If one has no key, to publish it would forbid its updates.
        tables = ", ".join(f"ONLY {_quote_table(table)}" for table in wanted)
        # Of a partitioned table the whole is published: partitions come and go.
        root = "publish_via_partition_root = true"
        await session.run(f"CREATE PUBLICATION {quote_name(name)} FOR TABLE {tables} WITH ({root})")
    published = {table.collection: table for table in await read_tables(session, name)}
    missing = [table for table in wanted or () if table not in published]
    if missing:
        raise FatalError(
            f"the publication {name} does not have {', '.join(missing)}",
            suggestion=f"ALTER PUBLICATION {quote_name(name)} ADD TABLE {', '.join(map(_quote_table, missing))},"
            " or correct `tables` if a table was renamed",
        )
    return [published[table] for table in wanted] if wanted is not None else list(published.values())


async def _find_start(session: DatabaseSession, publication: Publication, database: str) -> int:
    slot = await read_slot(session, publication.slot)
    if slot is None:
        return await create_slot(session, publication.slot)
    # It is there if an earlier run was killed before its start was stored. Nothing was confirmed since.
    if slot.plugin != "pgoutput" or slot.database != database:
        raise FatalError(
            f"the slot {publication.slot} is of the plugin {slot.plugin} and the database {slot.database or 'none'}",
            suggestion="choose another name for the slot",
        )
    if slot.lost or slot.confirmed is None:
        raise _lost(publication)
    return slot.confirmed


async def _check_position(
    session: DatabaseSession, publication: Publication, position: SourcePosition, system: str, here: int
) -> None:
    if position.system != system:
        raise FatalError(
            f"the position is of the server {position.system}, and this is the server {system}",
            suggestion=f"check `url`; if the server was replaced: {_START_AGAIN}",
        )
    if position.log_place > here:
        raise FatalError(
            f"the position is at {position.lsn}, and the log of the server ends at {format_lsn(here)}",
            suggestion=f"the server was restored from an older copy: {_START_AGAIN}",
        )
    slot = await read_slot(session, publication.slot)
    if slot is None:
        raise FatalError(
            f"there is no replication slot {publication.slot} any more, so changes after {position.lsn} are missing",
            suggestion=f"{_START_AGAIN} (there is no slot to drop)",
        )
    if slot.lost or slot.confirmed is None:
        raise _lost(publication)
    if slot.confirmed > position.log_place:
        raise FatalError(
            f"the slot {publication.slot} begins at {format_lsn(slot.confirmed)}, after the position {position.lsn}:"
            " it was created again, or another reader moved it",
            suggestion=_START_AGAIN,
        )


def _plan_snapshot(tables: list[PublishedTable]) -> tuple[TableProgress, ...]:
    for table in tables:
        if not has_key(table):
            raise FatalError(
                f"the table {table.collection} has no key that is published, so it cannot be read in chunks",
                suggestion='add a primary key, take it out of `tables`, or set snapshot="never"',
            )
    return tuple(TableProgress(table.collection) for table in tables)


def has_key(table: PublishedTable) -> bool:
    """True if a table can be read in chunks: the columns of its key are published."""
    return bool(table.key) and set(table.key) <= set(table.columns)


def _check_snapshot(position: SourcePosition, names: dict[str, int], *, snapshot: bool) -> SourcePosition:
    left = []
    for each in position.snapshot:
        if each.request is not None and each.table not in names:
            give_up_request(each, "the table is not published or not in `tables` any more")
        elif each.request is not None or snapshot:
            left.append(each)
    missing = [each.table for each in left if each.table not in names]
    if missing:
        raise FatalError(
            f"{', '.join(missing)} was not read to its end, and is not published or not in `tables` any more",
            suggestion='restore it, or set snapshot="never" to go on without the rest of its rows',
        )
    return msgspec.structs.replace(position, snapshot=tuple(left))


def give_up_request(request: TableProgress, reason: str) -> None:
    """Log that a request ends. It must not end the pipeline: every later run would fail for it too."""
    _log.error("the requested snapshot of %r is given up: %s", request.table, reason)


def _lost(publication: Publication) -> FatalError:
    return FatalError(
        f"the replication slot {publication.slot} is invalidated: the server deleted changes that were not read",
        suggestion=f"{_START_AGAIN}; raise max_slot_wal_keep_size",
    )


def full_name(table: str) -> str:
    """Return the name of a table with its schema."""
    return table if "." in table else f"public.{table}"


def _quote_table(table: str) -> str:
    schema, _, name = table.partition(".")
    return f"{quote_name(schema)}.{quote_name(name)}"
