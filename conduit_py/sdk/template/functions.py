"""The functions of templates: those of Go, and those of sprig that are useful with records.

Arguments are in the order of Go and sprig; the value of a pipe is the last one. An argument of the wrong kind refuses
the record. Unlike those of sprig, number functions refuse what is not a number instead of reading it as 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.sdk.template import strings
from conduit_py.sdk.template.values import (
    elements,
    equal,
    fields,
    kind_of,
    length,
    less,
    number,
    text_of,
    truth,
    whole,
)


@dataclass(frozen=True)
class Function:
    """A function and the number of its arguments; without `most` there is no upper limit."""

    name: str
    call: Callable[..., Any]
    least: int
    most: int | None

    @property
    def takes(self) -> str:
        if self.most is None:
            return f"at least {_argument_count(self.least)}"
        if self.most == self.least:
            return _argument_count(self.least)
        return f"{self.least} to {_argument_count(self.most)}"


def _argument_count(count: int) -> str:
    return f"{count} argument" + ("s" if count != 1 else "")


def _equals(value: Any, *others: Any) -> bool:
    return any(equal(value, other) for other in others)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, dict):
            # A missing key is absent, as in Go, so that `default` can follow.
            value = value.get(text_of(key))
        elif value is not None:
            at, items = whole(key), elements(value)
            if not 0 <= at < len(items):
                raise RecordRefused(f"there is no element {at}: the list has {len(items)}")
            value = items[at]
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    items = value if isinstance(value, str | bytes) else elements(value)
    start, end = ([whole(bound) for bound in bounds] + [0, len(items)][len(bounds) :])[:2]
    if not 0 <= start <= end <= len(items):
        raise RecordRefused(f"there is no slice from {start} to {end}: the length is {len(items)}")
    return items[start:end]


def _last_by_truth(stop_at: bool) -> Callable[..., Any]:
    """`and` and `or` of constants, which need not be lazy; each returns one of its arguments."""

    def choose(*values: Any) -> Any:
        return next((value for value in values if truth(value) is stop_at), values[-1])

    return choose


def _default(fallback: Any, value: Any = None) -> Any:
    return value if truth(value) else fallback


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if truth(value)), None)


def _ternary(yes: Any, no: Any, condition: Any) -> Any:
    if not isinstance(condition, bool):
        raise RecordRefused("ternary needs true or false as its last argument")
    return yes if condition else no


def _dig(*arguments: Any) -> Any:
    *names, fallback, value = arguments
    for name in map(text_of, names):
        value = fields(value)
        if name not in value:
            return fallback
        value = value[name]
    return value


def _functions(*entries: tuple[str, Callable[..., Any], int, int | None]) -> dict[str, Function]:
    return {name: Function(name, call, least, most) for name, call, least, most in entries}


def _to_int(value: Any) -> int:
    """Return a whole number from a number, without its fraction, from a boolean, or from digits."""
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
    return RecordRefused(f"{shown} is not a number")


def _divmod_to_zero(dividend: Any, divisor: Any) -> tuple[int, int]:
    """Return quotient and remainder."""
    # As in Go, towards zero: Python's // rounds down, so -7 / 2 would be -4 instead of -3.
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


# A template with a few nested products of large numbers could take all memory.
_BITS_MAX: Final = 4096


def _round(value: Any, up: bool) -> int:
    return math.ceil(number(value)) if up else math.floor(number(value))


def _has(needle: Any, items: Any) -> bool:
    return items is not None and any(_same(needle, item) for item in elements(items))


def _same(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except RecordRefused:
        return False  # in a list of mixed types, a value of another type is only not equal


_NUMBERS: Final = (
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
_LISTS: Final = (
    ("list", lambda *values: list(values), 0, None),
    ("first", lambda items: next(iter(elements(items)), None), 1, 1),
    ("last", lambda items: next(reversed(elements(items)), None), 1, 1),
    ("has", _has, 2, 2),
)

AND, OR = "and", "or"
"""These two evaluate only as many of their arguments as they need."""
INDEX = "index"

FUNCTIONS = _functions(
    (AND, _last_by_truth(False), 1, None),
    (OR, _last_by_truth(True), 1, None),
    ("not", lambda value: not truth(value), 1, 1),
    ("eq", _equals, 2, None),
    ("ne", lambda left, right: not equal(left, right), 2, 2),
    ("lt", less, 2, 2),
    ("le", lambda left, right: less(left, right) or equal(left, right), 2, 2),
    ("gt", lambda left, right: less(right, left), 2, 2),
    ("ge", lambda left, right: less(right, left) or equal(left, right), 2, 2),
    ("len", length, 1, 1),
    (INDEX, _index, 1, None),
    ("slice", _slice, 1, 3),
    ("default", _default, 1, 2),
    ("empty", lambda value: not truth(value), 1, 1),
    ("coalesce", _coalesce, 1, None),
    ("ternary", _ternary, 3, 3),
    ("all", lambda *values: all(map(truth, values)), 0, None),
    ("any", lambda *values: any(map(truth, values)), 0, None),
    ("hasKey", lambda value, name: text_of(name) in fields(value), 2, 2),
    ("get", lambda value, name: fields(value).get(text_of(name), ""), 2, 2),
    ("dig", _dig, 3, None),
    *strings.FUNCTIONS,
    *_NUMBERS,
    *_LISTS,
)
