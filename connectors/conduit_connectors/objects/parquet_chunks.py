"""ParquetChunks: the rows of Parquet as tables of payloads, and those that no record can hold one by one."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from conduit_connectors.objects.contents import RecordChunk
from conduit_connectors.objects.parquet import BATCH_ROWS, ParquetLimits, ParquetPart, ParquetReader
from conduit_connectors.objects.parquet_program import PIECE_BYTES
from conduit_connectors.objects.store import ObjectBytes
from conduit_py.sdk.arrow import ARROW_ERRORS, check_values, python_rows

CHUNK_ROWS = (16_384, *BATCH_ROWS[1:])
CHUNK_BYTES = 16 * 2**20
"""More at once than of announced objects, whose rows always become Python objects."""


class ParquetChunks:
    """Reads one object after another, in another process with a limit on its memory."""

    def __init__(self, memory_max: int, row_size_max: int) -> None:
        # At least 2 MiB: what a row takes in memory is more than what it would be as a line.
        self._limits = ParquetLimits(memory_max, max(row_size_max, PIECE_BYTES))
        self._reader = ParquetReader(self._limits, CHUNK_ROWS)

    def read(self, content: ObjectBytes, size: int, offset: int) -> Iterator[RecordChunk]:
        """Read the rows after the first `offset`. Raises ValueError for what is no Parquet."""
        place: dict[str, Any] = {"piece_bytes": min(CHUNK_BYTES, self._limits.row_size_max)}
        fileno = getattr(content, "fileno", None)
        if fileno is not None:
            place["file"] = os.fdopen(os.dup(fileno()), "rb")
        else:
            place |= {"content": content, "size": size}
        for part in self._reader.read_parts(offset, **place):
            yield self._chunk(part)

    def close(self) -> None:
        self._reader.close()

    def _chunk(self, part: ParquetPart) -> RecordChunk:
        if part.table is None:
            return RecordChunk([None], [part.end], {0: self._reader.too_long(part)})
        ends = range(part.end - part.table.num_rows + 1, part.end + 1)
        names = part.table.column_names
        if len(set(names)) < len(names):
            raise ValueError("it has two columns of one name")
        try:
            plain = plain_table(part.table)
            check_values(plain)
        except pa.ArrowException:
            rows = rows_one_by_one(part.table)
            return RecordChunk(rows.values, ends, rows.refused)
        # Arrow forgets the number of rows of a table without columns when it is sliced.
        return RecordChunk(plain if names else plain.to_pylist(), ends, {}, dict)


class SingleRows(NamedTuple):
    """Rows as Python objects, None for each that cannot be one, and why."""

    values: list[Any]
    refused: dict[int, str]


def plain_table(table: pa.Table) -> pa.Table:
    """Return the table without notes of other programs, and with the values of dictionaries in place of their keys."""
    table = table.replace_schema_metadata(None)
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(field.type.value_type))
    return table


def rows_one_by_one(table: pa.Table) -> SingleRows:
    """Return the rows as Python objects, and why some of them cannot be one."""
    made = SingleRows([], {})
    for index in range(table.num_rows):
        row: Any = None
        try:
            [row] = python_rows(plain_table(table.slice(index, 1)))
        except (*ARROW_ERRORS, LookupError) as error:
            made.refused[index] = f"a record cannot hold the values of the row: {error}"
        made.values.append(row)
    return made
