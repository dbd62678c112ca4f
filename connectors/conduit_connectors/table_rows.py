"""Records as rows of Arrow tables, for destinations that write such tables, and back, for sources that read them."""

from typing import Any

import pyarrow as pa

from conduit_connectors.ignored_fields import IgnoredFields
from conduit_py.sdk import Batch, FatalError, Payloads, Positions, Reading, Record, Records, Structured
from conduit_py.sdk.arrow import ARROW_ERRORS, check_values, fit_to_schema, python_rows, select_columns

NO_FIELDS = "payload.after is not structured, so it has no fields to write"


def fit_batch(batch: Batch, schema: pa.Schema, *, more: bool) -> tuple[pa.Table | None, dict[int, str]]:
    """Return the rows that fit, None if there are none, and why the others do not.

    Fields that the schema lacks are left out with `more`. Without it they make a row unfit, unless they are null. The
    table of a batch that holds one is taken as it is, if all of its rows fit.
    """
    if batch.table is not None and (table := _fit_table(batch.table, schema, more)) is not None:
        return table, {}
    rows = {index: row for index, row in enumerate(batch.payloads) if isinstance(row, dict)}
    refused = dict.fromkeys({*range(len(batch))} - rows.keys(), NO_FIELDS)
    names = set(schema.names)
    # A column that is missing reads as null: nothing is lost.
    lean = list(rows.values()) if more else [_without_nulls(row, names) for row in rows.values()]
    if not lean:
        return None, refused
    made = fit_to_schema(lean, schema, more=more)
    indices = list(rows)
    refused |= {indices[row]: reason for row, reason in made.refused.items()}
    return (pa.Table.from_batches([made.batch]) if made.kept else None), refused


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


def new_fields(batch: Batch, known: set[str]) -> dict[str, pa.DataType | None]:
    """Return the fields that have no column and are not null, with their types; None for values without one."""
    if batch.table is not None:
        columns = {name: batch.table.column(name) for name in batch.table.column_names if name not in known}
        return {name: column.type for name, column in columns.items() if column.null_count < len(column)}
    found: dict[str, pa.DataType | None] = {}
    for row in batch.payloads:
        if isinstance(row, dict) and not known.issuperset(row):
            for name, value in row.items():
                if name not in known and name not in found and value is not None:
                    found[name] = _type_of(value)
    return found


def _type_of(value: object) -> pa.DataType | None:
    try:
        # Not `infer_type`, which has a type for integers that no array holds.
        return pa.array([value]).type
    except ARROW_ERRORS:
        return None


def count_ignored(batch: Batch, known: set[str], ignored: IgnoredFields, table: str) -> None:
    """Count the values of fields that have no column in the table."""
    if batch.table is not None and known.issuperset(batch.table.column_names):
        return
    for row in batch.payloads:
        if isinstance(row, dict) and not known.issuperset(row):
            for name, value in row.items():
                if name not in known and value is not None:
                    ignored.add(table, name)


def read_rows(table: pa.Table, positions: Positions, place: str) -> Records | Reading:
    """Return the rows of a table as records: as a table, or one by one if a value of a row is none that Python holds.

    `place` tells where they were read, for an error.
    """
    try:
        plain = _plain(table)
        check_values(plain)
        return Payloads.of_table(plain, positions)
    except ValueError as error:
        # Of `of_table`, about two columns of one name; Arrow's errors are ValueErrors too.
        if not isinstance(error, pa.ArrowException):
            raise FatalError(f"{place}: {error}", suggestion="name others in `columns`") from error
        return _row_by_row(table, positions)


def _plain(table: pa.Table) -> pa.Table:
    """Return the table without notes of other programs, and with the values of dictionaries in place of their keys."""
    table = table.replace_schema_metadata(None)
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(field.type.value_type))
    return table


def _row_by_row(table: pa.Table, positions: Positions) -> Reading:
    """Return the rows as records, and why some of them cannot be one."""
    records: list[Record] = []
    refused: dict[int, str] = {}
    for index, position in enumerate(positions):
        row: Any = None
        try:
            [row] = python_rows(_plain(table.slice(index, 1)))
        except (*ARROW_ERRORS, LookupError) as error:
            refused[index] = f"a record cannot hold the values of the row: {error}"
        records.append(Record.of(row, position=position))
    return Reading(records, refused)
