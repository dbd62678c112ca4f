"""Values in Avro's binary encoding: a reader and a writer for each primitive type, and for each logical type.

A reader takes the data and a position, and returns the value and the position behind it. It raises `Malformed`,
IndexError or struct.error for data that is cut. A writer appends to the output, and raises `Misfit` for a value that
its type cannot hold exactly.
"""

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from conduit_py.sdk.template import kind_of

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[Any, bytearray], None]

VALUES_PER_BYTE_MAX: Final = 64
"""How many values a byte of data may stand for. A record of a thousand nulls has no bytes at all."""


class AvroType(NamedTuple):
    """A compiled type."""

    name: str
    read: Reader
    write: Writer
    excess: int
    """By how many the values of one may exceed `VALUES_PER_BYTE_MAX` for each of its bytes; below zero for most."""
    kinds: tuple[type, ...] = ()
    """The Python types whose values belong to this type of a union before others."""
    endless: bool = False
    """True for a type inside of itself, with no union or list in between."""


class Malformed(Exception):
    """Data that is no encoding of its schema. `path` has the names of fields, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


class Misfit(Exception):
    """A value that does not fit its schema. `path` has the names of fields, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def reason_of(error: Exception) -> str | None:
    """Return why data cannot be read, for an error of the functions that read it; None for any other error."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "is text that is not UTF-8"
    if isinstance(error, ValueError | OverflowError):
        return str(error)
    # IndexError and struct.error: the data ended too early.
    return None if isinstance(error, MemoryError) else "is cut: the data ends before the value"


def wrong_type(value: Any, expected: str) -> Misfit:
    found = "null" if value is None else kind_of(value)
    if found in ("a number", "a time"):
        found += f" ({type(value).__name__})"
    return Misfit(f"is {found} and not {expected}")


def read_null(data: bytes, position: int) -> tuple[Any, int]:
    return None, position


def write_null(value: Any, out: bytearray) -> None:
    if value is not None:
        raise wrong_type(value, "null")


def read_boolean(data: bytes, position: int) -> tuple[Any, int]:
    byte = data[position]
    if byte > 1:
        raise Malformed(f"is 0x{byte:02x}, which is no boolean")
    return byte == 1, position + 1


def write_boolean(value: Any, out: bytearray) -> None:
    if value is not True and value is not False:
        raise wrong_type(value, "a boolean")
    out.append(value)


def read_long(data: bytes, position: int) -> tuple[Any, int]:
    """Read an integer of 64 bits, seven of them in each byte, the sign in the lowest."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    raise Malformed("is an integer of more than 64 bits")


def read_int(data: bytes, position: int) -> tuple[Any, int]:
    number, position = read_long(data, position)
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise Malformed("is an integer of more than 32 bits")
    return number, position


def append_long(number: int, out: bytearray) -> None:
    """Append an integer of 64 bits."""
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def integer_writer(bits: int) -> Writer:
    """Return the writer of integers with this many bits."""
    limit = 1 << (bits - 1)

    def write_integer(value: Any, out: bytearray) -> None:
        # Not isinstance: True is an int to Python.
        if type(value) is not int:
            raise wrong_type(value, "an integer")
        if not -limit <= value < limit:
            raise Misfit(f"is an integer of more than {bits} bits")
        append_long(value, out)

    return write_integer


def float_reader(form: struct.Struct) -> Reader:
    unpack, size = form.unpack_from, form.size

    def read_float(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read_float


def write_double(value: Any, out: bytearray) -> None:
    out += DOUBLE.pack(_as_float(value))


def write_float(value: Any, out: bytearray) -> None:
    """Rounds to 24 bits of precision, which is what the type says."""
    try:
        out += FLOAT.pack(_as_float(value))
    except OverflowError:
        raise Misfit("is beyond the range of a float of 32 bits") from None


DOUBLE: Final = struct.Struct("<d")
FLOAT: Final = struct.Struct("<f")


def _as_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise wrong_type(value, "a float")
    try:
        number = float(value)
    except OverflowError:
        number = 0.0
    if number != value:
        raise Misfit("is an integer that no float is equal to")
    return number


def read_bytes(data: bytes, position: int) -> tuple[Any, int]:
    size, position = read_long(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise Malformed(f"says that it has {size} bytes, and {len(data) - position} are left")
    return data[position:end], end


def write_bytes(value: Any, out: bytearray) -> None:
    if not isinstance(value, bytes):
        raise wrong_type(value, "bytes")
    append_long(len(value), out)
    out += value


def read_string(data: bytes, position: int) -> tuple[Any, int]:
    text, position = read_bytes(data, position)
    return text.decode(), position


def write_string(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise wrong_type(value, "text")
    try:
        text = value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"is text that is not valid Unicode: {error.reason}") from None
    append_long(len(text), out)
    out += text


# Logical types: how a value becomes one of the type below, and back. Both raise ValueError or Misfit for others.
Conversion: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - local timestamps have no zone
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_DAY: Final = timedelta(days=1)


def date_of(days: int) -> date:
    try:
        return date.fromordinal(_FIRST_DAY + days)
    except (ValueError, OverflowError):
        raise ValueError("is a date outside of the years 1 to 9999") from None


def days_of(value: Any) -> int:
    # A datetime is a date to Python, and would lose its time.
    if type(value) is not date:
        raise wrong_type(value, "a date")
    return value.toordinal() - _FIRST_DAY


def time_conversions(unit: timedelta) -> tuple[Conversion, Conversion]:
    """Return the conversions to and from a time of day in this unit."""

    def time_of(number: int) -> time:
        span = number * unit
        if not timedelta(0) <= span < _DAY:
            raise ValueError("is no time of a day")
        return (_LOCAL_EPOCH + span).time()

    def number_of(value: Any) -> int:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise wrong_type(value, "a time without a zone")
        return _whole(datetime.combine(_LOCAL_EPOCH, value) - _LOCAL_EPOCH, unit, value)

    return time_of, number_of


def timestamp_conversions(unit: timedelta, *, local: bool) -> tuple[Conversion, Conversion]:
    """Return the conversions to and from a datetime in this unit, in UTC or without a zone."""
    epoch, expected = (_LOCAL_EPOCH, "a datetime without a zone") if local else (_EPOCH, "a datetime with a zone")

    def datetime_of(number: int) -> datetime:
        try:
            return epoch + number * unit
        except OverflowError:
            raise ValueError("is a time outside of the years 1 to 9999") from None

    def number_of(value: Any) -> int:
        if not isinstance(value, datetime) or (value.utcoffset() is None) is not local:
            raise wrong_type(value, expected)
        return _whole(value - epoch, unit, value)

    return datetime_of, number_of


def _whole(span: timedelta, unit: timedelta, value: Any) -> int:
    number, rest = divmod(span, unit)
    if rest:
        raise Misfit("has a finer time than its type")
    return number


def uuid_text_of(value: Any) -> str:
    if not isinstance(value, UUID):
        raise wrong_type(value, "a UUID")
    return str(value)


def uuid_bytes_of(value: Any) -> bytes:
    if not isinstance(value, UUID):
        raise wrong_type(value, "a UUID")
    return value.bytes


DIGITS_MAX: Final = 4000
"""Python limits the conversion of text to integers, for time. A precision beyond this is no number of anybody."""


def decimal_conversions(precision: int, scale: int, size: int | None) -> tuple[Conversion, Conversion]:
    """Return the conversions to and from a decimal; `size` is that of a fixed, None for bytes of any length."""
    context = Context(prec=precision, Emin=-DIGITS_MAX * 2, Emax=DIGITS_MAX * 2)
    limit = 10**precision
    size_max = size or 2 * (limit.bit_length() // 8 + 1)

    def decimal_of(data: bytes) -> Decimal:
        if not data or len(data) > size_max:
            raise ValueError(f"is a decimal of {len(data)} bytes")
        unscaled = int.from_bytes(data, "big", signed=True)
        if not -limit < unscaled < limit:
            raise ValueError(f"is a decimal of more than {precision} digits")
        return context.scaleb(Decimal(unscaled), -scale)

    def bytes_of(value: Any) -> bytes:
        # Not of any size: to make decimal digits of an integer takes more than linear time.
        if type(value) is int and -limit < value < limit:
            value = Decimal(value)
        if not isinstance(value, Decimal) or not value.is_finite():
            raise wrong_type(value, "a decimal number")
        unscaled = _unscaled(value, precision, scale)
        length = size or ((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1)
        try:
            return unscaled.to_bytes(length, "big", signed=True)
        except OverflowError:
            raise Misfit(f"does not fit into {length} bytes") from None

    return decimal_of, bytes_of


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    if not value:
        return 0
    # Before any power of ten: an exponent may have more digits than memory.
    if value.adjusted() + 1 + scale > precision:
        raise Misfit(f"has more than {precision - scale} digits before the point")
    if shift < 0:
        if -shift >= len(digits) or any(digits[shift:]):
            raise Misfit(f"has more than {scale} digits after the point")
        digits, shift = digits[:shift], 0
    number: int = int("".join(map(str, digits))) * 10**shift
    return -number if sign else number
