"""Rows fit a schema, or it is said why not, whichever way they are looked at."""

from collections import defaultdict
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from conduit_py.sdk.arrow import fit_to_schema

_LOCAL = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])
AB = pa.schema([("a", pa.int64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    ("rows", "schema", "refused"),
    [
        ([{"a": 1, "b": 2}], AB, []),
        ([{"a": 1}], AB, []),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}], AB, [1]),
        ([{"a": 1, "c": 2}], AB, [0]),
        ([{"a": 1, "b": 2}], pa.schema([("a", pa.int64()), ("a", pa.int64())]), [0]),
        ([{}, {"a": 1}], pa.schema([]), [1]),
        ([], AB, []),
    ],
)
def test_fields_that_the_schema_lacks_are_noticed(
    rows: list[dict[str, Any]], schema: pa.Schema, refused: list[int]
) -> None:
    assert list(fit_to_schema(rows, schema).refused) == refused
    assert list(fit_to_schema(rows, schema, more=True).refused) == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (Decimal(2), pa.int32()),
        (UUID(int=3), pa.int64()),
        (time(1, tzinfo=UTC), pa.time64("us")),
        ("abc", pa.list_(pa.string())),
        ("ab", pa.list_(pa.string(), 2)),
        (b"abc", pa.large_list(pa.int64())),
        ({1}, pa.list_(pa.int64())),
        ((1,), _POINT),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int64())),
        ([("a", 1.5)], pa.map_(pa.string(), pa.int64())),
        ({"a": b"x"}, pa.map_(pa.string(), pa.string())),
        ({b"a": "x"}, pa.map_(pa.string(), pa.string())),
        ({"a": {"x": 1, "more": 2}}, pa.map_(pa.string(), _POINT)),
        ({"x": 1, 2: 3}, _POINT),
        (1e300, pa.float32()),
        (-70000, pa.float16()),
        ([1e300], pa.list_(pa.float32())),
        (datetime(2026, 1, 1, 0, 0, 0, 1, UTC), pa.timestamp("ms", "UTC")),
        (_LOCAL.replace(microsecond=1000), pa.timestamp("s")),
        (time(1, 2, 3, 4), pa.time32("ms")),
        (timedelta(microseconds=-1), pa.duration("ms")),
        (_LOCAL, pa.timestamp("us", "UTC")),
        (datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us")),
        (b"x", pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_a_value_that_arrow_would_change_is_refused(value: Any, kind: pa.DataType) -> None:
    made = fit_to_schema([{"a": value}, {"a": None}], pa.schema([("a", kind)]))

    assert list(made.refused) == [0]
    assert made.batch.to_pylist() == [{"a": None}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"x": None, "y": 1}, _POINT),
        ({"y": 1}, _POINT),
        ([1, None], pa.list_(pa.int64())),
        ([None, "a"], pa.list_(pa.string())),
        ({"a": None}, pa.map_(pa.string(), pa.timestamp("us"))),
        ({"a": {"x": 1, "y": None}}, pa.map_(pa.string(), _POINT)),
        (float("-inf"), pa.float32()),
        (3.40282356e38, pa.float32()),
        (datetime(2026, 1, 1, 0, 0, 0, 1000, UTC), pa.timestamp("ms", "UTC")),
        (timedelta(-1), pa.duration("s")),
        (_LOCAL, pa.timestamp("us")),
        (datetime(2026, 1, 1, 0, 0, 0, 1, UTC), pa.timestamp("ns", "Europe/Berlin")),
    ],
)
def test_a_value_that_arrow_holds_fits(value: Any, kind: pa.DataType) -> None:
    assert fit_to_schema([{"a": value}, {"a": None}], pa.schema([("a", kind)])).refused == {}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, None], pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ({"x": None}, pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ],
)
def test_a_null_within_a_value_is_refused_where_its_field_takes_none(value: Any, kind: pa.DataType) -> None:
    assert list(fit_to_schema([{"a": value}], pa.schema([("a", kind)])).refused) == [0]


def test_looking_does_not_fill_in_what_a_row_lacks() -> None:
    row: defaultdict[str, int] = defaultdict(int, a=1)

    assert fit_to_schema([row], AB).batch.to_pylist() == [{"a": 1, "b": None}]
    assert dict(row) == {"a": 1}
