"""SqlDestination: writes records into tables, with the checkpoint in the same transaction."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import msgspec

from conduit_connectors.sql.checkpoint import CheckpointTable
from conduit_connectors.sql.database import SqlDatabase
from conduit_connectors.sql.row import NameRules, RowEncoder, TableOptions, TableRow
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py import sdk
from conduit_py.sdk import Batch, FatalError, PieceRefused

OptionsT = TypeVar("OptionsT", bound=TableOptions)


class StagedRows(msgspec.Struct, frozen=True, array_like=True):
    """An intent: rows or pieces to write, identified by the fence and number under which they were staged."""

    fence: int
    number: int
    rows: list[TableRow]
    pieces: list[bytes] = []


class SqlDestination(sdk.TransactionalDestination[OptionsT]):
    """The base of all destinations that write tables of a database. At-least-once, every `write` is a transaction.

    As the home of an exactly-once pipeline the transaction stays open until `commit`. A further destination, and
    one of a source whose work is shared, stages instead: `write` tries the rows in a transaction that is rolled
    back at once, so that rows are refused before the commit. The intent carries them, and `apply` writes them.
    No lock outlives a call, so others may write to the same tables.
    """

    names: ClassVar[NameRules]
    int_max: ClassVar[int | None] = None
    finite: ClassVar[bool] = False
    _database: SqlDatabase | None = None

    @property
    def takes(self) -> Any:
        # Absent ones are deletes, whose key is enough.
        return dict | None if self.options.layout == "columns" else Any

    @abstractmethod
    def connect(self) -> SqlDatabase:
        """Open a connection that nothing else uses."""

    @classmethod
    def encoder_for(cls, options: TableOptions) -> RowEncoder:
        """Return what turns records into rows of such a database."""
        return RowEncoder(options, cls.names, int_max=cls.int_max, finite=cls.finite)

    def make_encoder(self) -> RowEncoder:
        """Return what turns records into rows of this database."""
        return self.encoder_for(self.options)

    def probe(self) -> str:
        self.connect().close()
        return "the database answers"

    def open(self) -> None:
        self._database = self.connect()
        self._rows = self.make_encoder()
        self._writing = TableWriter(self._database, self.options)
        self.drift_count = self._writing.drift
        self._checkpoint: CheckpointTable | None = None
        self._fence = 0
        self._staged: list[TableRow] | None = None
        self._staged_pieces: list[bytes] = []
        self._stages = 0
        self._under_way = False
        self._changes = 0
        self._check_policies(self._database)

    def claim(self, owner: str, fence: int) -> bytes | None:
        self._checkpoint = CheckpointTable(self._db, self.options.table or "")
        self._fence = fence
        return self._checkpoint.claim(owner, fence)

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        assert self._checkpoint is not None, "claimed"
        for intent in intents:
            self.apply(intent)
        self._checkpoint.begin()
        self._staged = []

    def _check_policies(self, database: SqlDatabase) -> None:
        changing = self.options.on_new_field == "add" or self.options.on_type != "refuse"
        if changing and not database.alters:
            raise FatalError(
                "this database cannot alter a table within a transaction",
                suggestion='use on_new_field="refuse" or "ignore", and on_type="refuse"',
            )

    def write(self, batch: Batch) -> dict[int, str]:
        rows, refused = self._rows.of(batch)
        if self._checkpoint is None:
            with self._transaction():
                return refused | self._writing.write(list(rows.items()))
        if self._staged is not None:
            fitted, unfit = self._fit_tables(rows)
            refused |= unfit
            refused |= self._try_write(self._staged, fitted)
            self._staged += [row for index, row in fitted.items() if index not in refused]
            return refused
        self._start()
        return refused | self._writing.write(list(rows.items()))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block does. If it raises, tables may not be as they were last read."""
        try:
            with self._db.transaction():
                yield
        except BaseException:
            self._writing.forget()
            raise

    def _fit_tables(self, rows: Mapping[int, TableRow]) -> tuple[Mapping[int, TableRow], dict[int, str]]:
        """Create and alter tables for rows that are to be staged, and commit that. Return the rows as they fit.

        Were it undone with the trial, the next batch would be tried with other tables than those that the stage
        is applied to. A column without values changes nothing for readers, whatever becomes of the transaction.
        """
        if self._writing.is_known(rows.values()):
            return rows, {}
        with self._transaction():
            fitted, refused = self._writing.fit(list(rows.items()))
        return dict(fitted), refused

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        """As `write`, for a piece that `prepare` made."""
        if self._checkpoint is None:
            with self._transaction():
                self._show_pieces(pieces)
            return
        self._start()
        if self._staged is None:
            self._show_pieces(pieces)
            return
        try:
            self._writing.write(list(enumerate(self._staged)))
            self._show_pieces([*self._staged_pieces, *pieces])
        finally:
            self._undo()
        self._staged_pieces += pieces

    def show_piece(self, database: SqlDatabase, writing: TableWriter, piece: bytes) -> None:
        """Write the rows of a piece within the open transaction. Raises PieceRefused."""
        raise NotImplementedError(f"{type(self).__qualname__} does not prepare")

    def _show_pieces(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.show_piece(self._db, self._writing, piece)

    def commit(self, changes: bytes) -> None:
        assert self._checkpoint is not None, "claimed"
        self._start()
        self._checkpoint.commit(changes)
        self._db.commit()
        self._under_way = False

    def _try_write(self, before: Sequence[TableRow], rows: Mapping[int, TableRow]) -> dict[int, str]:
        """Return what the tables would refuse of these rows, given the rows staged before them."""
        self._start()
        try:
            if (before or self._staged_pieces) and any(self._repeats(row) for row in rows.values()):
                self._writing.write(list(enumerate(before)))
                self._show_pieces(self._staged_pieces)
            return self._writing.write(list(rows.items()))
        finally:
            self._undo()

    def _repeats(self, row: TableRow) -> bool:
        # What becomes of a row that leaves columns alone depends on the one that it changes.
        return bool(row.unchanged) or self._db.refuses_repeats(row)

    def stage(self) -> bytes | None:
        if not self._staged and not self._staged_pieces:
            return None
        self._stages += 1
        stage = StagedRows(self._fence, self._stages, self._staged or [], self._staged_pieces)
        self._staged, self._staged_pieces = [], []
        return msgspec.msgpack.encode(stage)

    def apply(self, intent: bytes) -> None:
        assert self._checkpoint is not None, "claimed"
        self._show(self._db, self._checkpoint, self._writing, intent)

    def apply_for(self, owner: str, intent: bytes) -> bool:
        # With a connection of its own: it is called when another worker has died, perhaps in the middle of our write.
        database = self.connect()
        try:
            checkpoint = CheckpointTable(database, self.options.table or "")
            if not checkpoint.switch_to(owner):
                return False
            self._show(database, checkpoint, TableWriter(database, self.options), intent)
        finally:
            database.close()
        return True

    def teardown(self) -> None:
        if self._database is not None:
            self._writing.report_ignored()
            self._database.close()
            self._database = None

    def _show(self, database: SqlDatabase, checkpoint: CheckpointTable, writing: TableWriter, intent: bytes) -> None:
        """Write the rows of a stage, unless they were written before."""
        stage = msgspec.msgpack.decode(intent, type=StagedRows)
        with database.transaction():
            if not checkpoint.applies(stage.fence, stage.number):
                return
            for index, why in writing.write(list(enumerate(stage.rows))).items():
                raise _not_any_more(f"{stage.rows[index].table} refuses a row: {why}")
            try:
                for piece in stage.pieces:
                    self.show_piece(database, writing, piece)
            except PieceRefused as error:
                raise _not_any_more(error.message) from error

    def _start(self) -> None:
        if not self._under_way:
            self._db.start()
            self._under_way = True
            self._changes = self._writing.changes

    def _undo(self) -> None:
        if self._under_way:
            self._db.roll_back()
            if self._writing.changes != self._changes:
                self._writing.forget()
            self._under_way = False

    @property
    def _db(self) -> SqlDatabase:
        assert self._database is not None, "opened"
        return self._database


def _not_any_more(what: str) -> FatalError:
    return FatalError(
        f"{what}, though it took it before",
        suggestion="undo what changed the table meanwhile: what is refused is committed and belongs there",
    )
