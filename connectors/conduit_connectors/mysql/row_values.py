"""Values of rows in the binary log as Python values, and exact.

What a Python value cannot hold stays text, as MariaDB writes it: a day of the month 0, a time of 838 hours. The caller
names the types of these (`ExactRow.kept`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from struct import Struct, error, pack, unpack
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
from conduit_connectors.mysql.table_map import LoggedColumn
from conduit_py.sdk import FatalError

Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at an offset; returns it and the offset after it."""


class KeptText(msgspec.Struct, frozen=True, gc=False):
    """MariaDB's text for a value that Python cannot hold, and its type."""

    text: str
    type_name: str


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
        except (ValueError, IndexError) as wrong:
            raise EventMalformed(f"a table of {len(columns)} columns: {wrong!r}") from None

    def rows(self, event: BinlogEvent) -> Iterator[tuple[ExactRow | None, ExactRow | None]]:
        """Yield each row before and after its change. Raises EventMalformed."""
        try:
            yield from self._rows(event)
        except (error, IndexError, ArithmeticError, ValueError) as wrong:
            raise EventMalformed(f"rows of {len(event.body)} bytes: {wrong!r}") from None

    def _rows(self, event: BinlogEvent) -> Iterator[tuple[ExactRow | None, ExactRow | None]]:
        body = event.body
        _, at = rows_body(event)
        count, at = _length(body, at)
        if count != len(self._columns):
            raise EventMalformed(f"rows of {count} columns, and their table has {len(self._columns)}")
        size = (count + 7) // 8
        images = 1 if event.kind in WRITE_ROWS or event.kind in DELETE_ROWS else 2
        bitmaps = [_take(body, at + index * size, size) for index in range(images)]
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
    nulls = _take(body, at, size)
    at += size
    values: dict[str, Any] = {}
    kept: dict[str, str] = {}
    for index, (name, read) in enumerate(columns):
        if _bit(nulls, index):
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


def _take(body: bytes, at: int, size: int) -> bytes:
    taken = body[at : at + size]
    if len(taken) != size:
        raise IndexError(f"{len(taken)} bytes in place of {size}")
    return taken


def _length(body: bytes, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3}[first]
    return int.from_bytes(_take(body, at + 1, size), "little"), at + 1 + size


def _reader(column: LoggedColumn, collations: Mapping[int, str], type_name: str) -> Read:
    kind = column.kind
    if kind in _INTEGERS:
        return _integer(_INTEGERS[kind], signed=not column.unsigned)
    if kind in (kinds.STRING, kinds.VARCHAR, kinds.VAR_STRING, kinds.BLOB, kinds.GEOMETRY):
        return _string(column, collations, type_name)
    if kind in (kinds.ENUM, kinds.SET):
        return _choice(column, collations)
    make = _READERS.get(kind)
    if make is None:
        raise FatalError(
            f"the column {column.name} has the type {kind} of the binary log, which this source cannot read",
            suggestion="if it is an old time type, ALTER TABLE … FORCE; if it is COMPRESSED, take that away;"
            " or take the table out of `tables`",
        )
    return make(column)


_INTEGERS = {kinds.TINY: 1, kinds.SHORT: 2, kinds.INT24: 3, kinds.LONG: 4, kinds.LONGLONG: 8}


def _integer(size: int, *, signed: bool) -> Read:
    def read(body: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(_take(body, at, size), "little", signed=signed), at + size

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
        end = start + int.from_bytes(_take(body, at, width), "little")
        return decode(_take(body, start, end - start)), end

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
        number = int.from_bytes(_take(body, at, size), "little")
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


def shortest_float(value: float) -> float:
    """Return the float with the shortest text among those that are this number with 32 bits."""
    for digits in range(6, 9):
        text = float(f"{value:.{digits}g}")
        if pack("<f", text) == pack("<f", value):
            return text
    return float(f"{value:.9g}")


def _read_float(column: LoggedColumn) -> Read:
    return lambda body, at: (shortest_float(unpack("<f", _take(body, at, 4))[0]), at + 4)


def _read_double(column: LoggedColumn) -> Read:
    double = Struct("<d")
    return lambda body, at: (double.unpack_from(body, at)[0], at + 8)


def _read_year(column: LoggedColumn) -> Read:
    return lambda body, at: (body[at] + 1900 if body[at] else 0, at + 1)


def _read_bits(column: LoggedColumn) -> Read:
    size = (column.length + 7) // 8
    return lambda body, at: (int.from_bytes(_take(body, at, size), "big"), at + size)


def _read_decimal(column: LoggedColumn) -> Read:
    whole, scale = column.length - column.scale, column.scale
    # Nine digits have four bytes; what is left over at either end has fewer.
    sizes = [_DIGIT_BYTES[whole % 9], *[4] * (whole // 9), *[4] * (scale // 9), _DIGIT_BYTES[scale % 9]]
    digits = [whole % 9, *[9] * (whole // 9 + scale // 9), scale % 9]
    parts = [(size, count) for size, count in zip(sizes, digits, strict=True) if count]
    total = sum(size for size, _ in parts)

    def read(body: bytes, at: int) -> tuple[Decimal, int]:
        data = bytearray(_take(body, at, total))
        negative = not data[0] & 0x80
        data[0] ^= 0x80
        if negative:
            data = bytearray(each ^ 0xFF for each in data)
        number, place = 0, 0
        for size, count in parts:
            number = number * 10**count + int.from_bytes(data[place : place + size], "big")
            place += size
        # By its digits: arithmetic of decimals would round to the precision of the context.
        shown = tuple(map(int, str(number)))
        return Decimal((int(negative and number != 0), shown, -scale)), at + total

    return read


_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def _read_date(column: LoggedColumn) -> Read:
    def read(body: bytes, at: int) -> tuple[Any, int]:
        number = int.from_bytes(_take(body, at, 3), "little")
        year, month, day = number >> 9, number >> 5 & 15, number & 31
        try:
            return date(year, month, day), at + 3
        except ValueError:
            return KeptText(f"{year:04}-{month:02}-{day:02}", "date"), at + 3

    return read


def _read_datetime(column: LoggedColumn) -> Read:
    digits, extra = column.length, (column.length + 1) // 2

    def read(body: bytes, at: int) -> tuple[Any, int]:
        number = int.from_bytes(_take(body, at, 5), "big") - (1 << 39)
        month, day = number >> 22, number >> 17 & 31
        hour, minute, second = number >> 12 & 31, number >> 6 & 63, number & 63
        micro = _fraction(body, at + 5, extra)
        year, month = divmod(month, 13)
        try:
            # Without a zone: MariaDB has none for it.
            return datetime(year, month, day, hour, minute, second, micro), at + 5 + extra  # noqa: DTZ001
        except ValueError:
            text = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{_shown(micro, digits)}"
            return KeptText(text, "datetime"), at + 5 + extra

    return read


def _read_timestamp(column: LoggedColumn) -> Read:
    digits, extra = column.length, (column.length + 1) // 2

    def read(body: bytes, at: int) -> tuple[Any, int]:
        seconds = int.from_bytes(_take(body, at, 4), "big")
        micro = _fraction(body, at + 4, extra)
        if not seconds and not micro:
            # Not 1970: MariaDB stores no timestamp in that second.
            return KeptText(f"0000-00-00 00:00:00{_shown(0, digits)}", "timestamp"), at + 4 + extra
        return _EPOCH + timedelta(seconds=seconds, microseconds=micro), at + 4 + extra

    return read


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _read_time(column: LoggedColumn) -> Read:
    digits, extra = column.length, (column.length + 1) // 2
    size = 3 + extra

    def read(body: bytes, at: int) -> tuple[Any, int]:
        # One number with a sign, of which the fraction is the lower part.
        number = int.from_bytes(_take(body, at, size), "big") - (1 << size * 8 - 1)
        fraction = abs(number) & (1 << extra * 8) - 1
        rest = abs(number) >> extra * 8
        micro = fraction * _MICROSECONDS[extra]
        hour, minute, second = rest >> 12 & 1023, rest >> 6 & 63, rest & 63
        if number >= 0 and hour < 24:
            return time(hour, minute, second, micro), at + size
        text = f"{'-' if number < 0 else ''}{hour:02}:{minute:02}:{second:02}{_shown(micro, digits)}"
        return KeptText(text, "time"), at + size

    return read


def _fraction(body: bytes, at: int, size: int) -> int:
    """Return microseconds; a byte is two digits."""
    return int.from_bytes(_take(body, at, size), "big") * _MICROSECONDS[size]


_MICROSECONDS = (1_000_000, 10_000, 100, 1)
"""How many a unit of a fraction of so many bytes has."""


def _shown(micro: int, digits: int) -> str:
    return f".{micro:06}"[: digits + 1] if digits else ""


_READERS: Mapping[int, Callable[[LoggedColumn], Read]] = {
    kinds.FLOAT: _read_float,
    kinds.DOUBLE: _read_double,
    kinds.YEAR: _read_year,
    kinds.BIT: _read_bits,
    kinds.NEWDECIMAL: _read_decimal,
    kinds.DATE: _read_date,
    kinds.DATETIME2: _read_datetime,
    kinds.TIMESTAMP2: _read_timestamp,
    kinds.TIME2: _read_time,
}
