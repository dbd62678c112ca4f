"""The DuckDB destination: rows of one or several tables of a database file, with the checkpoint in the same commit."""

from pathlib import Path
from typing import Any, ClassVar, Required, Unpack

import pyarrow as pa
from pydantic import Field

from conduit_connectors.duckdb.column_types import duckdb_kind
from conduit_connectors.duckdb.database import DuckDbDatabase, connect
from conduit_connectors.probe_path import probe_writable
from conduit_connectors.sql.database import NotThisRow, StatementRefused
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, RowEncoder, TableArguments, TableOptions
from conduit_connectors.table_rows import fit_batch
from conduit_py.sdk import Batch, TransientError

_ROWS_AT_ONCE = 50_000


class DestinationOptions(TableOptions):
    """Options of the DuckDB destination."""

    path: Path = Field(description="the database file; it is created when missing")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]


class Destination(SqlDestination[DestinationOptions]):
    """Writes records as rows of a DuckDB file: appended, or one row per key. Transactional.

    Exactly-once in an exactly-once pipeline: the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this file. At-least-once in any other, effectively
    once with `mode="upsert"`. The table may be named with its schema: `sales.orders`.

    One process at a time has a DuckDB file open for writing, and nobody else reads it meanwhile. That is a rule of
    DuckDB: while another process has the file, the pipeline says so and tries again. Several pipelines of one
    process may write one file.

    A value that its column would round, cut or convert is refused alone, and so is a row that a constraint of the
    table refuses. In tables that it creates, decimals are DECIMAL(38,12), integers beyond 64 bits HUGEINT, times with a
    zone TIMESTAMP WITH TIME ZONE, others TIMESTAMP; objects and lists are JSON. What a transaction writes is kept in
    memory until its commit.
    """

    names: ClassVar[NameRules] = NameRules(columns_max=5000, reserved=("pg_", "information_schema"), ignores_case=True)

    _plain_schema: pa.Schema | None = None
    """The columns of the table, if Arrow has a type for each: then batches need not become rows."""

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def data_file(self) -> Path:
        return self.options.path

    def probe(self) -> str:
        found = probe_writable(self.options.path)
        if not self.options.path.exists():
            return found
        # Read only: a connection that writes would take what another process left in the log into the file.
        connect(self.options.path, read_only=True).close()
        return "the database answers"

    def connect(self) -> DuckDbDatabase:
        return DuckDbDatabase(self.options.path)

    @classmethod
    def encoder_for(cls, options: TableOptions) -> RowEncoder:
        return _DuckDbRows(options, cls.names, int_max=cls.int_max, finite=cls.finite)

    def open(self) -> None:
        super().open()
        self._known_changes = -1
        self._unconstrained = False
        self._waiting: list[pa.Table] = []

    def write(self, batch: Batch) -> dict[int, str]:
        # In place of a row for each record, if all records are rows as they are: several times as quick.
        if self._staged is None and (rows := self._fit_plainly(batch)) is not None and self._append(rows):
            return {}
        self._append_waiting()
        return super().write(batch)

    def commit(self, changes: bytes) -> None:
        self._append_waiting()
        super().commit(changes)

    def _append(self, rows: pa.Table) -> bool:
        """Append rows; False, and nothing is appended, if the table refuses one of them."""
        if self._checkpoint is None:
            with self._transaction():
                return self._append_part(rows)
        self._start()
        if not self._unconstrained:
            return self._append_part(rows)
        # Nothing of the table can refuse them, so they may wait for more: a statement costs as much as 1000 rows.
        self._waiting.append(rows)
        if sum(each.num_rows for each in self._waiting) >= _ROWS_AT_ONCE:
            self._append_waiting()
        return True

    def _append_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and not self._append_part(pa.concat_tables(waiting)):
            raise TransientError(
                f"the table {self.options.table!r} was changed while it was written",
                suggestion="let nobody else change it meanwhile; the next run reads it as it is",
            )

    def _append_part(self, rows: pa.Table) -> bool:
        database = self._duckdb
        database.set_savepoint("conduit")
        try:
            database.append(self.options.table or "", rows)
        except (NotThisRow, StatementRefused):
            database.roll_back_to("conduit")
            return False
        finally:
            database.release_savepoint("conduit")
        return True

    def _fit_plainly(self, batch: Batch) -> pa.Table | None:
        """Return a batch as an Arrow table, if every row of it can be appended as it is; None: look at each row."""
        if (schema := self._read_schema()) is None or not _has_payloads_only(batch):
            return None
        if batch.table is not None:
            if not set(schema.names) & set(batch.table.column_names):
                return None
        else:
            known = set(schema.names)
            if any(not isinstance(row, dict) or known.isdisjoint(row) for row in batch.payloads):
                return None
        rows, refused = fit_batch(batch, schema, more=False)
        return rows if not refused else None

    def _read_schema(self) -> pa.Schema | None:
        """Return the columns of the table that batches are appended to; None if rows must be looked at."""
        options = self.options
        if options.table is None or options.mode != "append" or options.layout != "columns":
            return None
        if self._writing.changes != self._known_changes:
            self._append_waiting()
            self._plain_schema = self._duckdb.plain_schema(options.table)
            self._unconstrained = not self._duckdb.has_constraints(options.table)
            self._known_changes = self._writing.changes
        return self._plain_schema

    @property
    def _duckdb(self) -> DuckDbDatabase:
        assert isinstance(self._database, DuckDbDatabase), "opened"
        return self._database


class _DuckDbRows(RowEncoder):
    kind_of: ClassVar[Any] = staticmethod(duckdb_kind)


def _has_payloads_only(batch: Batch) -> bool:
    """True if no record of a batch has a key, whose fields would be columns too."""
    if batch.holds_records:
        return all(record.key is None for record in batch.records)
    return batch.columns is None or batch.columns.keys is None
