"""Data files of an Iceberg table that are written before the commit that shows them, and named in its intent."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from conduit_connectors.file.disk import sync_below


class StagedDataFile(msgspec.Struct, frozen=True):
    """A file that is complete, with what the table's metadata says of it."""

    path: str
    format: str
    spec: int
    rows: int
    size: int
    partition: list[bytes | None] = []
    column_sizes: dict[int, int] | None = None
    value_counts: dict[int, int] | None = None
    null_counts: dict[int, int] | None = None
    nan_counts: dict[int, int] | None = None
    lower: dict[int, bytes] | None = None
    upper: dict[int, bytes] | None = None
    offsets: list[int] | None = None


def folder_of(metadata: TableMetadata, name: str) -> str:
    """Return a folder below that of the table's data files. Iceberg's readers find files by their full paths."""
    base = metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data"
    return f"{base.rstrip('/')}/{name}"


class WrittenFiles:
    """A FileIO that notes each file which is created with it: the library does not tell what a commit wrote."""

    def __init__(self, io: FileIO) -> None:
        self.paths: list[str] = []
        self._create = io.new_output
        self.io = copy.copy(io)
        self.io.new_output = self._note  # type: ignore[method-assign]

    def _note(self, location: str) -> OutputFile:
        self.paths.append(location)
        return self._create(location)


def with_settings(table: Table, folder: str, io: FileIO | None = None) -> Table:
    """Return the table as one that writes its files into a folder, and whose commit fails at a conflict.

    The library would repeat a commit by itself on top of whatever came in between: also on top of the same commit by
    another process.
    """
    properties = {
        name: value
        for name, value in table.metadata.properties.items()
        if name not in ("write.py-location-provider.impl", "write.object-storage.enabled")
    }
    properties |= {
        "write.data.path": folder,
        "write.object-storage.enabled": "false",
        "commit.retry.num-retries": "0",
    }
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, io or table.io, table.catalog, table.config)


def write_files(table: Table, folder: str, rows: pa.Table) -> list[StagedDataFile]:
    """Write rows as data files that nothing refers to yet."""
    return describe_files(with_settings(table, folder).metadata, table.io, rows)


def describe_files(metadata: TableMetadata, io: FileIO, rows: pa.Table) -> list[StagedDataFile]:
    """Write rows as the metadata of a table say, make the files durable, and return what a commit says of them."""
    files = list(_dataframe_to_data_files(metadata, rows, io))
    sync_files(metadata.location, [file.file_path for file in files])
    return [_describe(file, metadata) for file in files]


def _describe(file: DataFile, metadata: TableMetadata) -> StagedDataFile:
    # The library writes by the newest spec, and does not tell.
    spec = metadata.default_spec_id
    kinds = _partition_types(metadata, spec)
    values = [file.partition[place] for place in range(len(kinds))]
    return StagedDataFile(
        file.file_path,
        file.file_format.value,
        spec,
        file.record_count,
        file.file_size_in_bytes,
        [None if value is None else to_bytes(kind, value) for kind, value in zip(kinds, values, strict=True)],
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.lower_bounds,
        file.upper_bounds,
        file.split_offsets,
    )


def restore_file(file: StagedDataFile, metadata: TableMetadata) -> DataFile:
    """Return what the library needs to add a file to a table."""
    kinds = _partition_types(metadata, file.spec)
    values = [
        None if value is None else from_bytes(kind, value) for kind, value in zip(kinds, file.partition, strict=True)
    ]
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat(file.format),
        partition=Record(*values),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        column_sizes=file.column_sizes,
        value_counts=file.value_counts,
        null_value_counts=file.null_counts,
        nan_value_counts=file.nan_counts,
        lower_bounds=file.lower,
        upper_bounds=file.upper,
        split_offsets=file.offsets,
        equality_ids=None,
        key_metadata=None,
        sort_order_id=None,
    )
    made.spec_id = file.spec
    return made


def _partition_types(metadata: TableMetadata, spec_id: int) -> list[PrimitiveType]:
    fields = metadata.specs()[spec_id].partition_type(metadata.schema()).fields
    return [_primitive(field.field_type) for field in fields]


def _primitive(kind: Any) -> PrimitiveType:
    assert isinstance(kind, PrimitiveType), "partitions have no nested values"
    return kind


def sync_files(location: str, paths: Sequence[str]) -> None:
    """Sync local files, and their folders up to that of the table. Object stores make a file durable when it is closed.

    Folders too: those of a new partition, and of what is staged, may have just been made.
    """
    local = [Path(unquote(urlsplit(path).path)) for path in paths if urlsplit(path).scheme in ("", "file")]
    sync_below(Path(unquote(urlsplit(location).path)), local)


def remove_runs(io: FileIO, folder: str, first: int, last: int, is_orphan: Callable[[int, str], bool]) -> bool:
    """Delete the orphans of some runs; False if this store lists no files.

    Each run has a folder below `folder`, named by its fence. `is_orphan` gets the fence of a run between `first` and
    `last`, and the path of a file within its folder.
    """
    if not isinstance(io, PyArrowFileIO):
        return False
    scheme, netloc, path = io.parse_location(folder, io.properties)
    files = io.fs_by_scheme(scheme, netloc)
    for run in files.get_file_info(pafs.FileSelector(path, allow_not_found=True)):
        name = run.base_name
        if not name.isdigit() or not first <= int(name) <= last:
            continue
        for found in files.get_file_info(pafs.FileSelector(run.path, recursive=True)):
            if found.is_file and is_orphan(int(name), found.path.removeprefix(run.path).lstrip("/")):
                files.delete_file(found.path)
    return True
