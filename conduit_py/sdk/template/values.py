"""Values in templates: truth, equality, order and text of a value, much as in Go."""

import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from conduit_py.errors import RecordRefused
from conduit_py.record import Record, Structured, encode_json

Number: TypeAlias = int | float | Decimal


def truth(value: Any) -> bool:
    """False, 0, "", empty and absent values are false; everything else is true."""
    return isinstance(value, Record) or bool(value)


def text_of(value: Any, name: str = "the value") -> str:
    """Return text unchanged, raw bytes as UTF-8, numbers without exponent, structured data as JSON.

    Raises RecordRefused for a value without a text, such as an absent one; the message calls it `name`.
    """
    if isinstance(value, str):
        # Not `value` itself, which may be a StrEnum: the text may become a value of a record.
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        raise RecordRefused("a template refers to a field that the record does not have")
    if isinstance(value, bytes):
        return _utf8(value, name)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal | date | time | UUID | timedelta):
        return str(value)
    if isinstance(value, float):
        # The shortest digits that read back as the same number, without an exponent: 1e21 is 22 digits, 2.0 is 2.
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    return _json(value, name)


def equal(left: Any, right: Any) -> bool:
    """Return True if two values are equal. Refuses to compare text with a number, which is a mistake in a template."""
    if left is None or right is None:
        return left is right
    left, right = _comparable(left, right)
    if isinstance(left, str | bytes | bool | int | float | Decimal) or type(left) is type(right):
        return bool(left == right)
    raise _incomparable(left, right)


def less(left: Any, right: Any) -> bool:
    """Return True if one number, text or time is less than the other."""
    left, right = _comparable(left, right)
    # bool is an int to Python, so true < 2 would be compared silently.
    if isinstance(left, bool) or not isinstance(left, _ORDERED):
        raise RecordRefused(f"{_operand(left)} cannot be compared by size")
    try:
        return bool(left < right)
    except (TypeError, ArithmeticError) as error:
        raise RecordRefused(f"cannot compare: {error}") from None


def length(value: Any) -> int:
    """Return the number of elements or fields; for text the number of bytes, as in Go."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes | dict | list | tuple):
        return len(value)
    raise RecordRefused(f"{_operand(value)} has no length")


def field_of(value: Any, name: str) -> Any:
    """Return a field of the value of an expression; None if the field or the value is absent."""
    if value is None:
        return None
    if isinstance(value, dict):
        return value.get(name)
    raise RecordRefused(f"cannot read the field {name!r} of {_operand(value)}")


def whole(value: Any) -> int:
    """Return the value as an integer. Refuses what is not a whole number."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal) and _finite(value) and int(value) == value:
        return int(value)
    raise RecordRefused(f"a whole number is needed, not {_operand(value)}")


def number(value: Any) -> Number:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and _finite(value):
        return value
    raise RecordRefused(f"a number is needed, not {_operand(value)}")


def elements(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise RecordRefused(f"a list is needed, not {_operand(value)}")


def fields(value: Any) -> Structured:
    if isinstance(value, dict):
        return value
    raise RecordRefused(f"structured data is needed, not {_operand(value)}")


def kind_of(value: Any) -> str:
    """Return what a value is, as an error message names it after "it is"."""
    for kind, words in _KINDS:
        if isinstance(value, kind):
            return words
    return f"a value of type {type(value).__name__}"


_ORDERED: Final = (str, int, float, Decimal, date, time, timedelta)
_KINDS: Final[list[tuple[Any, str]]] = [
    (type(None), "absent"),
    (bool, "a boolean"),
    ((int, float, Decimal), "a number"),
    (str, "text"),
    (bytes, "raw bytes"),
    (dict, "structured data"),
    ((list, tuple), "a list"),
    ((datetime, date, time), "a time"),
]


def _finite(value: Number) -> bool:
    # Not converted to float: a large integer or Decimal would be infinite, or an error.
    return value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)


def _operand(value: Any) -> str:
    return "an absent value" if value is None else kind_of(value)


def _comparable(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both values with the same type. Raw bytes are compared with text as text."""
    if type(left) is type(right):
        return left, right
    if isinstance(left, bytes | str) and isinstance(right, bytes | str):
        return (
            left.decode(errors="replace") if isinstance(left, bytes) else left,
            right.decode(errors="replace") if isinstance(right, bytes) else right,
        )
    numbers = [isinstance(each, int | float | Decimal) and not isinstance(each, bool) for each in (left, right)]
    if all(numbers):
        return left, right
    raise _incomparable(left, right)


def _incomparable(left: Any, right: Any) -> RecordRefused:
    return RecordRefused(f"cannot compare {_operand(left)} with {_operand(right)}")


def _utf8(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordRefused(f"{name} is not UTF-8 text: {error}") from None


def _json(value: object, name: str) -> str:
    try:
        return encode_json(value).decode()
    except RecordRefused as refused:
        raise RecordRefused(f"{name} {refused.message}") from refused
