"""Schemas: found at first sight or declared, and whether a record's values fit without being changed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from conduit_py.sdk import FatalError

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


def fits_plainly(rows: Sequence[dict[str, Any]], schema: pa.Schema, drift: Drift) -> bool:
    """Whether the types of their values alone show that all rows fit; if not, each row needs a look of its own."""
    if drift != "ignore" and not all(map(set(schema.names).issuperset, rows)):
        return False
    for field in schema:
        kinds = {type(row.get(field.name)) for row in rows}
        if field.nullable:
            kinds.discard(type(None))
        if not kinds <= _plain_types(field.type):
            return False
    return True


def misfit(row: dict[str, Any], schema: pa.Schema, drift: Drift) -> str | None:
    """Why a row does not fit, as far as Arrow would not notice: it drops fields and digits without a word."""
    if drift != "ignore":
        extra = [name for name in row if schema.get_field_index(name) < 0]
        if extra:
            return f"has fields that are not in the schema: {', '.join(map(repr, extra))}"
    for field in schema:
        value = row.get(field.name)
        if value is None:
            if not field.nullable:
                return f"{field.name} is missing, and its column takes no null"
        elif reason := _changed(value, field.type, drift):
            return f"{field.name} {reason}"
    return None


def difference(was: pa.Schema, now: pa.Schema) -> str | None:
    """How two schemas differ, in a few words; None when they do not."""
    before, after = ({field.name: field.type for field in schema} for schema in (was, now))
    changes = [f"{name} is new" for name in after if name not in before]
    changes += [f"{name} is gone" for name in before if name not in after]
    changes += [
        f"{name} was {before[name]} and is {kind}" for name, kind in after.items() if before.get(name, kind) != kind
    ]
    return "; ".join(changes) or None


def _plain_types(kind: pa.DataType) -> set[type]:
    """The types of values that such a column takes as they are, or refuses."""
    if pa.types.is_integer(kind):
        return {int}
    if pa.types.is_floating(kind):
        return {int, float}
    if pa.types.is_string(kind):
        return {str}
    if pa.types.is_boolean(kind):
        return {bool}
    if pa.types.is_binary(kind):
        return {bytes}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return {datetime}
    return set()


def _changed(value: Any, kind: pa.DataType, drift: Drift) -> str | None:
    """How Arrow would change a value on the way into a column; None when it would not, or would refuse it itself."""
    if pa.types.is_integer(kind) and isinstance(value, float):
        return f"is {value!r}, and its column takes integers"
    if pa.types.is_date(kind) and isinstance(value, datetime):
        return "is a time, and its column takes dates"
    if pa.types.is_timestamp(kind) and kind.tz is None and isinstance(value, datetime) and value.tzinfo is not None:
        return "has a time zone, and its column takes none"
    if pa.types.is_binary(kind) and isinstance(value, str):
        return "is text, and its column takes bytes"
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return _changed_struct(value, kind, drift)
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return next((reason for item in value if (reason := _changed(item, kind.value_type, drift))), None)
    return None


def _changed_struct(value: dict[str, Any], kind: pa.StructType, drift: Drift) -> str | None:
    extra = [name for name in value if kind.get_field_index(name) < 0]
    if extra and drift != "ignore":
        return f"has fields that are not in the schema: {', '.join(map(repr, extra))}"
    for field in kind:
        if reason := _changed(value.get(field.name), field.type, drift):
            return f"{field.name} {reason}"
    return None


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
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
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
