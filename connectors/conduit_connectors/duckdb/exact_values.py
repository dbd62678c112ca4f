"""Which values of DuckDB Python holds exactly. Of the others its client makes other values, without a word.

Months become 30 days each, infinite dates the last date of Python, and years before 1 or after 9999 become text.
"""

from collections.abc import Iterator
from typing import Any

from conduit_py.sdk import FatalError

_TIMES = {"timestamp", "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp with time zone"}
_CUT = {"timestamp_ns", "time_ns"}
"""Types that have more digits than the times of Python."""


def check_type(name: str, kind: Any) -> None:
    """Raise FatalError if Python would change values of a column for its type."""
    for each in _types_within(kind):
        if each.id in _CUT:
            why, hint = "of which Python would cut digits", f"{name}::TIMESTAMP, or {name}::VARCHAR"
        elif each.id == "union":
            why, hint = "and Python does not get which member a value is", f"{name}::VARCHAR"
        elif each.id == "map" and _parts(_parts(each)["key"]):
            why, hint = "whose keys no mapping of Python can have", f"map_entries({name}), or {name}::VARCHAR"
        else:
            continue
        raise FatalError(
            f"the column {name!r} is of the type {kind}, {why}", suggestion=f"use `query` and cast it: {hint}"
        )


def _types_within(kind: Any) -> Iterator[Any]:
    yield kind
    for each in _parts(kind).values():
        yield from _types_within(each)


def _parts(kind: Any) -> dict[str, Any]:
    """Return the types of which a type is made: none of one that is not nested."""
    if kind.id not in ("list", "array", "struct", "map", "union"):
        return {}
    # An array has its size there as well.
    return {name: each for name, each in kind.children if not isinstance(each, int)}


def inexact_condition(value: str, kind: Any, depth: int = 0) -> str | None:
    """Return SQL that is true if Python does not hold `value`, an expression of a type; None if it holds all."""
    match kind.id:
        case "date":
            return f"NOT ({value} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31')"
        case id if id in _TIMES:
            # The zone of the session is UTC.
            return f"NOT ({value} >= '0001-01-01'::TIMESTAMP AND {value} < '10000-01-01'::TIMESTAMP)"
        case "time" | "time with time zone":
            return f"{value}::VARCHAR LIKE '24:%'"
        case "interval":
            # Up to here Python has days. A day is one of 24 hours to both.
            days = f"datepart('day', {value}) NOT BETWEEN -800000000 AND 800000000"
            return f"(datepart('year', {value}) <> 0 OR datepart('month', {value}) <> 0 OR {days})"
        case "list" | "array":
            return _any_of(value, _parts(kind)["child"], depth)
        case "map":
            keys, values = _parts(kind)["key"], _parts(kind)["value"]
            return _either(_any_of(f"map_keys({value})", keys, depth), _any_of(f"map_values({value})", values, depth))
        case "struct":
            fields = ((f"struct_extract({value}, {_quote_text(name)})", each) for name, each in _parts(kind).items())
            return _either(*(inexact_condition(field, each, depth) for field, each in fields))
    return None


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _any_of(values: str, kind: Any, depth: int) -> str | None:
    each = f"each{depth}"
    condition = inexact_condition(each, kind, depth + 1)
    return condition and f"len([{each} FOR {each} IN {values} IF {condition}]) > 0"


def _either(*conditions: str | None) -> str | None:
    return " OR ".join(f"({each})" for each in conditions if each) or None
