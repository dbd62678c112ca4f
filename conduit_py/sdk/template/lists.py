"""List functions of sprig."""

from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.sdk.template.values import elements, equal


def _has(needle: Any, items: Any) -> bool:
    return items is not None and any(_same(needle, item) for item in elements(items))


def _same(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except RecordRefused:
        return False  # in a list of all sorts, values of another kind are just others


FUNCTIONS: Final = (
    ("list", lambda *values: list(values), 0, None),
    ("first", lambda items: next(iter(elements(items)), None), 1, 1),
    ("last", lambda items: next(reversed(elements(items)), None), 1, 1),
    ("has", _has, 2, 2),
)
