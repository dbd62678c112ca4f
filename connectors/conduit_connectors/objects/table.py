"""Rows of a Parquet object as records."""

from collections.abc import Iterator
from typing import Any

from conduit_py.lease.content import Part
from conduit_py.sdk import Payload, Record

BATCH_ROWS = 4096


def read_parquet(stream: Any, offset: int) -> Iterator[Part]:
    """The rows after the first `offset`, in the order in which they are stored."""
    from pyarrow import parquet

    from conduit_py.sdk.values import rows_of

    with stream, parquet.ParquetFile(stream) as table:
        first = _first_group(table, offset)
        number = sum(table.metadata.row_group(group).num_rows for group in range(first))
        for batch in table.iter_batches(BATCH_ROWS, row_groups=range(first, table.num_row_groups)):
            for row in rows_of(batch):
                number += 1
                if number > offset:
                    yield Part(Record(payload=Payload(after=row)), number)


def _first_group(table: Any, offset: int) -> int:
    """The row group that holds the row after `offset`: those before it need not be read."""
    number = 0
    for group in range(table.num_row_groups):
        number += table.metadata.row_group(group).num_rows
        if number > offset:
            return group
    return int(table.num_row_groups)
