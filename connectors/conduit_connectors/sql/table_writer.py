"""TableWriter: writes rows into tables, so that a row the database refuses does not stop the others."""

import logging
from collections.abc import Iterable, Sequence

from conduit_connectors.ignored_fields import NAMED_MAX
from conduit_connectors.sql.column_fit import ColumnType
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused
from conduit_connectors.sql.row import TableOptions, TableRow, group_rows
from conduit_connectors.sql.table_fitter import IndexedRows, TableFitter, missing_row
from conduit_py.sdk import DriftCount

_logger = logging.getLogger(__name__)


class TableWriter:
    """Writes rows within a transaction that its caller began."""

    def __init__(self, database: SqlDatabase, options: TableOptions) -> None:
        self._database = database
        self._fitter = TableFitter(database, options)
        self._names_are_the_records = options.names_are_the_records
        self._missed: set[str] = set()

    @property
    def changes(self) -> int:
        """How often a table was created or altered."""
        return self._fitter.changes

    @property
    def drift(self) -> DriftCount:
        """Counts the values that are left out."""
        return self._fitter.ignored.drift

    def report_ignored(self) -> None:
        """Log how many values were left out because their fields have no column, if any."""
        self._fitter.ignored.report()

    def forget(self) -> None:
        """Forget the known tables: the transaction was rolled back, and what it created or altered is not."""
        self._fitter.forget()

    def is_known(self, rows: Iterable[TableRow]) -> bool:
        """True if the tables of these rows need no change, as far as is known."""
        return self._fitter.is_known(rows)

    def fit(self, rows: Sequence[tuple[int, TableRow]]) -> tuple[IndexedRows, dict[int, str]]:
        """Make tables and rows fit each other. Return the rows to write, and index → reason for those that do not."""
        fitted: IndexedRows = []
        refused: dict[int, str] = {}
        self._fitter.start_batch()
        for group in group_rows(rows):
            some, reasons = self._fitter.fit(group)
            fitted += some
            refused |= reasons
        return fitted, refused

    def write(self, rows: Sequence[tuple[int, TableRow]]) -> dict[int, str]:
        """Write the rows in order; return index → reason for those that were refused."""
        refused: dict[int, str] = {}
        self._fitter.start_batch()
        for group in group_rows(rows):
            fitted, reasons = self._fitter.fit(group)
            refused |= reasons
            for part in [group] if fitted is group else group_rows(fitted):
                refused |= self._write(part)
        return refused

    def _write(self, group: IndexedRows) -> dict[int, str]:
        first = group[0][1]
        database = self._database
        database.set_savepoint("conduit")
        try:
            if first.unchanged:
                # Each by itself: whether there was a row to change must be known of each.
                refused = self._write_each(group)
            else:
                database.write_rows([row for _, row in group])
                refused = {}
        except NotThisRow:
            database.roll_back_to("conduit")
            refused = self._write_each(group)
        except StatementRefused as error:
            database.roll_back_to("conduit")
            # A table that changed while we write is nothing that the record did.
            unchanged = set(database.columns(first.table)) == self._fitter.columns(first.table)
            if not (self._names_are_the_records and unchanged):
                raise
            refused = {index: error.message for index, _ in group}
        database.release_savepoint("conduit")
        return refused

    def _write_each(self, group: IndexedRows) -> dict[int, str]:
        refused: dict[int, str] = {}
        changes = self._fitter.changes
        for index, row in group:
            self._database.set_savepoint("conduit_row")
            try:
                # A row before this one may have changed the table.
                self._write_row(row if self._fitter.changes == changes else self._fitter.fit_row(row))
            except NotThisRow as error:
                self._database.roll_back_to("conduit_row")
                if self._fitter.changes != changes:
                    # What the row changed in its table is undone with it.
                    self._fitter.forget(row.table)
                refused[index] = str(error)
            self._database.release_savepoint("conduit_row")
        return refused

    def _write_row(self, row: TableRow) -> None:
        self._database.set_savepoint("conduit_value")
        try:
            self._run(row)
        except NotThisRow:
            self._database.roll_back_to("conduit_value")
            again = self._fitter.refit(row)
            if again is None:
                raise
            self._run(again)
        self._database.release_savepoint("conduit_value")

    def _run(self, row: TableRow) -> None:
        changed = self._database.write_row(row)
        if not row.unchanged or changed:
            return
        if row.required:
            raise NotThisRow(missing_row(row))
        if row.table not in self._missed and len(self._missed) < NAMED_MAX:
            self._missed.add(row.table)
            _logger.warning(
                "an update of %r leaves columns unchanged, and there is no row with its key: such updates are skipped",
                row.table,
            )

    def column_types(self, row: TableRow) -> dict[str, ColumnType] | None:
        """Return the columns of the row's table, which is created if the row needs it; None if there is none.

        Raises NotThisRow when the row itself names a table that cannot be, or its fields make no table.
        """
        return self._fitter.column_types(row)
