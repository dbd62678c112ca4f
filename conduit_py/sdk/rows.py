"""Rows: what a processor says about the rows of a table, where the table alone does not say it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Rows:
    """The answer of an Arrow processor that filters or refuses rows. Row i is always the record of row i.

    `table` has the rows as they are now, all of them; without it the records stay as they are. `keep`, a boolean
    array, filters the rows for which it is not true. `refuse`, an array of texts, refuses those that have one, for
    that reason, whatever `keep` says of them.
    """

    table: "pa.Table | pa.RecordBatch | None" = None
    keep: "pa.BooleanArray | pa.ChunkedArray | None" = None
    refuse: "pa.StringArray | pa.ChunkedArray | None" = None
