"""ChangeRows: records as changes of a table with one row for each key: put a row in place, or delete it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from conduit_connectors.change_marks import unchanged_fields
from conduit_connectors.spark.rows import Fields, without_fields
from conduit_py.sdk import Operation, Record, RecordRefused
from conduit_py.sdk.arrow import FittedRows, fit_to_schema

ORDER = "conduit_order"
"""The column of a staging table that orders the changes of one key."""
GONE = "conduit_gone"
"""The column of a staging table that marks rows to delete."""


class ChangeRows:
    """Makes rows in the schema of a table plus the column GONE. A deletion has values for the key only."""

    def __init__(self, fields: Fields, key: Sequence[str]) -> None:
        assert fields.schema is not None, "that of the table"
        self.schema: pa.Schema | None = fields.schema
        self._fields = fields
        self._key = list(key)
        self._key_schema = pa.schema([fields.schema.field(name) for name in key])
        loose = [field.with_nullable(True) for field in fields.schema]
        self._staged = pa.schema([*loose, pa.field(GONE, pa.bool_())])

    def rows(self, records: Sequence[Record], source: str) -> FittedRows:
        values: dict[int, dict[str, Any]] = {}
        refused: dict[int, str] = {}
        for index, record in enumerate(records):
            reason = self._read(record, values.setdefault(index, {}))
            if reason is not None:
                refused[index] = reason
                del values[index]
        gone = [index for index in values if records[index].operation is Operation.DELETE]
        put = [index for index in values if records[index].operation is not Operation.DELETE]
        made_put = self._fields.fit([values[index] for index in put])
        made_gone = fit_to_schema([values[index] for index in gone], self._key_schema, more=True)
        refused |= {put[row]: reason for row, reason in made_put.refused.items()}
        refused |= {gone[row]: reason for row, reason in made_gone.refused.items()}
        kept = [put[row] for row in made_put.kept] + [gone[row] for row in made_gone.kept]
        return FittedRows(
            self._join(made_put.batch, made_gone.batch, kept), sorted(kept), dict(sorted(refused.items()))
        )

    def _read(self, record: Record, values: dict[str, Any]) -> str | None:
        """Collect the values of a row, of a deletion those of the key; returns the reason if there is no row."""
        gone, after = record.operation is Operation.DELETE, record.payload.after
        if not gone and not isinstance(after, dict):
            return without_fields(after)
        try:
            unchanged = unchanged_fields(record, after) if isinstance(after, dict) else ()
        except RecordRefused as error:
            return error.message
        if unchanged:
            # A stage has a value for every column, and null would take the place of what is there.
            return f"leaves {', '.join(map(repr, unchanged))} unchanged, and a row is written with all of its columns"
        for data in (record.key, record.payload.before if gone else None, record.payload.after):
            if isinstance(data, dict):
                values.update(data if data is record.payload.after else {k: data[k] for k in self._key if k in data})
        missing = [name for name in self._key if values.get(name) is None]
        return f"has no value for {missing[0]!r}, which is part of the key" if missing else None

    def _join(self, put: pa.RecordBatch, gone: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
        """Both kinds as rows of one schema, in the order of the records."""
        columns: list[pa.ChunkedArray] = []
        for field in self._staged.remove(len(self._staged) - 1):
            known = gone[field.name] if field.name in self._key else pa.nulls(len(gone), field.type)
            columns.append(pa.chunked_array([put[field.name], known], field.type))
        columns.append(pa.chunked_array([pa.array([False] * len(put) + [True] * len(gone), pa.bool_())]))
        order = sorted(range(len(indices)), key=indices.__getitem__)
        table = pa.Table.from_arrays(columns, schema=self._staged).take(pa.array(order, pa.int64())).combine_chunks()
        return table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], self._staged)


def with_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with the column ORDER: their number."""
    return rows.append_column(pa.field(ORDER, pa.int64()), pa.array(range(len(rows)), pa.int64()))
