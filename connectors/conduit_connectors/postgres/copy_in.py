"""CopyEncoder: encodes rows as the text that PostgreSQL's COPY reads, which is many times faster than statements."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import msgspec

from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.sql.column_fit import ColumnType
from conduit_connectors.sql.database import NotThisRow
from conduit_connectors.sql.row import RowEncoder, TableRow
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py.sdk import Batch, PieceRefused

_PIECE = "conduit_piece"


Fill: TypeAlias = Callable[[str], None]
"""Puts rows into a table, given its name, within the open transaction."""


class CopyText(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of one shape. `kinds` has the kinds among the values of each column.

    In the text of a CopyEncoder each row begins with its number.
    """

    shape: TableRow
    kinds: list[list[str]]
    count: int
    text: bytes


class CopyEncoder:
    """Turns records into groups of rows, in order."""

    def __init__(self, rows: RowEncoder) -> None:
        self._rows = rows
        self._groups: list[_Group] = []
        self._count = 0

    def add(self, batch: Batch) -> dict[int, str]:
        """Add records; return index → reason for those that are refused."""
        rows, refused = self._rows.of(batch)
        for index, row in rows.items():
            try:
                line = _line((self._count, *row.values))
            except UnicodeEncodeError:
                refused[index] = "has half of a surrogate pair in a text, which no SQL text can carry"
                continue
            if not self._groups or not self._groups[-1].fits(row):
                self._groups.append(_Group(row))
            self._groups[-1].add(row, line)
            self._count += 1
        return refused

    def groups(self) -> list[CopyText]:
        return [group.copied() for group in self._groups]


def copy_in(database: PostgresDatabase, writing: TableWriter, group: CopyText, fill: Fill) -> None:
    """Write or delete the rows within the open transaction. Raises NotThisRow if one of them is refused."""
    shape = group.shape
    types = writing.column_types(shape)
    if types is None and not shape.unchanged:
        # Nothing to delete.
        return
    if types is None or shape.unchanged:
        raise NotThisRow("there are columns to leave unchanged, which is done row by row")
    if shape.truncate:
        database.run(database.statement(shape))
        return
    _check_types(database, types, group)
    table, columns = database.quoted(shape.table), ", ".join(map(database.column, shape.columns))
    if not shape.keys:
        fill(table)
        return
    database.run(f"CREATE TEMP TABLE {_PIECE} ON COMMIT DROP AS SELECT {columns} FROM {table} WITH NO DATA")
    fill(_PIECE)
    keys = ", ".join(map(database.column, shape.keys))
    if shape.gone:
        same = " AND ".join(f"{table}.{key} = {_PIECE}.{key}" for key in map(database.column, shape.columns))
        database.run(f"DELETE FROM {table} USING {_PIECE} WHERE {same}")
    else:
        # PostgreSQL refuses to change a row twice in one statement: of several rows with one key the last one counts.
        newest = f"SELECT DISTINCT ON ({keys}) {columns} FROM {_PIECE} ORDER BY {keys}, ctid DESC"
        database.run(f"INSERT INTO {table} ({columns}) {newest} {database.replacing(shape)}")
    database.run(f"DROP TABLE {_PIECE}")


def copy_piece(database: PostgresDatabase, writing: TableWriter, piece: bytes) -> None:
    """Copy the rows of a piece in an intent of an earlier version: their text is in it, without numbers."""
    for group in msgspec.msgpack.decode(piece, type=list[CopyText]):
        with piece_refusals(group):
            copy_in(database, writing, group, partial(_copy_text, database, group))


def _copy_text(database: PostgresDatabase, group: CopyText, into: str) -> None:
    database.copy(f"COPY {into} ({', '.join(map(database.column, group.shape.columns))}) FROM STDIN", group.text)


@contextmanager
def piece_refusals(group: CopyText) -> Iterator[None]:
    """Raise PieceRefused where a row of the group is refused."""
    try:
        yield
    except NotThisRow as error:
        raise PieceRefused(f"{group.shape.table} refuses one of {group.count} rows: {error}") from error


class _Group:
    def __init__(self, row: TableRow) -> None:
        self._shape = row
        self._lines: list[bytes] = []
        self._kinds: list[set[str]] = [set() for _ in row.columns]

    def fits(self, row: TableRow) -> bool:
        return row.shape == self._shape.shape

    def add(self, row: TableRow, line: bytes) -> None:
        self._lines.append(line)
        for kinds, kind, value in zip(self._kinds, row.kinds, row.values, strict=True):
            kinds.add(kind if kind != "decimal" else f"decimal.{_scale(value)}")

    def copied(self) -> CopyText:
        shape = msgspec.structs.replace(self._shape, values=())
        kinds = [sorted(kinds) for kinds in self._kinds]
        return CopyText(shape, kinds, len(self._lines), b"".join(self._lines))


def _scale(digits: str) -> str:
    """Return how many digits of a decimal are after the point; nothing if it is written with an exponent."""
    whole, point, rest = digits.partition(".")
    return str(len(rest)) if (rest or whole).isdecimal() or not point else ""


def _check_types(database: PostgresDatabase, types: Mapping[str, ColumnType], group: CopyText) -> None:
    """Raise NotThisRow for values that must be looked at one by one: COPY reads every value as text."""
    for name, kinds in zip(group.shape.columns, group.kinds, strict=True):
        if name not in types:
            raise NotThisRow(f"there is no column {name!r}")
        column = types[name]
        for each in kinds:
            kind, _, scale = each.partition(".")
            if scale and column.family == "decimal" and int(scale) <= column.scale:
                continue
            fit = database.fit(kind, column)
            # The text of a float keeps its digits in a decimal, as that of a value that is sent as text does.
            if fit is not None and fit.silent and not (fit.as_text and column.size is None):
                raise NotThisRow(f"column {name!r} is {column.name}, and there are values of the kind {kind!r}")


def _line(values: tuple[Any, ...]) -> bytes:
    return ("\t".join([_FIELDS[type(value)](value) for value in values]) + "\n").encode()


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_FIELDS: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "\\N",
    bool: lambda value: "t" if value else "f",
    int: str,
    float: repr,
    str: lambda value: value.translate(_ESCAPES),
    bytes: lambda value: "\\\\x" + value.hex(),
}
