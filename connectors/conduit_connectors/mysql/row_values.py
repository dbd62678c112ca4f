"""Values of rows in the binary log as Python values, and exact.

What a Python value cannot hold stays text, as MariaDB writes it: a day of the month 0, a time of 838 hours. The caller
names the types of these (`ExactRow.kept`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import error, unpack
from typing import Any
from uuid import UUID

import msgspec

from conduit_connectors.mysql import table_map as kinds
from conduit_connectors.mysql.binlog_events import (
    DELETE_ROWS,
    WRITE_ROWS,
    BinlogEvent,
    EventMalformed,
    is_compressed,
    rows_body,
    uncompress,
)
from conduit_connectors.mysql.charsets import BINARY, decode_of
from conduit_connectors.mysql.fixed_values import KeptText, Read, fixed_reader, take
from conduit_connectors.mysql.table_map import LoggedColumn
from conduit_py.sdk import FatalError


class ExactRow(msgspec.Struct, gc=False):
    """The values of a row by column. `kept` has the types of those that stayed text; absent columns are not there."""

    values: dict[str, Any]
    kept: dict[str, str]


class LoggedRowDecoder:
    """Reads the rows of one table map. Raises EventMalformed, and FatalError for what cannot be read exactly."""

    def __init__(
        self, columns: Sequence[LoggedColumn], collations: Mapping[int, str], type_names: Mapping[str, str]
    ) -> None:
        try:
            self._columns = [(each.name, _reader(each, collations, type_names.get(each.name, ""))) for each in columns]
        except (ValueError, LookupError) as wrong:
            raise EventMalformed(f"a table of {len(columns)} columns: {wrong!r}") from None

    def rows(self, event: BinlogEvent) -> Iterator[tuple[ExactRow | None, ExactRow | None]]:
        """Yield each row before and after its change. Raises EventMalformed."""
        try:
            yield from self._rows(event)
        except (error, LookupError, ArithmeticError, ValueError) as wrong:
            raise EventMalformed(f"rows of {len(event.body)} bytes: {wrong!r}") from None

    def _rows(self, event: BinlogEvent) -> Iterator[tuple[ExactRow | None, ExactRow | None]]:
        body = event.body
        _, at = rows_body(event)
        count, at = _length(body, at)
        if count != len(self._columns):
            raise EventMalformed(f"rows of {count} columns, and their table has {len(self._columns)}")
        size = (count + 7) // 8
        images = 1 if event.kind in WRITE_ROWS or event.kind in DELETE_ROWS else 2
        bitmaps = [take(body, at + index * size, size) for index in range(images)]
        present = [[each for index, each in enumerate(self._columns) if _bit(bits, index)] for bits in bitmaps]
        at += images * size
        if is_compressed(event):
            body, at = uncompress(body[at:]), 0
        while at < len(body):
            first, at = _row(present[0], body, at)
            if images == 2:
                second, at = _row(present[1], body, at)
                yield first, second
            else:
                yield (None, first) if event.kind in WRITE_ROWS else (first, None)


def _row(columns: list[tuple[str, Read]], body: bytes, at: int) -> tuple[ExactRow, int]:
    size = (len(columns) + 7) // 8
    nulls = int.from_bytes(take(body, at, size), "little")
    at += size
    values: dict[str, Any] = {}
    kept: dict[str, str] = {}
    for index, (name, read) in enumerate(columns):
        if nulls >> index & 1:
            values[name] = None
            continue
        value, at = read(body, at)
        if type(value) is KeptText:
            kept[name] = value.type_name
            value = value.text
        values[name] = value
    if at > len(body):
        raise EventMalformed("a row is longer than its event")
    return ExactRow(values, kept), at


def _bit(bits: bytes, index: int) -> int:
    return bits[index >> 3] >> (index & 7) & 1


def _length(body: bytes, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3}[first]
    return int.from_bytes(take(body, at + 1, size), "little"), at + 1 + size


def _reader(column: LoggedColumn, collations: Mapping[int, str], type_name: str) -> Read:
    kind = column.kind
    if kind in (kinds.STRING, kinds.VARCHAR, kinds.VAR_STRING, kinds.BLOB, kinds.GEOMETRY):
        return _string(column, collations, type_name)
    if kind in (kinds.ENUM, kinds.SET):
        return _choice(column, collations)
    read = fixed_reader(column)
    if read is None:
        raise FatalError(
            f"the column {column.name} has the type {kind} of the binary log, which this source cannot read",
            suggestion="if it is an old time type, ALTER TABLE … FORCE; if it is COMPRESSED, take that away;"
            " or take the table out of `tables`",
        )
    return read


def _string(column: LoggedColumn, collations: Mapping[int, str], type_name: str) -> Read:
    size, width = column.length, 1
    if column.kind in (kinds.BLOB, kinds.GEOMETRY):
        width = size
    elif size > 255:
        width = 2
    charset = _charset(column, collations)
    if charset != BINARY:
        decode: Callable[[bytes], Any] = decode_of(charset, column.name)
    elif column.kind == kinds.STRING:
        decode = _fixed(size, type_name)
    else:
        decode = bytes

    def read(body: bytes, at: int) -> tuple[Any, int]:
        start = at + width
        end = start + int.from_bytes(take(body, at, width), "little")
        return decode(take(body, start, end - start)), end

    return read


def _fixed(size: int, type_name: str) -> Callable[[bytes], Any]:
    """Return the function that reads BINARY, and types that are stored as such."""
    if type_name == "uuid" and size == 16:
        # The log leaves zeros at the end out.
        return lambda data: UUID(bytes=data.ljust(16, b"\0"))
    if type_name in ("inet4", "inet6") and size in (4, 16):
        return lambda data: KeptText(_address(data.ljust(size, b"\0")), type_name)
    return lambda data: data.ljust(size, b"\0")


def _address(data: bytes) -> str:
    """Return an address as MariaDB writes it, which takes a single zero for a gap too."""
    if len(data) == 4:
        return ".".join(map(str, data))
    words = unpack("!8H", data)
    gaps = [_zeros(words, start) for start in range(8)]
    longest = max(gaps)
    start = gaps.index(longest)
    if start == 0 and (longest == 6 or (longest == 5 and words[5] == 0xFFFF)):
        return f"::{'ffff:' if longest == 5 else ''}{_address(data[12:])}"
    if not longest:
        return ":".join(f"{word:x}" for word in words)
    sides = words[:start], words[start + longest :]
    return "::".join(":".join(f"{word:x}" for word in side) for side in sides)


def _zeros(words: Sequence[int], start: int) -> int:
    return next((index for index, word in enumerate(words[start:]) if word), len(words) - start)


def _choice(column: LoggedColumn, collations: Mapping[int, str]) -> Read:
    decode = decode_of(_charset(column, collations), column.name)
    values = [decode(each) for each in column.choices]
    size = column.length

    def read(body: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(take(body, at, size), "little")
        if column.kind == kinds.SET:
            if number >> len(values):
                raise IndexError(f"{column.name} has a value that its set does not have")
            return ",".join(value for index, value in enumerate(values) if number >> index & 1), at + size
        # 0 is what MariaDB stores for a text that is none of the values.
        return values[number - 1] if number else "", at + size

    return read


def _charset(column: LoggedColumn, collations: Mapping[int, str]) -> str:
    try:
        return collations[column.collation]
    except KeyError:
        raise FatalError(
            f"the column {column.name} has the collation {column.collation}, which the server does not list",
            suggestion="report it with the definition of the table",
        ) from None
