"""Values of a fixed size in rows of the binary log: numbers, dates and times, as Python values, and exact.

What a Python value cannot hold stays text, as MariaDB writes it: a day of the month 0, a time of 838 hours.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from struct import Struct, pack, unpack
from typing import Any

import msgspec

from conduit_connectors.mysql import table_map as kinds
from conduit_connectors.mysql.table_map import LoggedColumn

Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at an offset; returns it and the offset after it."""


class KeptText(msgspec.Struct, frozen=True, gc=False):
    """MariaDB's text for a value that Python cannot hold, and its type."""

    text: str
    type_name: str


def fixed_reader(column: LoggedColumn) -> Read | None:
    """Return the function that reads a column; None if its values are of any size, or of a type that is not known."""
    if column.kind in _INTEGERS:
        return _integer(_INTEGERS[column.kind], signed=not column.unsigned)
    make = _READERS.get(column.kind)
    return None if make is None else make(column)


def take(body: bytes, at: int, size: int) -> bytes:
    """Return this many bytes. Raises IndexError at the end."""
    taken = body[at : at + size]
    if len(taken) != size:
        raise IndexError(f"{len(taken)} bytes in place of {size}")
    return taken


_INTEGERS = {kinds.TINY: 1, kinds.SHORT: 2, kinds.INT24: 3, kinds.LONG: 4, kinds.LONGLONG: 8}


def _integer(size: int, *, signed: bool) -> Read:
    def read(body: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(take(body, at, size), "little", signed=signed), at + size

    return read


def shortest_float(value: float) -> float:
    """Return the float with the shortest text among those that are this number with 32 bits."""
    for digits in range(6, 9):
        text = float(f"{value:.{digits}g}")
        if pack("<f", text) == pack("<f", value):
            return text
    return float(f"{value:.9g}")


def _read_float(column: LoggedColumn) -> Read:
    return lambda body, at: (shortest_float(unpack("<f", take(body, at, 4))[0]), at + 4)


def _read_double(column: LoggedColumn) -> Read:
    double = Struct("<d")
    return lambda body, at: (double.unpack_from(body, at)[0], at + 8)


def _read_year(column: LoggedColumn) -> Read:
    return lambda body, at: (body[at] + 1900 if body[at] else 0, at + 1)


def _read_bits(column: LoggedColumn) -> Read:
    size = (column.length + 7) // 8
    return lambda body, at: (int.from_bytes(take(body, at, size), "big"), at + size)


def _read_decimal(column: LoggedColumn) -> Read:
    whole, scale = column.length - column.scale, column.scale
    # Nine digits have four bytes; what is left over at either end has fewer.
    sizes = [_DIGIT_BYTES[whole % 9], *[4] * (whole // 9), *[4] * (scale // 9), _DIGIT_BYTES[scale % 9]]
    digits = [whole % 9, *[9] * (whole // 9 + scale // 9), scale % 9]
    parts = [(size, count) for size, count in zip(sizes, digits, strict=True) if count]
    total = sum(size for size, _ in parts)

    def read(body: bytes, at: int) -> tuple[Decimal, int]:
        data = bytearray(take(body, at, total))
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
        number = int.from_bytes(take(body, at, 3), "little")
        year, month, day = number >> 9, number >> 5 & 15, number & 31
        try:
            return date(year, month, day), at + 3
        except ValueError:
            return KeptText(f"{year:04}-{month:02}-{day:02}", "date"), at + 3

    return read


def _read_datetime(column: LoggedColumn) -> Read:
    digits, extra = column.length, (column.length + 1) // 2

    def read(body: bytes, at: int) -> tuple[Any, int]:
        number = int.from_bytes(take(body, at, 5), "big") - (1 << 39)
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
        seconds = int.from_bytes(take(body, at, 4), "big")
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
        number = int.from_bytes(take(body, at, size), "big") - (1 << size * 8 - 1)
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
    return int.from_bytes(take(body, at, size), "big") * _MICROSECONDS[size]


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
