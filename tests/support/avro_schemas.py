"""Avro schemas with values that fit them, drawn by Hypothesis: every type, nested, with logical types and unions."""

import datetime as dt
from decimal import Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st

UTC_TIMES = st.datetimes(timezones=st.just(dt.UTC))
FLOATS_32 = st.floats(width=32, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _millis(moment: Any) -> Any:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _logical(kind: str, logical: str, values: st.SearchStrategy[Any]) -> tuple[Any, st.SearchStrategy[Any]]:
    return {"type": kind, "logicalType": logical}, values


SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", FLOATS_32),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=8)),
    ("string", TEXT),
    _logical("int", "date", st.dates()),
    _logical("int", "time-millis", st.times().map(_millis)),
    _logical("long", "time-micros", st.times()),
    _logical("long", "timestamp-millis", UTC_TIMES.map(_millis)),
    _logical("long", "timestamp-micros", UTC_TIMES),
    _logical("long", "local-timestamp-millis", st.datetimes().map(_millis)),
    _logical("long", "local-timestamp-micros", st.datetimes()),
    _logical("string", "uuid", st.uuids()),
]


@st.composite
def decimals(draw: st.DrawFn, names: Any) -> tuple[Any, st.SearchStrategy[Any]]:
    """A decimal in bytes or in a fixed that is large enough, and numbers with exactly its scale."""
    precision = draw(st.integers(1, 40))
    scale = draw(st.integers(0, precision))
    # Scaled by hand: arithmetic of decimals would round to 28 digits.
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    if draw(st.booleans()):
        return {"type": "bytes"} | logical, numbers
    return {"type": "fixed", "name": f"f{next(names)}", "size": 20} | logical, numbers


@st.composite
def named(draw: st.DrawFn, names: Any) -> tuple[Any, st.SearchStrategy[Any]]:
    if draw(st.booleans()):
        symbols = ["RED", "green", "_3"]
        return {"type": "enum", "name": f"e{next(names)}", "symbols": symbols}, st.sampled_from(symbols)
    size = draw(st.integers(1, 5))
    return {"type": "fixed", "name": f"x{next(names)}", "size": size}, st.binary(min_size=size, max_size=size)


@st.composite
def _types(draw: st.DrawFn, depth: int, names: Any) -> tuple[Any, st.SearchStrategy[Any]]:
    form = draw(st.sampled_from(["simple", "simple", "decimal", "named", "optional", "array", "map", "record"]))
    if form == "decimal":
        return draw(decimals(names))
    if form == "named":
        return draw(named(names))
    if form == "simple" or not depth:
        simple: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(SIMPLE))
        return simple
    if form == "record":
        return draw(_records(depth - 1, names))
    inner, values = draw(_types(depth - 1, names).filter(lambda drawn: drawn[0] != "null"))
    if form == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    if form == "map":
        return {"type": "map", "values": inner}, st.dictionaries(TEXT, values, max_size=3)
    return (inner, values) if isinstance(inner, list) else (["null", inner], st.none() | values)


@st.composite
def _records(draw: st.DrawFn, depth: int, names: Any) -> tuple[Any, st.SearchStrategy[Any]]:
    # One field has bytes: lists of records without any are refused.
    drawn = {"size": ("int", st.integers(0, 9))} | {
        f"f{number}": draw(_types(depth, names)) for number in range(draw(st.integers(0, 4)))
    }
    fields = [{"name": name, "type": schema} for name, (schema, _) in drawn.items()]
    schema = {"type": "record", "name": f"r{next(names)}", "namespace": "a.b", "fields": fields}
    return schema, st.fixed_dictionaries({name: values for name, (_, values) in drawn.items()})


@st.composite
def records_with_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema of a record, and a value that fits it."""
    schema, values = draw(_records(3, count()))
    return schema, draw(values)
