"""Functions: what templates can call: Go's own and the part of sprig that is of use with records.

Arguments come in the order of Go and sprig, so that what a pipe hands over is the last one. What a
function cannot work with refuses the record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conduit_py.errors import RecordRefused
from conduit_py.sdk.template import lists, numbers, strings
from conduit_py.sdk.template.printing import printf
from conduit_py.sdk.template.values import elements, equal, fields, length, less, text_of, truth, whole


@dataclass(frozen=True)
class Function:
    """A function and how many arguments it takes; `most` None is any number."""

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
    """`and` and `or` give one of their arguments. Evaluated here, because constants have no need to be lazy."""

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


AND, OR = "and", "or"
"""The two that evaluate only as many of their arguments as they need."""
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
    ("print", lambda *values: "".join(map(text_of, values)), 0, None),
    ("printf", printf, 1, None),
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
    *numbers.FUNCTIONS,
    *lists.FUNCTIONS,
)
