"""Number functions of sprig. Unlike sprig they refuse what is no number, instead of taking it for 0."""

import math
from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.sdk.template.values import kind_of, number, text_of, whole


def _to_int(value: Any) -> int:
    """A whole number from a number, whose fraction is cut off, from true or false, or from digits."""
    try:
        return int(text_of(value).strip()) if isinstance(value, str | bytes) else int(value)
    except (TypeError, ValueError, OverflowError):
        raise _no_number(value) from None


def _to_float(value: Any) -> float:
    try:
        result = float(text_of(value)) if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise _no_number(value) from None
    if not math.isfinite(result):
        raise _no_number(value)
    return result


def _no_number(value: Any) -> RecordRefused:
    shown = repr(value[:40]) if isinstance(value, str) else kind_of(value)
    return RecordRefused(f"{shown} is no number")


def _divmod_to_zero(dividend: Any, divisor: Any) -> tuple[int, int]:
    """Quotient and remainder as Go has them: cut off towards zero."""
    upper, lower = whole(dividend), whole(divisor)
    if lower == 0:
        raise RecordRefused("a division by zero")
    quotient = abs(upper) // abs(lower) * (1 if (upper < 0) == (lower < 0) else -1)
    return quotient, upper - quotient * lower


def _product(*values: Any) -> int:
    result = math.prod(map(whole, values))
    if result.bit_length() > _BITS_MAX:
        raise RecordRefused("a product is too large")
    return result


_BITS_MAX: Final = 4096


def _round(value: Any, up: bool) -> int:
    return math.ceil(number(value)) if up else math.floor(number(value))


FUNCTIONS: Final = (
    ("int", _to_int, 1, 1),
    ("int64", _to_int, 1, 1),
    ("atoi", _to_int, 1, 1),
    ("float64", _to_float, 1, 1),
    ("add", lambda *values: sum(map(whole, values)), 1, None),
    ("sub", lambda left, right: whole(left) - whole(right), 2, 2),
    ("mul", _product, 1, None),
    ("div", lambda left, right: _divmod_to_zero(left, right)[0], 2, 2),
    ("mod", lambda left, right: _divmod_to_zero(left, right)[1], 2, 2),
    ("max", lambda *values: max(map(whole, values)), 1, None),
    ("min", lambda *values: min(map(whole, values)), 1, None),
    ("floor", lambda value: _round(value, up=False), 1, 1),
    ("ceil", lambda value: _round(value, up=True), 1, 1),
)
