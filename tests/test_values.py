"""Rows and values made of Arrow are those that Arrow gives, of the same types, whatever the columns are."""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.arrow_values import Maps
from conduit_py.sdk.arrow import rows_of, values_of

INT64 = st.integers(-(2**63), 2**63 - 1)
# Mostly times that Python's types reach, and such that they do not.
SECONDS = st.integers(-(10**10), 10**10) | INT64
MICROSECONDS = st.integers(-(10**16), 10**16) | INT64
DAYS = st.integers(-10_000, 60_000) | st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(max_size=5)

COUNTED: list[tuple[pa.DataType, st.SearchStrategy[int]]] = [
    *((pa.timestamp("s", zone), SECONDS) for zone in (None, "UTC", "Europe/Rome", "+02:00")),
    *((pa.timestamp("ms", zone), MICROSECONDS) for zone in (None, "UTC")),
    *((pa.timestamp("us", zone), MICROSECONDS) for zone in (None, "UTC", "+00:00", "America/New_York")),
    (pa.timestamp("ns"), INT64),
    (pa.duration("s"), SECONDS),
    (pa.duration("ms"), MICROSECONDS),
    (pa.duration("us"), INT64),
    (pa.date32(), DAYS),
    (pa.time64("us"), st.integers(0, 86_400 * 10**6 - 1)),
]
"""Types of which a value is a number."""
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), INT64),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.string_view(), TEXTS),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
    (pa.decimal128(5, -3), st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(3))),
    (pa.decimal256(60, 7), st.decimals(-(10**15), 10**15, places=7)),
    (pa.list_(pa.timestamp("us", "UTC")), st.lists(st.none() | st.datetimes(), max_size=3)),
    (pa.struct({"a": pa.date32(), "b": pa.string()}), st.fixed_dictionaries({"a": st.dates(), "b": TEXTS})),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(TEXTS, INT64, max_size=3).map(lambda d: list(d.items()))),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
]
KINDS = COUNTED + PLAIN


def array(kind: pa.DataType, made: list[Any]) -> pa.Array:
    if not any(kind == counted for counted, _ in COUNTED):
        return pa.array(made, kind)
    return pa.array(made, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array | pa.ChunkedArray:
    """A column in one piece or in several, or a part of it, with or without nulls."""
    kind, some = draw(st.sampled_from(KINDS))
    some = some | st.none() if draw(st.booleans()) else some
    chunks = [array(kind, draw(st.lists(some, max_size=6))) for _ in range(draw(st.integers(1, 3)))]
    column = pa.chunked_array(chunks, kind) if draw(st.booleans()) else chunks[0]
    return column.slice(draw(st.integers(0, 3)), draw(st.integers(0, 20))) if draw(st.booleans()) else column


def outcome(call: Callable[[], list[Any]]) -> object:
    """Values with all that tells them apart: 0.0 is not -0.0, and True not 1. An error is one too."""
    try:
        return [(type(value), repr(value)) for value in call()]
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        return type(error), str(error)


@given(columns(), st.sampled_from([None, "strict"]))
def test_values_are_those_that_arrow_gives(column: pa.Array | pa.ChunkedArray, maps: Maps) -> None:
    assert outcome(lambda: values_of(column, maps=maps)) == outcome(lambda: column.to_pylist(maps_as_pydicts=maps))


@given(st.data(), st.integers(0, 4), st.lists(st.sampled_from(["a", "b", "a b", "'", "k0", ""]), max_size=5))
def test_rows_are_those_that_arrow_gives(data: st.DataObject, count: int, names: list[str]) -> None:
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in names]
    arrays = [array(kind, data.draw(st.lists(some, min_size=count, max_size=count))) for kind, some in kinds]
    table = pa.Table.from_arrays(arrays, names)

    assert outcome(lambda: rows_of(table)) == outcome(table.to_pylist)
    assert outcome(lambda: rows_of(table, maps="strict")) == outcome(lambda: table.to_pylist(maps_as_pydicts="strict"))
    for batch in table.to_batches():
        assert outcome(partial(rows_of, batch)) == outcome(batch.to_pylist)


def test_a_table_without_columns_has_its_rows() -> None:
    assert rows_of(pa.table({"n": [1, 2]}).select([])) == [{}, {}]


def test_rows_share_nothing_that_can_be_changed() -> None:
    first, second = rows_of(pa.table({"n": [[1], [1]]}))
    first["n"].append(2)
    first["m"] = 3

    assert second == {"n": [1]}


@pytest.mark.parametrize("width", [1, 2, 300])
def test_a_table_may_be_wide(width: int) -> None:
    table = pa.table({f"column {index}": [index, None] for index in range(width)})

    assert rows_of(table) == table.to_pylist()
