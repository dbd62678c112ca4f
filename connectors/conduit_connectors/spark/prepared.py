"""Prepared: records as the bytes of a Parquet file, made without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_connectors.spark.rows import RowMaker
from conduit_py.sdk import Batch


class Prepared:
    """Rows of records in order, until they become a file."""

    def __init__(self, maker: RowMaker) -> None:
        self._maker = maker
        self._rows: list[pa.RecordBatch] = []

    def add(self, batch: Batch) -> dict[int, str]:
        """Add records; index → reason for those that do not fit the schema."""
        rows, _, refused = self._maker.rows(batch.records, batch.source)
        self._rows.append(rows)
        return refused

    def file(self) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(self._rows), sink, coerce_timestamps="us")
        return bytes(sink.getvalue())
