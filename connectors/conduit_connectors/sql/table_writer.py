"""TableWriter: writes rows into tables, so that a row the database refuses does not stop the others."""

from collections.abc import Sequence

from conduit_connectors.sql.database import NotThisRow, SqlDatabase, no_table
from conduit_connectors.sql.row import TableRow, group_rows


class TableWriter:
    """Writes rows within a transaction that its caller began."""

    def __init__(self, database: SqlDatabase, *, create: bool) -> None:
        self._database = database
        self._create = create
        self._columns: dict[str, set[str]] = {}

    def forget(self) -> None:
        """Forget the known columns: the transaction was rolled back, and tables that it created are gone."""
        self._columns = {}

    def write(self, rows: Sequence[tuple[int, TableRow]]) -> dict[int, str]:
        """Write the rows in order; return index → reason for those that were refused."""
        refused: dict[int, str] = {}
        for group in group_rows(rows):
            unknown = self.unknown(group[0][1])
            if unknown:
                reason = f"{group[0][1].table} has no column {', '.join(map(repr, unknown))}"
                refused |= {index: reason for index, _ in group}
            else:
                refused |= self._write(group)
        return refused

    def _write(self, group: list[tuple[int, TableRow]]) -> dict[int, str]:
        database, sql = self._database, self._database.statement(group[0][1])
        database.run("SAVEPOINT conduit")
        try:
            database.run_many(sql, [row.values for _, row in group])
            refused: dict[int, str] = {}
        except NotThisRow:
            database.run("ROLLBACK TO SAVEPOINT conduit")
            refused = self._write_each(sql, group)
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
        """Return the columns of a row that its table lacks. Creates a missing table."""
        known = self._columns.get(row.table)
        if known is None or not known.issuperset(row.columns):
            known = set(self._database.columns(row.table))
            if not known:
                if not self._create:
                    raise no_table(row.table)
                self._database.create_table(row)
                known = set(row.columns)
            self._columns[row.table] = known
        return [name for name in row.columns if name not in known]
