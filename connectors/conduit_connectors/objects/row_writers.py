"""RowWriters: rows as the content of a file: JSON lines, CSV, Avro and Parquet."""

from functools import lru_cache
from typing import IO, Any, Protocol

from conduit_connectors.compression import compressing_file

ROW_GROUP_ROWS = 1_048_576
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""A row group of Parquet is written when its rows are so many or take so much memory.

Each row group begins with dictionaries of its own, which is most of the work where values differ: small ones cost twice
as much.
"""
_FILES_TO_LEARN_FROM = 32
"""For how many files it is known which columns are worth a dictionary."""
_ROWS_TO_LEARN = 1000


class RowWriter(Protocol):
    """Writes the rows of one file. After an error it cannot be used."""

    rows: int

    @property
    def size(self) -> int:
        """About how large the file will be."""
        ...

    def write(self, rows: Any, count: int) -> None: ...

    def close(self) -> None:
        """Write the rest. The file stays open."""
        ...

    def abandon(self) -> None:
        """Forget what is not written."""
        ...


class TextRows:
    """Lines that are encoded already."""

    def __init__(self, file: IO[bytes], compression: Any, header: bytes = b"") -> None:
        self.rows = 0
        self._file = file
        self._into: Any = file if compression is None else compressing_file(file, compression)
        if header:
            self._into.write(header)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: bytes, count: int) -> None:
        self._into.write(rows)
        self.rows += count

    def close(self) -> None:
        if self._into is not self._file:
            self._into.close()

    def abandon(self) -> None:
        # A compressed file would write its end when it is deleted.
        if hasattr(self._into, "fileobj"):
            self._into.fileobj = None


class AvroRows:
    """Rows as the blocks of an Avro file."""

    def __init__(self, file: IO[bytes], schema: Any, codec: str) -> None:
        from fastavro.write import Writer

        self.rows = 0
        self._file = file
        self._writer: Any = Writer(file, schema, codec, sync_interval=64 * 1024)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: list[Any], count: int) -> None:
        for row in rows:
            self._writer.write(row)
        self.rows += count

    def close(self) -> None:
        self._writer.flush()

    def abandon(self) -> None:
        pass


class DictionaryColumns:
    """Which columns of Parquet files are worth a dictionary, by the file before.

    Where most values differ, a dictionary is most of the work, and of the file: it has every value, and the rows have
    its numbers besides. So a column goes without one if it took more than half of the column.
    """

    def __init__(self) -> None:
        self._schema: Any = None
        self._worth: list[str] | None = None
        self._files_left = 0

    def choose(self, schema: Any) -> bool | list[str]:
        """Return the columns that get a dictionary in the next file, or True for all."""
        if self._worth is None or not self._files_left or not schema.equals(self._schema):
            return True
        self._files_left -= 1
        return self._worth

    def learn(self, schema: Any, metadata: Any) -> None:
        """Take note of what the dictionaries of a file were worth that had them for all columns."""
        if metadata.num_rows < _ROWS_TO_LEARN:
            return
        group = metadata.row_group(0)
        columns = (group.column(number) for number in range(metadata.num_columns))
        self._worth = [column.path_in_schema for column in columns if _is_worth_it(column)]
        # Values change over time: now and then a file tries all columns again.
        self._schema, self._files_left = schema, _FILES_TO_LEARN_FROM


@lru_cache(maxsize=64)
def dictionary_columns(place: str) -> DictionaryColumns:
    """Those of a dataset, one for all of its writers in this process.

    A task of Spark writes one file, and would never learn from it. The next task in its process does.
    """
    return DictionaryColumns()


def _is_worth_it(column: Any) -> bool:
    if not column.has_dictionary_page:
        return False
    return 2 * int(column.data_page_offset - column.dictionary_page_offset) <= int(column.total_compressed_size)


class RowGroups:
    """Tables as row groups of a Parquet file. If a part of it is missing, it is no Parquet file."""

    def __init__(self, file: IO[bytes], schema: Any, compression: str, dictionaries: DictionaryColumns) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.rows = 0
        self._file = file
        self._schema = schema
        self._dictionaries = dictionaries
        self._chosen = dictionaries.choose(schema)
        self._metadata: list[Any] = []
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._concat = pa.concat_tables
        self._writer: Any = pq.ParquetWriter(
            pa.PythonFile(file, mode="w"),
            schema,
            compression=compression,
            use_dictionary=self._chosen,
            metadata_collector=self._metadata,
        )

    @property
    def size(self) -> int:
        """What is written, and the memory of what is not."""
        return self._file.tell() + self._waiting_bytes

    def write(self, rows: Any, count: int) -> None:
        self._waiting.append(rows)
        self._waiting_rows += count
        self._waiting_bytes += rows.nbytes
        self.rows += count
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> None:
        if self._waiting:
            self._write_row_group()
        self._writer.close()
        if self._chosen is True:
            self._dictionaries.learn(self._schema, self._metadata[0])

    def abandon(self) -> None:
        # Or it would write a footer when it is deleted.
        self._writer.is_open = False

    def _write_row_group(self) -> None:
        waiting, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
        self._writer.write_table(self._concat(waiting), row_group_size=ROW_GROUP_ROWS)
