"""StagingTables: the tables in which tasks of Spark put the rows of their parts, until the driver moves them.

The invariants M1 to M8 of decision 59 hold, with tables in place of files: decision 81 says how.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import psycopg

from conduit_connectors.objects.staged_parts import (
    Grant,
    PartFile,
    PartManifest,
    TaskGrant,
    abandoned_runs,
    clear_dead,
    fence_of,
    new_grant,
    unreached,
)
from conduit_connectors.postgres.copy_in import CopyText, copy_in, piece_refusals
from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.sql.database import NotThisRow, StatementRefused
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py.sdk import PartId, PieceRefused, StageCleared, TransientError

PREFIX = "conduit_stage_"
"""How the names of these tables begin. No record can name such a table."""
STAGED = b"s"
"""The first byte of the manifest of a staged part. No piece of rows that a driver copies itself begins so."""
_LOCK_SECONDS = 1

_logger = logging.getLogger(__name__)


class TableGrant(msgspec.Struct, frozen=True, array_like=True):
    """What a task needs to stage. With `logged` its rows must survive a crash of the server, as an intent does."""

    grant: Grant
    logged: bool

    @property
    def marker(self) -> str:
        """The table by which a task checks that it reaches the database of the driver, and that its run goes on."""
        return PREFIX + self.grant.run


class StagingTable(msgspec.Struct, frozen=True):
    """The first line of the comment on a table: what it waits as, for which place, since when, with how many rows."""

    waits_as: str
    place: str
    at: float
    rows: int


class StagingTables:
    """All staging tables of a place, as the driver and commands see them. The connection is used by nothing else."""

    def __init__(self, database: PostgresDatabase, place: str) -> None:
        self._database = database
        self._place = place
        # A task that hangs between its last statement and its commit holds a lock. What it has is removed later.
        database.run(f"SET lock_timeout = '{_LOCK_SECONDS}s'")

    def survey(self, folder: str) -> dict[str, int]:
        waiting = ((note.waits_as.partition("/"), note.rows) for note in self._list().values())
        return {path[2]: rows for path, rows in waiting if path[0] == folder}

    def discard(self, folder: str, names: Iterable[str]) -> None:
        paths = {f"{folder}/{name}" for name in names}
        for table, note in self._list().items() if paths else ():
            if note.waits_as in paths:
                self._drop(table)

    def load_note(self, name: str) -> bytes | None:
        """Return None: a manifest of a table lists nothing elsewhere."""
        return None

    def grant(self, owned: str | None, fence: int, *, logged: bool) -> TableGrant:
        """Let tasks stage, after what earlier runs of this owner have staged is gone. Raises PieceRefused."""
        granted = TableGrant(new_grant(owned, fence), logged)
        if owned is not None:
            self._discard_fenced(owned, fence)
        waiting = [(note.waits_as, note.at) for note in self._list().values()]
        for folder in abandoned_runs(waiting, self._now()):
            self.discard(folder, self.survey(folder))
        try:
            with self._database.transaction():
                self._database.run(f"CREATE UNLOGGED TABLE {granted.marker} ()")
                self.describe(granted.marker, f"{granted.grant.folder}/{granted.grant.marker}", [])
        except (NotThisRow, StatementRefused) as error:
            raise PieceRefused(f"executors cannot stage in tables of their own: {error}") from error
        return granted

    def describe(self, table: str, waits_as: str, groups: Sequence[CopyText]) -> None:
        """Write what a table is for, and the shapes of its rows, into its comment."""
        rows = sum(group.count for group in groups)
        note = StagingTable(waits_as, self._place, self._now(), rows)
        shapes = [msgspec.structs.replace(group, text=b"") for group in groups]
        comment = f"{msgspec.json.encode(note).decode()}\n{msgspec.json.encode(shapes).decode()}"
        self._database.run(f"COMMENT ON TABLE {table} IS {self._database.literal(comment)}")

    def clear_dead(self, age_seconds: float, owner: str | None) -> StageCleared:
        """Remove what nobody needs any more, for a command."""
        waiting = [(note.waits_as, note.at) for note in self._list().values()]
        return clear_dead(self, waiting, self._now(), age_seconds, owner)

    def has(self, table: str) -> bool:
        return self._database.rows("SELECT to_regclass(%s)", (table,)) != [(None,)]

    def close(self) -> None:
        self._database.close()

    def _discard_fenced(self, owned: str, fence: int) -> None:
        # M3: the markers first. After that no task of such a run can commit, so the second look sees all its tables.
        for kind in (".grant.", ""):
            self.discard(owned, [name for name in self.survey(owned) if 0 < fence_of(name) <= fence and kind in name])

    def _list(self) -> dict[str, StagingTable]:
        found = self._database.rows(
            "SELECT relname, split_part(obj_description(pg_class.oid, 'pg_class'), E'\\n', 1) FROM pg_class"
            " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE nspname = current_schema() AND relname >= %s AND relname < %s",
            # As a range, for the index of names: an underscore is followed by a grave accent.
            (PREFIX, PREFIX[:-1] + "`"),
        )
        notes = {table: _parse(text or "") for table, text in found}
        return {table: note for table, note in notes.items() if note is not None and note.place == self._place}

    def _drop(self, table: str) -> None:
        try:
            self._database.run(f"DROP TABLE IF EXISTS {table}")
        except StatementRefused as error:
            _logger.warning("cannot remove the staging table %s: %s", table, error.message)
        except TransientError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise

    def _now(self) -> float:
        """Return the time by the clock of the server, which all of them see."""
        [(now,)] = self._database.rows("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)


def _parse(comment: str) -> StagingTable | None:
    try:
        return msgspec.json.decode(comment, type=StagingTable)
    except msgspec.MsgspecError:
        # A table of somebody else.
        return None


class TaskTable:
    """What one task stages: a table with a name that no other attempt has."""

    def __init__(self, database: PostgresDatabase, place: str, grant: bytes, part: PartId) -> None:
        """Raises PieceRefused if the database is not that of the driver."""
        self._database = database
        self._tables = StagingTables(database, place)
        self._granted = msgspec.msgpack.decode(grant, type=TableGrant)
        self._task = TaskGrant(self._granted.grant, part)
        if not self._tables.has(self._granted.marker):
            raise unreached("the database")

    def stage(self, groups: Sequence[CopyText]) -> bytes:
        """Make the rows durable and return the manifest, in a size that does not depend on them."""
        table, name = PREFIX + secrets.token_hex(16), self._task.name(".table")
        try:
            # An attempt that dies before the commit leaves nothing: the server rolls it back.
            with self._database.transaction():
                self._write(table, groups)
                self._tables.describe(table, f"{self._task.grant.folder}/{name}", groups)
                # M3: the process that ends this run drops the marker. So either this fails, or they see the table.
                self._database.run(f"LOCK TABLE {self._granted.marker} IN ACCESS SHARE MODE")
        except (NotThisRow, StatementRefused) as error:
            raise PieceRefused(f"the rows of a part cannot be staged: {error}") from error
        file = PartFile(name, "", sum(group.count for group in groups), table.encode())
        return STAGED + msgspec.msgpack.encode(PartManifest(self._task.part, [file]))

    def _write(self, table: str, groups: Sequence[CopyText]) -> None:
        width = max(len(group.shape.columns) for group in groups)
        # Texts: the driver's transaction makes them values of the columns that the table has then.
        columns = "".join(f", {name} TEXT" for name in _columns(width))
        self._database.run(f"CREATE UNLOGGED TABLE {table} (n BIGINT{columns})")
        for group in groups:
            named = ", ".join(["n", *_columns(len(group.shape.columns))])
            self._database.copy(f"COPY {table} ({named}) FROM STDIN", group.text)
        if len(groups) > 1:
            self._database.run(f"CREATE INDEX ON {table} (n)")
        if self._granted.logged:
            # Afterwards, and not a logged table from the start: what is copied into one is in every publication
            # FOR ALL TABLES.
            self._database.run(f"ALTER TABLE {table} SET LOGGED")

    def close(self) -> None:
        self._database.close()


def move_part(database: PostgresDatabase, writing: TableWriter, piece: bytes) -> None:
    """Move the rows of a staged part into their tables, in order, within the open transaction."""
    for file in msgspec.msgpack.decode(memoryview(piece)[1:], type=PartManifest).files:
        table = file.about.decode()
        groups, start = _read_groups(database, table, file), 0
        for group in groups:
            with piece_refusals(group):
                copy_in(database, writing, group, partial(_fill, database, table, start, group))
            start += group.count
        database.run(f"DROP TABLE {table}")


def _read_groups(database: PostgresDatabase, table: str, file: PartFile) -> list[CopyText]:
    [(comment,)] = database.rows("SELECT obj_description(to_regclass(%s), 'pg_class')", (table,))
    # M4: a table that is not logged is empty after a crash of the server.
    if comment is None or database.rows(f"SELECT count(*) FROM {table}") != [(file.size,)]:
        raise TransientError(
            f"{table} is not what a task has staged there",
            suggestion="others must not change staging tables; the next run stages it again",
        )
    return msgspec.json.decode(comment.partition("\n")[2], type=list[CopyText])


def _fill(database: PostgresDatabase, table: str, start: int, group: CopyText, into: str) -> None:
    types = database.plain_types(group.shape.table)
    columns = ", ".join(map(database.column, group.shape.columns))
    pairs = zip(_columns(len(group.shape.columns)), group.shape.columns, strict=True)
    values = ", ".join(f"{name}::{types[column]}" for name, column in pairs)
    rows = f"n >= {start} AND n < {start + group.count}"
    database.run(f"INSERT INTO {into} ({columns}) SELECT {values} FROM {table} WHERE {rows} ORDER BY n")


def _columns(width: int) -> list[str]:
    return [f"c{place}" for place in range(width)]
