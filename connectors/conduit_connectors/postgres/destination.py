"""The PostgreSQL destination: writes rows, or moves those that tasks of Spark have staged."""

from collections.abc import Sequence
from typing import ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr

from conduit_connectors.objects.staged_parts import StagedParts, owned_folder
from conduit_connectors.postgres.copy_in import CopyEncoder, copy_piece
from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.postgres.staging_tables import STAGED, StagingTables, TaskTable, move_part
from conduit_connectors.sql.database import SqlDatabase
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, TableArguments, TableOptions
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py import sdk
from conduit_py.sdk import Batch, FatalError, PartId, PieceRefused, StageCleared


class DestinationOptions(TableOptions):
    """Options of the PostgreSQL destination."""

    url: SecretStr = Field(description="the database, as postgresql://user:password@host:port/name")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]


class Destination(SqlDestination[DestinationOptions], sdk.ManyWriterDestination[DestinationOptions]):
    """Writes records as rows: appended, or one row per key. Transactional.

    Exactly-once in an exactly-once pipeline: the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this database. At-least-once in any other, effectively
    once with `mode="upsert"`. The table may be named with its schema: `sales.orders`.

    A row that the table refuses is refused alone. Integers beyond 64 bits, decimals, dates, times and UUIDs
    are sent as text, which PostgreSQL reads as the type of the column; objects and lists as JSON.

    On Spark each task copies its rows into a staging table of its own. The driver moves them, in the order of the
    source, in the transaction that has the checkpoint.
    """

    names: ClassVar[NameRules] = NameRules(columns_max=1600, reserved=("pg_", "information_schema"), bytes_max=63)
    _owner: str | None = None
    _tables: StagingTables | None = None
    """On a driver of Spark: the staging tables, and what it has taken of them."""
    _parts: StagedParts | None = None
    _moved: list[str]
    """What was taken and is not committed."""
    _task: TaskTable | None = None
    """In a task of Spark: what it stages."""
    _copying: CopyEncoder | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[sdk.Dataset]:
        tables = [] if self.options.table is None else [self.options.table]
        return sdk.Dataset.tables(self.options.url.get_secret_value(), tables, port=5432, schema="public")

    def connect(self) -> PostgresDatabase:
        return PostgresDatabase.at(self.options.url.get_secret_value())

    def open(self) -> None:
        super().open()
        self._moved = []

    def claim(self, owner: str, fence: int) -> bytes | None:
        self._owner = owner
        return super().claim(owner, fence)

    def commit(self, changes: bytes) -> None:
        super().commit(changes)
        self._mark_moved()

    def apply(self, intent: bytes) -> None:
        super().apply(intent)
        self._mark_moved()

    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        return None

    def grant(self) -> bytes:
        if self._parts is None:
            # A connection of its own: the other one may have a transaction open, of the records of another source.
            self._tables = StagingTables(self.connect(), self._place)
            owned = None if self._owner is None else owned_folder(self._owner)
            self._granted = self._tables.grant(owned, self._fence, logged=self._staged is not None)
            self._parts = StagedParts(self._tables, self._granted.grant, "the database")
        return msgspec.msgpack.encode(self._granted)

    def open_part(self, grant: bytes, part: PartId) -> None:
        self._copying = CopyEncoder(self.make_encoder())
        try:
            self._task = TaskTable(self.connect(), self._place, grant, part)
        except FatalError as error:
            # The driver has opened a database under the same address.
            raise PieceRefused(error.message, suggestion=error.suggestion) from error

    def prepare(self, batch: Batch) -> dict[int, str]:
        assert self._copying is not None, "a part is open"
        return self._copying.add(batch)

    def prepared(self) -> bytes:
        assert self._copying is not None, "a part is open"
        assert self._task is not None, "a part is open"
        return self._task.stage(self._copying.groups())

    def discard_part(self) -> None:
        if self._task is not None:
            self._task.close()
            self._task = None

    def take(self, pieces: Sequence[bytes]) -> None:
        assert self._parts is not None, "granted"
        taken = [file.waits_as for piece in pieces for file in self._parts.take(piece[len(STAGED) :])]
        self._parts.seal()
        self.write_pieces(pieces)
        self._moved += taken
        if self._checkpoint is None:
            self._mark_moved()

    def show_piece(self, database: SqlDatabase, writing: TableWriter, piece: bytes) -> None:
        assert isinstance(database, PostgresDatabase)
        if piece.startswith(STAGED):
            move_part(database, writing, piece)
        else:
            copy_piece(database, writing, piece)

    def clear_staged(self, age_seconds: float, owner: str | None) -> StageCleared:
        tables = StagingTables(self.connect(), self._place)
        try:
            return tables.clear_dead(age_seconds, owner)
        finally:
            tables.close()

    def teardown(self) -> None:
        super().teardown()
        if self._parts is not None:
            self._parts.close()
            self._parts = None
        if self._tables is not None:
            self._tables.close()
            self._tables = None

    def _mark_moved(self) -> None:
        """Note that what was taken is in its tables, and committed there."""
        moved, self._moved = self._moved, []
        if self._parts is not None:
            self._parts.mark_visible(moved)

    @property
    def _place(self) -> str:
        return self.options.table or ""
