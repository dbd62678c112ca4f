"""Conversions between types. None of them rounds or truncates: what does not fit raises ValueError."""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from conduit_py.sdk.template import kind_of, text_of


def to_string(value: Any) -> str:
    """The text of a scalar: digits without an exponent for a float, true and false, RFC 3339 for a time."""
    if isinstance(value, (bytes, str)):
        return _text(value)
    if isinstance(value, (float, Decimal)):
        _require_finite(value)
        return text_of(value, "the value")
    if isinstance(value, (int, date, time, UUID)):
        return text_of(value, "the value")
    raise _unfit(value)


def to_int(value: Any) -> int:
    """An integer of any size, from a whole number, its digits, a boolean (1, 0) or a time (nanoseconds since 1970)."""
    if isinstance(value, (bytes, str)):
        return _int_of_text(_text(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (float, Decimal)):
        _require_finite(value)
        number = int(value)
        if number != value:
            raise ValueError(f"{value} is not a whole number")
        return number
    if isinstance(value, datetime):
        return _nanoseconds(value)
    raise _unfit(value)


def to_float(value: Any) -> float:
    """A float that is the same number as the value or is written with the same digits."""
    if isinstance(value, float):
        return value
    if isinstance(value, (bytes, str)):
        return _float_of(_decimal_of_text(_text(value)))
    if isinstance(value, (int, Decimal)):
        return _float_of(Decimal(value))
    raise _unfit(value)


def to_bool(value: Any) -> bool:
    """True and false, from Conduit's words for them or from the numbers 1 and 0."""
    if isinstance(value, (bytes, str)):
        text = _text(value)
        if text not in _TRUE and text not in _FALSE:
            raise ValueError(f"{_quote(text)} is none of {', '.join(_TRUE + _FALSE)}")
        return text in _TRUE
    if isinstance(value, (int, float, Decimal)):
        if value not in (0, 1):
            raise ValueError(f"{value} is neither 1 nor 0")
        return value == 1
    raise _unfit(value)


def to_time(value: Any) -> datetime:
    """A datetime with a time zone, from RFC 3339 text or from whole nanoseconds since 1970."""
    if isinstance(value, datetime):
        return _aware(value)
    if isinstance(value, (bytes, str)):
        text = _text(value)
        return _time_of_nanoseconds(int(text)) if _INTEGER.fullmatch(text) else _time_of_text(text)
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _time_of_nanoseconds(to_int(value))
    raise _unfit(value)


def to_decimal(value: Any) -> Decimal:
    """A Decimal with all digits of the value; a float has those it is written with, 0.1 and not 0.1000…05."""
    if isinstance(value, (bytes, str)):
        return _decimal_of_text(_text(value))
    if isinstance(value, int):
        return Decimal(int(value))
    if isinstance(value, (float, Decimal)):
        _require_finite(value)
        return value if isinstance(value, Decimal) else Decimal(repr(value))
    raise _unfit(value)


CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "string": to_string,
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    "time": to_time,
    "decimal": to_decimal,
}
"""Each takes any value but None and raises ValueError, saying why, when it cannot be converted without loss."""

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_RFC3339 = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _text(value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError("the bytes are not UTF-8 text") from None


def _int_of_text(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{_quote(text)} is not a whole number")
    return int(text)


def _decimal_of_text(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{_quote(text)} is not a number")
    return Decimal(text)


def _float_of(number: Decimal) -> float:
    result = float(number)
    if math.isinf(result):
        raise ValueError(f"{_quote(str(number))} is beyond the range of a float")
    if Decimal(result) == number or Decimal(repr(result)) == number:
        return result
    raise ValueError(f"{_quote(str(number))} has more digits than a float keeps; decimal keeps them all")


def _nanoseconds(value: datetime) -> int:
    since = _aware(value) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _time_of_nanoseconds(nanoseconds: int) -> datetime:
    microseconds, rest = divmod(nanoseconds, 1_000)
    if rest:
        raise ValueError(f"{nanoseconds} nanoseconds are not whole microseconds, and a datetime keeps no more")
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise ValueError(f"{nanoseconds} nanoseconds are outside the years 1 to 9999") from None


def _time_of_text(text: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{_quote(text)} is not an RFC 3339 time such as 2026-01-31T09:30:00Z")
    seconds, fraction, zone = match.groups(default="")
    if fraction[7:].strip("0"):
        raise ValueError(f"{text} is finer than a microsecond, and a datetime keeps no more")
    try:
        return datetime.fromisoformat(f"{seconds}{fraction[:7].ljust(7, '0') if fraction else ''}{zone}")
    except ValueError as error:
        raise ValueError(f"{text} is not a time: {error}") from None


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} has no time zone")
    return value


def _require_finite(value: float | Decimal) -> None:
    # Not converted to float: a large Decimal would be infinite.
    if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
        raise ValueError(f"{value} is not a finite number")


def _unfit(value: object) -> ValueError:
    return ValueError(f"it is {kind_of(value)}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
