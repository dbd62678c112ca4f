"""Records as rows of Arrow tables, for destinations that write such tables, and back, for sources that read them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from conduit_connectors.column_policy import with_texts
from conduit_connectors.objects.parquet_chunks import plain_table, rows_one_by_one
from conduit_py.sdk import Batch, FatalError, Payloads, Positions, Reading, Record, Records, Structured
from conduit_py.sdk.arrow import check_values, fit_to_schema, select_columns

NO_FIELDS = "payload.after is not structured, so it has no fields to write"


def fit_batch(
    batch: Batch, schema: pa.Schema, *, more: bool, texts: bool = False
) -> tuple[pa.Table | None, dict[int, str]]:
    """Return the rows that fit, None if there are none, and why the others do not.

    Fields that the schema lacks are left out with `more`. Without it they make a row unfit, unless they are null. With
    `texts` a column of text takes every value that has a text. The table of a batch that holds one is taken as it is,
    if all of its rows fit.
    """
    if batch.table is not None and (table := _fit_table(batch.table, schema, more)) is not None:
        return table, {}
    rows, indices, refused = _structured(batch)
    if not rows:
        return None, refused
    made = fit_to_schema(with_texts(rows, schema) if texts else rows, schema, more=more)
    if made.refused and not more:
        # A column that is missing reads as null: nothing is lost. Looked at only now, because most rows have none.
        names = set(schema.names)
        lean = [_without_nulls(row, names) for row in rows]
        made = fit_to_schema(with_texts(lean, schema) if texts else lean, schema)
    refused |= {indices[row]: reason for row, reason in made.refused.items()}
    return (pa.Table.from_batches([made.batch]) if made.kept else None), refused


def _structured(batch: Batch) -> tuple[Sequence[Structured], Sequence[int], dict[int, str]]:
    """Return the rows of a batch with their indices, and why the others are none."""
    payloads = batch.payloads
    if {*map(type, payloads)} == {dict}:
        return payloads, range(len(payloads)), {}
    rows = {index: row for index, row in enumerate(payloads) if isinstance(row, dict)}
    return list(rows.values()), list(rows), dict.fromkeys({*range(len(payloads))} - rows.keys(), NO_FIELDS)


def _fit_table(table: pa.Table, schema: pa.Schema, more: bool) -> pa.Table | None:
    names = set(schema.names)
    extra = [name for name in table.column_names if name not in names]
    if not more and any(table.column(name).null_count < table.num_rows for name in extra):
        return None
    return select_columns(table, schema, fill=True)


def _without_nulls(row: Structured, names: set[str]) -> Structured:
    if names.issuperset(row):
        return row
    made: dict[str, Any] = {name: value for name, value in row.items() if value is not None or name in names}
    return made


def read_rows(table: pa.Table, positions: Positions, place: str) -> Records | Reading:
    """Return the rows of a table as records: as a table, or one by one if a value of a row is none that Python holds.

    `place` tells where they were read, for an error.
    """
    try:
        plain = plain_table(table)
        check_values(plain)
        return Payloads.of_table(plain, positions)
    except ValueError as error:
        # Of `of_table`, about two columns of one name; Arrow's errors are ValueErrors too.
        if not isinstance(error, pa.ArrowException):
            raise FatalError(f"{place}: {error}", suggestion="name others in `columns`") from error
        rows = rows_one_by_one(table)
        records = [Record.of(row, position=each) for row, each in zip(rows.values, positions, strict=True)]
        return Reading(records, rows.refused)
