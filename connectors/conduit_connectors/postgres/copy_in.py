"""CopyEncoder: encodes rows as the text that PostgreSQL's COPY reads, which is many times faster than statements."""

from collections.abc import Callable
from typing import Any

import msgspec

from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.sql.database import NotThisRow
from conduit_connectors.sql.row import RowEncoder, TableRow
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py.sdk import Batch

_PIECE = "conduit_piece"


class CopyText(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of one shape. `kinds` has the types among the values of each column."""

    shape: TableRow
    kinds: list[list[str]]
    count: int
    text: bytes


class CopyEncoder:
    """Turns records into groups of rows, in order."""

    def __init__(self, rows: RowEncoder) -> None:
        self._rows = rows
        self._groups: list[_Group] = []

    def add(self, batch: Batch) -> dict[int, str]:
        """Add records; return index → reason for those that are refused."""
        rows, refused = self._rows.of(batch)
        for index, row in rows.items():
            try:
                line = _line(row.values)
            except UnicodeEncodeError:
                refused[index] = "has half of a surrogate pair in a text, which no SQL text can carry"
                continue
            if not self._groups or not self._groups[-1].fits(row):
                self._groups.append(_Group(row))
            self._groups[-1].add(row, line)
        return refused

    def groups(self) -> list[CopyText]:
        return [group.copied() for group in self._groups]


def copy_in(database: PostgresDatabase, writing: TableWriter, group: CopyText) -> None:
    """Write or delete the rows within the open transaction. Raises NotThisRow if one of them is refused."""
    shape = group.shape
    if unknown := writing.unknown(shape):
        raise NotThisRow(f"there is no column {', '.join(map(repr, unknown))}")
    _check_types(database, group)
    table, columns = database.quoted(shape.table), ", ".join(map(database.column, shape.columns))
    if not shape.keys:
        database.copy(f"COPY {table} ({columns}) FROM STDIN", group.text)
        return
    database.run(f"CREATE TEMP TABLE {_PIECE} ON COMMIT DROP AS SELECT {columns} FROM {table} WITH NO DATA")
    database.copy(f"COPY {_PIECE} ({columns}) FROM STDIN", group.text)
    keys = ", ".join(map(database.column, shape.keys))
    if shape.gone:
        same = " AND ".join(f"{table}.{key} = {_PIECE}.{key}" for key in map(database.column, shape.columns))
        database.run(f"DELETE FROM {table} USING {_PIECE} WHERE {same}")
    else:
        # PostgreSQL refuses to change a row twice in one statement: of several rows with one key the last one counts.
        newest = f"SELECT DISTINCT ON ({keys}) {columns} FROM {_PIECE} ORDER BY {keys}, ctid DESC"
        database.run(f"INSERT INTO {table} ({columns}) {newest} {database.replacing(shape)}")
    database.run(f"DROP TABLE {_PIECE}")


class _Group:
    def __init__(self, row: TableRow) -> None:
        self._shape = row
        self._lines: list[bytes] = []
        self._kinds: list[set[type]] = [set() for _ in row.columns]

    def fits(self, row: TableRow) -> bool:
        shape = self._shape
        return (row.columns, row.table, row.keys, row.gone) == (shape.columns, shape.table, shape.keys, shape.gone)

    def add(self, row: TableRow, line: bytes) -> None:
        self._lines.append(line)
        for kinds, value in zip(self._kinds, row.values, strict=True):
            kinds.add(type(value))

    def copied(self) -> CopyText:
        shape = msgspec.structs.replace(self._shape, values=())
        kinds = [sorted(kind.__name__ for kind in kinds) for kinds in self._kinds]
        return CopyText(shape, kinds, len(self._lines), b"".join(self._lines))


_NUMBERS = {"smallint", "integer", "bigint", "numeric", "double precision"}
_SAME_AS_TEXT = {"bool": {"boolean"}, "int": _NUMBERS, "float": {"double precision"}, "bytes": {"bytea"}}


def _check_types(database: PostgresDatabase, group: CopyText) -> None:
    """Raise NotThisRow for values that a statement would convert or refuse: COPY reads every value as text."""
    types = database.column_types(group.shape.table)
    for name, kinds in zip(group.shape.columns, group.kinds, strict=True):
        for kind in kinds:
            if types[name] not in _SAME_AS_TEXT.get(kind, {types[name]}):
                raise NotThisRow(f"column {name!r} is {types[name]}, and there are values of type {kind}")


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
