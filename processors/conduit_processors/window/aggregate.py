"""Aggregate: what a window computes of its records, such as count or sum(amount), in a form that can be merged."""

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from typing import Any, Final, NamedTuple, Self

from conduit_processors.exact_value import from_state, to_state
from conduit_py.sdk import Record, RecordRefused
from conduit_py.sdk.template import FieldPath, TextOption, kind_of, option_error, split_outside_quotes

_DIGITS_MAX: Final = 100
"""The most digits before and behind the point of a decimal that is added up."""
_EXACT: Final = Context(prec=3 * _DIGITS_MAX, traps=[Inexact])
"""Decimals are added exactly: rounded, a sum would depend on the order of its records."""
_QUOTIENT: Final = Context(prec=28)
_FORM: Final = re.compile(r"\s*(\w+)\s*(?:\(\s*(.*?)\s*\))?\s*")


class Aggregate(TextOption):
    """One function over the records of a window.

    An accumulator holds plain values, for a state. `add` returns a new one with the value of a record; `merge` one
    for the records of two sessions, the earlier first; `result` what the window gives.
    """

    __slots__ = ("_function", "field", "name")

    def __init__(self, name: str, field: FieldPath | None) -> None:
        self.name = name
        self.field = field
        self._function = _FUNCTIONS[name]

    @classmethod
    def of(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        found = _FORM.fullmatch(value) if isinstance(value, str) else None
        names = ", ".join("count" if name == "count" else f"{name}(field)" for name in _FUNCTIONS)
        if found is None or found[1] not in _FUNCTIONS or (found[1] == "count") != (not found[2]):
            raise option_error(f"must be one of {names}")
        return cls(found[1], FieldPath.of(found[2]) if found[2] else None)

    def __str__(self) -> str:
        return self.name if self.field is None else f"{self.name}({self.field})"

    def value(self, record: Record) -> Any:
        """Return what a record contributes. Refuses a record that has nothing to contribute."""
        if self.field is None:
            return None
        value = self.field.get(record)
        if not self._function.numeric:
            return to_state(value)
        if not _is_number(value):
            raise RecordRefused(f"{self} needs a number, and {self.field} is {kind_of(value)}")
        if isinstance(value, Decimal):
            if value and max(abs(value.adjusted()), -int(value.as_tuple().exponent)) > _DIGITS_MAX:
                raise RecordRefused(
                    f"{self} takes decimals of at most {_DIGITS_MAX} digits before and behind the point"
                )
            return f"{value:f}"
        return value

    def add(self, accumulator: Any, value: Any, when: int) -> Any:
        new = self._function.first(value, when)
        return new if accumulator is None else self._function.merge(accumulator, new)

    def merge(self, earlier: Any, later: Any) -> Any:
        return self._function.merge(earlier, later)

    def result(self, accumulator: Any) -> Any:
        return self._function.result(accumulator)


class _Function(NamedTuple):
    first: Callable[[Any, int], Any]
    """Returns the accumulator of one record."""
    merge: Callable[[Any, Any], Any]
    """Returns the accumulator of both. The second may be of one record that came later."""
    result: Callable[[Any], Any]
    numeric: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value)


def _number(part: Any) -> Any:
    """Return a number of an accumulator. A decimal is text there, which a state can hold."""
    return Decimal(part) if isinstance(part, str) else part


def _add(one: Any, other: Any) -> Any:
    if not isinstance(one, str) and not isinstance(other, str):
        return one + other
    first, second = _number(one), _number(other)
    # As in SQL: with a float it is a float, which is not exact anyway.
    if isinstance(first, float) or isinstance(second, float):
        return float(first) + float(second)
    try:
        return f"{_EXACT.add(Decimal(first), Decimal(second)):f}"
    except Inexact:
        raise RecordRefused("the sum has too many digits to be exact") from None


def _divide(total: Any, count: int) -> Any:
    number = _number(total)
    return _QUOTIENT.divide(number, Decimal(count)) if isinstance(number, Decimal) else number / count


def _least(one: Any, other: Any) -> Any:
    return other if _number(other) < _number(one) else one


def _greatest(one: Any, other: Any) -> Any:
    return other if _number(other) > _number(one) else one


def _alone(value: Any, when: int) -> Any:
    return value


def _same(accumulator: Any) -> Any:
    return accumulator


def _timed(value: Any, when: int) -> list[Any]:
    return [when, value]


def _sorted_by_time(first: list[list[Any]], second: list[list[Any]]) -> list[list[Any]]:
    # Stable: of two records of one time, the one that came first is first.
    return sorted(first + second, key=lambda each: each[0])


_FUNCTIONS: Final[dict[str, _Function]] = {
    "count": _Function(lambda value, when: 1, lambda one, other: one + other, _same),
    "sum": _Function(_alone, _add, _number, numeric=True),
    "min": _Function(_alone, _least, _number, numeric=True),
    "max": _Function(_alone, _greatest, _number, numeric=True),
    "mean": _Function(
        lambda value, when: [value, 1],
        lambda one, other: [_add(one[0], other[0]), one[1] + other[1]],
        lambda accumulator: _divide(accumulator[0], accumulator[1]),
        numeric=True,
    ),
    "first": _Function(
        _timed, lambda one, other: other if other[0] < one[0] else one, lambda each: from_state(each[1])
    ),
    "last": _Function(_timed, lambda one, other: one if other[0] < one[0] else other, lambda each: from_state(each[1])),
    "collect": _Function(
        lambda value, when: [[when, value]], _sorted_by_time, lambda each: [from_state(value) for _, value in each]
    ),
}


def aggregates_of(value: object) -> object:
    """Return pairs in one text, such as clicks:count,total:sum(amount), as a dict; anything else as it is."""
    if not isinstance(value, str):
        return value
    pairs = [split_outside_quotes(pair, ":") for pair in split_outside_quotes(value, ",")]
    if any(len(pair) != 2 for pair in pairs):
        raise option_error("must be pairs such as clicks:count,total:sum(amount)")
    return dict(pairs)
