"""TableMap: the columns that the rows of the following events have, as the log describes them."""

from struct import Struct, error
from typing import Final

import msgspec

from conduit_connectors.mysql.binlog_events import BinlogEvent, EventMalformed

TINY: Final = 1
SHORT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
LONGLONG: Final = 8
INT24: Final = 9
DATE: Final = 10
YEAR: Final = 13
VARCHAR: Final = 15
BIT: Final = 16
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255

_METADATA_SIZES = {FLOAT: 1, DOUBLE: 1, VARCHAR: 2, BIT: 2, TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1, 140: 1, 141: 2}
_METADATA_SIZES |= {NEWDECIMAL: 2, ENUM: 2, SET: 2, BLOB: 1, VAR_STRING: 2, STRING: 2, GEOMETRY: 1, 249: 1, 250: 1}
_METADATA_SIZES |= {251: 1, 245: 1}
_SIGNED_OR_NOT = frozenset({TINY, SHORT, LONG, INT24, LONGLONG, FLOAT, DOUBLE, NEWDECIMAL, YEAR})
_TEXTS = frozenset({STRING, VARCHAR, VAR_STRING, BLOB, GEOMETRY, 140, 141})
_CHOICES = frozenset({ENUM, SET})
_U16 = Struct("<H")


class LoggedColumn(msgspec.Struct, frozen=True):
    """A column of a table, as of the events that follow."""

    name: str
    kind: int
    length: int = 0
    """The bytes of a string at most, of a blob's length, of an enum; the precision of a decimal; digits of seconds."""
    scale: int = 0
    unsigned: bool = False
    collation: int = 63
    choices: tuple[bytes, ...] = ()
    """The values of an enum or a set."""


class TableMap(msgspec.Struct, frozen=True):
    """A table of the log."""

    number: int
    database: str
    name: str
    columns: tuple[LoggedColumn, ...]
    key: tuple[str, ...]
    """The columns of the primary key; none if there is none."""
    described: bool
    """False if the log has no names of columns: binlog_row_metadata is not FULL."""


def table_names(event: BinlogEvent) -> tuple[int, str, str]:
    """Return the number of a table, its database and its name."""
    try:
        reader = _Reader(event.body, 8)
        number = int.from_bytes(event.body[:6], "little")
        return number, reader.name(), reader.name()
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise EventMalformed(f"table map of {len(event.body)} bytes: {wrong}") from None


def parse_table_map(event: BinlogEvent) -> TableMap:
    """Return the table. Raises EventMalformed."""
    try:
        return _parse(event.body)
    # ValueError also for lists of another length than they must have.
    except (error, IndexError, ValueError, StopIteration) as wrong:
        raise EventMalformed(f"table map of {len(event.body)} bytes: {wrong!r}") from None


def _parse(body: bytes) -> TableMap:
    reader = _Reader(body, 8)
    database, name = reader.name(), reader.name()
    kinds = list(reader.take(reader.number()))
    details = _Reader(reader.take(reader.number()))
    raw = [details.take(_METADATA_SIZES.get(kind, 0)) for kind in kinds]
    reader.take((len(kinds) + 7) // 8)
    fields: dict[int, bytes] = {}
    while not reader.ended:
        field = reader.take(1)[0]
        fields[field] = reader.take(reader.number())
    shapes = [_shape(kind, detail) for kind, detail in zip(kinds, raw, strict=True)]
    names = _texts(fields.get(4, b""))
    columns = _describe(shapes, fields, [each.decode() for each in names])
    keys = _numbers(fields.get(8, b"")) or _numbers(fields.get(9, b""))[::2]
    described = len(names) == len(kinds)
    key = tuple(columns[index].name for index in keys)
    return TableMap(int.from_bytes(body[:6], "little"), database, name, tuple(columns), key, described)


def _shape(kind: int, detail: bytes) -> tuple[int, int, int]:
    """Return the kind of a column, its length and its scale."""
    if kind == STRING:
        first, length = detail
        if first & 0x30 != 0x30:
            # Two bits of a length beyond 255 are in the byte of the type, inverted.
            return first | 0x30, length | ((first & 0x30) ^ 0x30) << 4, 0
        return first, length, 0
    if kind in (VARCHAR, VAR_STRING):
        return kind, _U16.unpack(detail)[0], 0
    if kind == NEWDECIMAL:
        return kind, detail[0], detail[1]
    if kind == BIT:
        return kind, detail[1] * 8 + detail[0], 0
    return kind, detail[0] if detail else 0, 0


def _describe(shapes: list[tuple[int, int, int]], fields: dict[int, bytes], names: list[str]) -> list[LoggedColumn]:
    signs = fields.get(1, b"")
    kinds = [kind for kind, _, _ in shapes]
    texts = _collations(fields, 2, 3, sum(kind in _TEXTS for kind in kinds))
    choices = _collations(fields, 10, 11, sum(kind in _CHOICES for kind in kinds))
    sets, enums = _choices(fields.get(5, b"")), _choices(fields.get(6, b""))
    columns: list[LoggedColumn] = []
    numeric = 0
    for index, (kind, length, scale) in enumerate(shapes):
        unsigned, collation = False, 63
        values: tuple[bytes, ...] = ()
        if kind in _SIGNED_OR_NOT:
            unsigned = bool(signs and signs[numeric // 8] & 0x80 >> numeric % 8)
            numeric += 1
        elif kind in _TEXTS:
            collation = texts.pop(0)
        elif kind in _CHOICES:
            collation = choices.pop(0)
            values = (sets if kind == SET else enums).pop(0) if fields.get(4) else ()
        name = names[index] if index < len(names) else ""
        columns.append(LoggedColumn(name, kind, length, scale, unsigned, collation, values))
    return columns


def _collations(fields: dict[int, bytes], default: int, each: int, count: int) -> list[int]:
    if each in fields:
        return _numbers(fields[each])
    if default not in fields:
        return [63] * count
    usual, *rest = _numbers(fields[default])
    others = dict(zip(rest[::2], rest[1::2], strict=True))
    return [others.get(index, usual) for index in range(count)]


def _choices(data: bytes) -> list[tuple[bytes, ...]]:
    reader, found = _Reader(data), []
    while not reader.ended:
        found.append(tuple(reader.take(reader.number()) for _ in range(reader.number())))
    return found


def _texts(data: bytes) -> list[bytes]:
    reader, found = _Reader(data), []
    while not reader.ended:
        found.append(reader.take(reader.number()))
    return found


def _numbers(data: bytes) -> list[int]:
    reader, found = _Reader(data), []
    while not reader.ended:
        found.append(reader.number())
    return found


class _Reader:
    """Takes pieces of bytes from the front. Raises IndexError at their end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise IndexError(f"{len(taken)} bytes in place of {count}")
        self._at += count
        return taken

    def number(self) -> int:
        first = self.take(1)[0]
        if first < 251:
            return first
        sizes = {252: 2, 253: 3, 254: 8}
        if first not in sizes:
            raise IndexError(f"no number begins with {first}")
        return int.from_bytes(self.take(sizes[first]), "little")

    def name(self) -> str:
        text = self.take(self.take(1)[0]).decode()
        if self.take(1) != b"\0":
            raise IndexError("a name does not end")
        return text
