"""quick_check: says fast that a value fits a schema of types. Whatever it does not say yes to is checked closely."""

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from conduit_py.sdk import JSON_DEPTH_MAX

QuickCheck: TypeAlias = Callable[[Any], bool]

_KEYWORDS: Final = {"type", "properties", "required", "additionalProperties", "items", "minimum", "maximum", "$defs"}
_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (float, int),
    "decimal": (Decimal, int),
    "string": (str,),
    "bytes": (bytes,),
    "date": (date,),
    "time": (time,),
    "interval": (timedelta,),
    "uuid": (UUID,),
    "array": (list, tuple),
    "object": (dict,),
    "timestamp": (datetime,),
    "timestamptz": (datetime,),
}


def quick_check(shape: Any, depth: int = 0) -> QuickCheck:
    """Return a check that is true only for values that fit the schema, and true for nearly all of those."""
    if not isinstance(shape, dict) or set(shape) - _KEYWORDS or "type" not in shape or depth > JSON_DEPTH_MAX:
        return _never
    kinds = shape["type"]
    classes = frozenset(each for kind in kinds for each in _CLASSES.get(kind, ()))
    zones = {kind == "timestamptz" for kind in kinds if kind in ("timestamp", "timestamptz")}
    fields = _fields_check(shape, depth) if "object" in kinds else None
    items = quick_check(shape["items"], depth + 1) if "items" in shape and "array" in kinds else None

    low, high = shape.get("minimum", -math.inf), shape.get("maximum", math.inf)

    def check(value: Any) -> bool:
        kind = type(value)
        if kind not in classes:
            return False
        if kind is int or kind is float:
            # Not a number is between nothing, and goes to the close check.
            return bool(low <= value <= high)
        if kind is dict:
            return fields is None or fields(value)
        if items is not None and (kind is list or kind is tuple):
            return all(map(items, value))
        return kind is not datetime or (value.utcoffset() is not None) in zones

    return check


def _fields_check(shape: Any, depth: int) -> QuickCheck | None:
    more = shape.get("additionalProperties")
    fields = {name: quick_check(inner, depth + 1) for name, inner in shape.get("properties", {}).items()}
    required = shape.get("required", ())
    if not fields and not required and more is None:
        return None
    others = _always if more is None else quick_check(more, depth + 1) if isinstance(more, dict) else _never

    def check(value: Any) -> bool:
        for name, item in value.items():
            if not fields.get(name, others)(item):
                return False
        return all(name in value for name in required)

    return check


def _never(value: Any) -> bool:
    return False


def _always(value: Any) -> bool:
    return True
