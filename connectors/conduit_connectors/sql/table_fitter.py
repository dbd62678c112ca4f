"""TableFitter: makes tables and rows fit each other, by the options `on_new_field` and `on_type`."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.sql.column_fit import NEVER, ColumnType, Fit, text_of, wider_family
from conduit_connectors.sql.database import NotThisRow, SqlDatabase, StatementRefused, no_table
from conduit_connectors.sql.row import TableOptions, TableRow

_logger = logging.getLogger(__name__)

IndexedRows = list[tuple[int, TableRow]]
_Checks = tuple[tuple[int, Fit], ...]

_PLANS_MAX = 4096


class TableFitter:
    """Fits rows to their tables within the transaction that its caller began. The tables only ever gain room.

    What a table holds before, it holds after: columns are added, and their types get wider. So a row that fitted
    once fits later too.
    """

    def __init__(self, database: SqlDatabase, options: TableOptions) -> None:
        self._database = database
        self._options = options
        self._tables: dict[str, dict[str, ColumnType]] = {}
        # The values that must be looked at, for rows with these columns and kinds of values.
        self._plans: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], _Checks]] = {}
        self._plan_count = 0
        self._read_again: set[str] = set()
        self.ignored = IgnoredFields()
        self.changes = 0
        """How often a table was created or altered."""

    def forget(self, table: str | None = None) -> None:
        """Forget what is known of a table, or of all: it is read again."""
        if table is None:
            self._tables = {}
        else:
            self._tables.pop(table, None)
        self._plans, self._plan_count = {}, 0

    def start_batch(self) -> None:
        """Let tables that lack a column be read once more: others may have added it since."""
        self._read_again.clear()

    def is_known(self, rows: Iterable[TableRow]) -> bool:
        """True if these rows fit as they are, without a look at the database."""
        return all(self._plan(row) == () for row in rows)

    def columns(self, table: str) -> set[str]:
        """Return the columns that the table had when it was last read."""
        return set(self._tables.get(table, ()))

    def column_types(self, row: TableRow) -> dict[str, ColumnType] | None:
        """Return the columns of the row's table, which is created if the row needs it; None if there is none.

        Raises NotThisRow as `fit` refuses.
        """
        if not self._find_table([row]):
            return None
        table = self._tables[row.table]
        return table if table.keys() >= set(row.columns) else self._read_table(row.table)

    def fit(self, group: IndexedRows) -> tuple[IndexedRows, dict[int, str]]:
        """Return the rows to write, which fit, and index → reason for those that do not. All have the same shape.

        A row that deletes, or changes what it did not bring itself, needs no write if there is no table.
        """
        first = group[0][1]
        plans = self._plans.get((first.table, first.columns))
        # Nothing to look at, for every row: the ordinary case, and the only thing that it costs.
        if plans is not None and not any(plans.get(row.kinds, True) for _, row in group):
            return group, {}
        while True:
            before = self.changes
            fitted, refused = self._fit_all(group)
            # A change of the table may change how the rows before it are sent.
            if self.changes == before:
                self._count_ignored(group, fitted)
                return fitted, refused

    def _fit_all(self, group: IndexedRows) -> tuple[IndexedRows, dict[int, str]]:
        try:
            if not self._find_table([row for _, row in group]):
                return [], {index: missing_row(row) for index, row in group if row.required}
        except NotThisRow as error:
            return [], {index: str(error) for index, _ in group}
        first = group[0][1]
        if first.table not in self._read_again and not self._tables[first.table].keys() >= {*first.columns}:
            self._read_table(first.table)
            self._read_again.add(first.table)
        fitted: IndexedRows = []
        refused: dict[int, str] = {}
        for index, row in group:
            try:
                fitted.append((index, self.fit_row(row)))
            except NotThisRow as error:
                refused[index] = str(error)
        return fitted, refused

    def fit_row(self, row: TableRow) -> TableRow:
        """Return the row as its table takes it; the table is altered if the options say so. Raises NotThisRow."""
        table = self._tables.get(row.table) or self._read_table(row.table)
        if any(name not in table for name in row.columns):
            row = self._fit_names(row)
        plan = self._plan(row)
        for place, fit in self._make_plan(row) if plan is None else plan:
            value = row.values[place]
            if value is None:
                continue
            if fit.holds is not None and not fit.holds(value):
                row = self._resolve(row, place)
            elif fit.as_text:
                row = _with_text(row, place)
        return row

    def refit(self, row: TableRow) -> TableRow | None:
        """After the database refused a row: return it as the table takes it now; None if it takes nothing else.

        Raises NotThisRow with the field if a value is the cause and the options leave it at that.
        """
        known, changes = self._tables.get(row.table), self.changes
        self.forget(row.table)
        if not self._find_table([row]):
            return None
        # Others may have changed the table since it was read.
        stale = self._tables[row.table] != known
        made = self.fit_row(row)
        for place, name in enumerate(made.columns):
            column, value = self._tables[row.table][name], made.values[place]
            fit = self._database.fit(made.kinds[place], column)
            if fit is None or fit.silent or value is None:
                continue
            if not (fit.holds(value) if fit.holds is not None else self._database.accepts(value, column)):
                made = self._resolve(made, place)
        return made if stale or made != row or self.changes != changes else None

    def _fit_names(self, row: TableRow) -> TableRow:
        """Return the row without the fields that have no column. Those that shall have one get it."""
        policy, table = self._options.on_new_field, self._tables[row.table]
        new = {name: place for place, name in enumerate(row.columns) if name not in table}
        for name in new:
            if name in row.keys or row.gone:
                raise NotThisRow(f"{row.table} has no column {name!r}, which is part of the key")
        # A column that is missing reads as null: nothing is lost.
        present = [name for name, place in new.items() if row.values[place] is not None]
        if present and policy == "refuse":
            raise NotThisRow(
                f"{row.table} has no column {', '.join(map(repr, present))} (on_new_field can add it, or ignore it)"
            )
        if present and policy == "add":
            named = ", ".join(map(repr, present))
            with self._altering(f"cannot add the column {named} to {row.table}"):
                for name in present:
                    self._database.add_column(row.table, name, row.kinds[new[name]])
            _logger.info("added the column %s to the table %r", named, row.table)
            table = self._read_table(row.table)
        kept = [place for place, name in enumerate(row.columns) if name in table]
        if not kept:
            raise NotThisRow(f"{row.table} has no column for any of its fields")
        return _with_places(row, kept)

    def _resolve(self, row: TableRow, place: int) -> TableRow:
        """Return the row with a value that its column holds, after the column was changed if the options say so."""
        name, kind, value = row.columns[place], row.kinds[place], row.values[place]
        column, policy = self._tables[row.table][name], self._options.on_type
        if policy != "refuse" and not row.gone and (family := wider_family(kind, column, value)) is not None:
            wider = self._database.wider_types.get(family)
            fit = NEVER if wider is None else self._database.fit(kind, ColumnType(wider, family))
            if fit is None or fit.holds is None or fit.holds(value):
                self._change_type(row.table, name, column, family)
                return _with_text(row, place) if fit is not None and fit.as_text else row
        if policy == "text" and column.family != "bytes" and (text := text_of(value)) is not None:
            if column.family != "text" and name not in row.keys and not row.gone:
                self._change_type(row.table, name, column, "text")
                return _with_text(row, place)
            if column.family == "text" and (column.size is None or len(text) <= column.size):
                return _with_text(row, place)
        raise NotThisRow(f"{name!r} has a value of the kind {kind!r}, which its column, {column.name}, does not hold")

    def _change_type(self, table: str, name: str, column: ColumnType, family: str) -> None:
        with self._altering(f"cannot change the column {name!r} of {table} from {column.name}"):
            self._database.change_type(table, name, column, family)
        _logger.info("changed the column %r of the table %r from %s", name, table, column.name)
        self._read_table(table)

    @contextmanager
    def _altering(self, what: str) -> Iterator[None]:
        """Count a change of a table. If it fails, undo it, and raise NotThisRow with what could not be done."""
        # PostgreSQL ends a transaction at its first error, so whatever a hostile name may break has a savepoint.
        self._database.set_savepoint("conduit_table")
        try:
            yield
        except (NotThisRow, StatementRefused) as error:
            self._database.roll_back_to("conduit_table")
            self._database.release_savepoint("conduit_table")
            reason = error.message if isinstance(error, StatementRefused) else error
            raise NotThisRow(f"{what}: {reason}") from error
        self._database.release_savepoint("conduit_table")
        self.changes += 1

    def _find_table(self, rows: Sequence[TableRow]) -> bool:
        """Read the columns of a table. Create a missing one if a row needs it; False if there is none.

        Raises NotThisRow when the rows name a table that cannot be, or their fields make no table.
        """
        first = rows[0]
        if first.table in self._tables:
            return True
        self._database.set_savepoint("conduit_table")
        try:
            found = bool(self._read_table(first.table))
            if not found and not self._options.create:
                raise no_table(first.table)
        except (NotThisRow, StatementRefused) as error:
            self._database.roll_back_to("conduit_table")
            self._database.release_savepoint("conduit_table")
            if isinstance(error, StatementRefused) and self._options.table is None:
                raise NotThisRow(error.message) from error
            raise
        self._database.release_savepoint("conduit_table")
        if not found and not (first.gone or first.truncate or first.unchanged):
            found = self._create_table(rows)
        if not found:
            self.forget(first.table)
        return found

    def _create_table(self, rows: Sequence[TableRow]) -> bool:
        first = rows[0]
        pairs = zip(*(row.kinds for row in rows), strict=True)
        kinds = [next((kind for kind in each if kind != "none"), "none") for each in pairs]
        shape = msgspec.structs.replace(first, kinds=tuple(kinds))
        if self._options.on_new_field == "add":
            # A field that is null says nothing of its type. It is added with its first value.
            places = [place for place, kind in enumerate(kinds) if kind != "none" or first.columns[place] in first.keys]
            shape = _with_places(shape, places or range(len(kinds)))
        try:
            with self._altering(f"cannot create {first.table}"):
                self._database.create_table(shape)
        except NotThisRow as error:
            # PostgreSQL refuses a table that another process creates at the same moment.
            if not self._read_table(first.table):
                # The next record may make a table.
                self.forget(first.table)
                if isinstance(error.__cause__, StatementRefused) and self._options.table is not None:
                    raise error.__cause__ from None
                raise
        return bool(self._read_table(first.table))

    def _read_table(self, table: str) -> dict[str, ColumnType]:
        found = self._database.column_types(table)
        if found != self._tables.get(table):
            self.forget(table)
            self._tables[table] = found
        return found

    def _plan(self, row: TableRow) -> _Checks | None:
        return self._plans.get((row.table, row.columns), _NO_PLANS).get(row.kinds)

    def _make_plan(self, row: TableRow) -> _Checks:
        table = self._tables[row.table]
        fits = [self._database.fit(kind, table[name]) for name, kind in zip(row.columns, row.kinds, strict=True)]
        made = tuple((place, fit) for place, fit in enumerate(fits) if fit is not None and fit.silent)
        if self._plan_count >= _PLANS_MAX:
            self._plans, self._plan_count = {}, 0
        self._plans.setdefault((row.table, row.columns), {})[row.kinds] = made
        self._plan_count += 1
        return made

    def _count_ignored(self, group: IndexedRows, fitted: IndexedRows) -> None:
        if self._options.on_new_field != "ignore":
            return
        kept = dict(fitted)
        for index, row in group:
            if index not in kept or len(kept[index].columns) == len(row.columns):
                continue
            for name, value in zip(row.columns, row.values, strict=True):
                if value is not None and name not in kept[index].columns:
                    self.ignored.add(row.table, name)


def missing_row(row: TableRow) -> str:
    """Return why a row that leaves columns alone is refused where there is none with its key."""
    return f"{row.table} has no row with its key, from which {', '.join(map(repr, row.unchanged))} could stay unchanged"


_NO_PLANS: dict[tuple[str, ...], _Checks] = {}


def _with_text(row: TableRow, place: int) -> TableRow:
    """Return the row with a value as text. A float remains a number: it is the digits that it is written with."""
    value = row.values[place]
    kinds = list(row.kinds)
    kinds[place] = "decimal" if isinstance(value, float) else "text"
    values = list(row.values)
    values[place] = text_of(value)
    return msgspec.structs.replace(row, values=tuple(values), kinds=tuple(kinds))


def _with_places(row: TableRow, places: Sequence[int]) -> TableRow:
    def pick(items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(items[place] for place in places)

    return msgspec.structs.replace(row, columns=pick(row.columns), values=pick(row.values), kinds=pick(row.kinds))
