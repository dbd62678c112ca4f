"""GrowingFile: one Parquet file while it is written, under a name that readers skip."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""A row group is written when its rows are so many or take so much memory."""


class GrowingFile:
    """Collects rows into row groups. The file is locked while it is open, so that nobody takes it for a remnant.

    After an error it cannot be used: a file of which a part is missing is no Parquet file.
    """

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self.rows = 0
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        # Buffered: an unbuffered file may write a part without an error, and Arrow would not notice.
        self._file = open(path, "xb")  # noqa: SIM115 - `finish` or `discard` closes it
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._writer: Any = pq.ParquetWriter(pa.PythonFile(self._file, mode="w"), schema, compression=compression)

    @property
    def size(self) -> int:
        """About how large the file will be: what is written, and the memory of what is not."""
        return self._file.tell() + self._waiting_bytes

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        self.rows += table.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def finish(self) -> None:
        """Write the rest and the footer. On return the file is durable, and closed."""
        if self._waiting:
            self._write_row_group()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Close and remove an unfinished file."""
        # Or it would write a footer when it is deleted.
        self._writer.is_open = False
        # Without flushing what is buffered, as `close` and `detach` do: the disk may be full.
        self._file.raw.close()
        self.path.unlink(missing_ok=True)

    def _write_row_group(self) -> None:
        waiting, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
        self._writer.write_table(pa.concat_tables(waiting), row_group_size=ROW_GROUP_ROWS)


def remove_remnants(folder: Path) -> None:
    """Remove the files of a folder that nobody is writing: a killed process left them."""
    for path in folder.glob("*.parquet"):
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            continue
