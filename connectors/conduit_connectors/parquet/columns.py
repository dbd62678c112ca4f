"""The columns of a folder of Parquet files: declared, noted from earlier files, or taken from the first records."""

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_connectors.column_policy import check_new_column, new_fields
from conduit_py.sdk import Batch, FatalError
from conduit_py.sdk.arrow import NoCommonSchema, infer_schema

_DECIMAL = re.compile(r"decimal\((\d{1,2}), *(\d{1,2})\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *([\w/+:-]+)\]")


def parse_columns(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema that an option declares. Raises FatalError for a type that Arrow does not have."""
    fields = []
    for name, text in columns.items():
        try:
            fields.append(pa.field(name, _parse_type(text)))
        except (ValueError, pa.ArrowException) as error:
            raise FatalError(
                f"`columns` has no type for {name!r}: {text!r} is not one",
                suggestion='types are "int64", "double", "string", "bool", "binary", "date32", "timestamp[us]", '
                '"timestamp[us, UTC]", "decimal(10, 2)"',
            ) from error
    return check_schema(pa.schema(fields))


def _parse_type(text: str) -> pa.DataType:
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _ZONED.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    return pa.type_for_alias(text)


def columns_of(batch: Batch) -> pa.Schema | None:
    """Return the columns of the first records; None if they have none.

    A field without a value in all of them has no type yet, so it gets no column.
    """
    if batch.table is not None:
        return _known(batch.table.schema)
    rows = [row for row in batch.payloads if isinstance(row, dict)]
    try:
        return _known(infer_schema(rows))
    except NoCommonSchema:
        # Then the first record that has a schema decides, and what does not fit is refused.
        for row in rows:
            try:
                return _known(infer_schema([row]))
            except NoCommonSchema:
                continue
    return None


def add_columns(batch: Batch, schema: pa.Schema) -> tuple[pa.Schema, dict[str, str]]:
    """Return the schema with columns for the fields that have none, and why some fields get none."""
    unfit: dict[str, str] = {}
    for name, kind in new_fields(batch, set(schema.names)).items():
        try:
            found = _dense(check_new_column(name, kind, schema.names))
            if _is_unknown(found):
                raise ValueError(f"its value has no type yet, {found}")
            schema = check_schema(schema.append(pa.field(name, found)))
        except (ValueError, FatalError) as error:
            unfit[name] = f"the field {name!r} gets no column: {error}"
    return schema, unfit


def _known(schema: pa.Schema) -> pa.Schema | None:
    fields = [pa.field(field.name, _dense(field.type)) for field in schema if not _is_unknown(field.type)]
    return check_schema(pa.schema(fields)) if fields else None


def _dense(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_unknown(kind: pa.DataType) -> bool:
    """Return True if a part of a type is that of nulls, or has no fields: later values would not fit it."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_unknown(kind.value_type)
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_is_unknown(field.type) for field in kind)
    return False


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema. Raises FatalError if Parquet cannot store it."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        hint = "change the columns before they are written, for example with a processor"
        raise FatalError(f"Parquet cannot store these columns: {error}", suggestion=hint) from error
    return schema


def decode_schema(content: bytes | None, place: str = "_conduit/schema") -> pa.Schema | None:
    """Return the columns of such a note; None if there is none. Raises FatalError for one that is damaged."""
    if content is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError) as error:
        hint = "delete it; the columns are then those of the next records"
        raise FatalError(f"{place} does not hold the columns of the files: {error}", suggestion=hint) from error
