"""TableWriter: writes rows into tables, so that a row the database refuses does not stop the others."""

from collections.abc import Sequence

from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused, no_table
from conduit_connectors.sql.row import TableOptions, TableRow, group_rows


class TableWriter:
    """Writes rows within a transaction that its caller began."""

    def __init__(self, database: SqlDatabase, options: TableOptions) -> None:
        self._database = database
        self._create = options.create
        self._table_is_the_records = options.table is None
        self._names_are_the_records = options.names_are_the_records
        self._columns: dict[str, set[str]] = {}

    def forget(self) -> None:
        """Forget the known columns: the transaction was rolled back, and tables that it created are gone."""
        self._columns = {}

    def write(self, rows: Sequence[tuple[int, TableRow]]) -> dict[int, str]:
        """Write the rows in order; return index → reason for those that were refused."""
        refused: dict[int, str] = {}
        for group in group_rows(rows):
            reason = self.refusal(group[0][1])
            if reason is None:
                refused |= self._write(group)
            else:
                refused |= {index: reason for index, _ in group}
        return refused

    def refusal(self, row: TableRow) -> str | None:
        """Return why no row of this shape can be written, if so. Creates a missing table."""
        try:
            unknown = self.unknown(row)
        except NotThisRow as error:
            return str(error)
        return f"{row.table} has no column {', '.join(map(repr, unknown))}" if unknown else None

    def _write(self, group: list[tuple[int, TableRow]]) -> dict[int, str]:
        database, sql = self._database, self._database.statement(group[0][1])
        database.run("SAVEPOINT conduit")
        try:
            database.run_many(sql, [row.values for _, row in group])
            refused: dict[int, str] = {}
        except NotThisRow:
            database.run("ROLLBACK TO SAVEPOINT conduit")
            refused = self._write_each(sql, group)
        except StatementRefused as error:
            database.run("ROLLBACK TO SAVEPOINT conduit")
            # A table that changed while we write is nothing that the record did.
            unchanged = set(database.columns(group[0][1].table)) == self._columns[group[0][1].table]
            if not (self._names_are_the_records and unchanged):
                raise
            refused = {index: error.message for index, _ in group}
        database.run("RELEASE SAVEPOINT conduit")
        return refused

    def _write_each(self, sql: str, group: list[tuple[int, TableRow]]) -> dict[int, str]:
        refused: dict[int, str] = {}
        for index, row in group:
            self._database.run("SAVEPOINT conduit_row")
            try:
                self._database.run(sql, row.values)
            except NotThisRow as error:
                self._database.run("ROLLBACK TO SAVEPOINT conduit_row")
                refused[index] = str(error)
            self._database.run("RELEASE SAVEPOINT conduit_row")
        return refused

    def unknown(self, row: TableRow) -> list[str]:
        """Return the columns of a row that its table lacks. Creates a missing table.

        Raises NotThisRow when the row itself names a table that cannot be, or its fields make no table.
        """
        known = self._columns.get(row.table)
        if known is None or not known.issuperset(row.columns):
            known = self._columns[row.table] = self._find_or_create(row)
        return [name for name in row.columns if name not in known]

    def _find_or_create(self, row: TableRow) -> set[str]:
        # PostgreSQL ends a transaction at its first error, so whatever a hostile name may break has a savepoint.
        self._database.run("SAVEPOINT conduit_table")
        try:
            known = set(self._database.columns(row.table))
            if not known:
                if not self._create:
                    raise no_table(row.table)
                self._database.create_table(row)
                known = set(row.columns)
        except (NotThisRow, StatementRefused) as error:
            self._database.run("ROLLBACK TO SAVEPOINT conduit_table")
            self._database.run("RELEASE SAVEPOINT conduit_table")
            if isinstance(error, StatementRefused) and self._table_is_the_records:
                raise NotThisRow(error.message) from error
            raise
        self._database.run("RELEASE SAVEPOINT conduit_table")
        return known
