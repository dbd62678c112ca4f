"""Schemas: found at first sight, or declared as Spark reads them."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from conduit_py.sdk import FatalError
from conduit_py.sdk.columns import ARROW_ERRORS

Drift: TypeAlias = Literal["refuse", "ignore", "stop"]
"""What becomes of records that do not fit: refused, or their unknown fields ignored, or the run stopped."""


def declared(ddl: str) -> pa.Schema:
    """The schema that Spark reads in a text such as "id BIGINT, name STRING". Needs a session."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        struct = StructType.fromDDL(ddl)
        assert isinstance(struct, StructType)
        return to_arrow_schema(struct, timezone="UTC")
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise FatalError(
            f"schema {ddl!r} cannot be understood: {first}",
            suggestion='write columns as in SQL, for example "id BIGINT, name STRING, at TIMESTAMP"',
        ) from error


def infer(rows: Sequence[dict[str, Any]]) -> pa.Schema | None:
    """The schema of the first rows seen; None when there is none that has one."""
    sound = [row for row in rows if row and all(_type_of([value]) is not None for value in row.values())]
    names = dict.fromkeys(name for row in sound for name in row)
    if not names:
        return None
    return pa.schema([pa.field(name, _column_type([row.get(name) for row in sound])) for name in names])


def difference(was: pa.Schema, now: pa.Schema) -> str | None:
    """How two schemas differ, in a few words; None when they do not."""
    before, after = ({field.name: field.type for field in schema} for schema in (was, now))
    changes = [f"{name} is new" for name in after if name not in before]
    changes += [f"{name} is gone" for name in before if name not in after]
    changes += [
        f"{name} was {before[name]} and is {kind}" for name, kind in after.items() if before.get(name, kind) != kind
    ]
    return "; ".join(changes) or None


def _column_type(values: Sequence[Any]) -> pa.DataType:
    found = _type_of(values)
    if found is None:
        # Values of several types: the first decides, and the others will be refused.
        found = _type_of([next(value for value in values if value is not None)])
    assert found is not None
    return _widened(found)


def _type_of(values: Sequence[Any]) -> pa.DataType | None:
    """What Arrow takes the values for, if Spark has such a type; None if not."""
    try:
        kind = pa.infer_type(values)
        return kind if _known_to_spark(kind) else None
    except ARROW_ERRORS:
        return None


def _known_to_spark(kind: pa.DataType) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        from_arrow_type(kind)
    except PySparkException:
        return False
    return True


def _widened(kind: pa.DataType) -> pa.DataType:
    """Room for what comes later: all digits that there can be for decimals; text where nothing was seen but null."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _widened(field.type)) for field in kind])
    return kind
