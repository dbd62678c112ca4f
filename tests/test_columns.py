"""Rows fit a schema, or it is said why not, whichever way they are looked at."""

from collections import defaultdict
from datetime import UTC, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from conduit_py.sdk.arrow import fit_to_schema

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
    ],
)
def test_a_value_that_arrow_would_change_is_refused(value: Any, kind: pa.DataType) -> None:
    assert list(fit_to_schema([{"a": value}], pa.schema([("a", kind)])).refused) == [0]


def test_looking_does_not_fill_in_what_a_row_lacks() -> None:
    row: defaultdict[str, int] = defaultdict(int, a=1)

    assert fit_to_schema([row], AB).batch.to_pylist() == [{"a": 1, "b": None}]
    assert dict(row) == {"a": 1}
