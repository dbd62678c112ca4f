"""Files of an Iceberg table that tasks of Spark write: whole, described, and waiting for a commit of the driver."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from conduit_connectors.iceberg.columns import arrow_schema
from conduit_connectors.iceberg.data_files import StagedDataFile, describe_files, folder_of, sync_files
from conduit_connectors.lake_parts import HIDDEN, LakeFolder, LakeGrant, PartWriter, TakenFile
from conduit_connectors.objects.staged_parts import Grant
from conduit_py.sdk import PartId, PieceRefused

_PREFIX = "conduit-py.task"
"""The property by which a task tells the library how to name files."""


_OF_STORES = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.", "py-io-impl")
"""How the properties begin by which the library reaches a store."""


class _TableOfTasks(msgspec.Struct, frozen=True, array_like=True):
    """What a task needs to write files of a table. So it asks no catalog, and needs no access to one."""

    metadata: bytes
    io: dict[str, str]


class MovedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that waits, and the place that it gets before the commit that names it."""

    waits_at: str
    place: str


class IcebergTaskFiles:
    """The files of one task."""

    def __init__(self, grant: bytes, part: PartId, shown: str) -> None:
        """Raises PieceRefused if the table of the driver is not reached."""
        granted = msgspec.msgpack.decode(grant, type=LakeGrant)
        table = msgspec.msgpack.decode(granted.table, type=_TableOfTasks)
        metadata = TableMetadataUtil.parse_raw(table.metadata.decode())
        self._io = load_file_io(table.io, metadata.location)
        self._writer = PartWriter(hidden_folder(metadata, self._io, shown), granted.grant, part)
        # One level of folders, so that the driver finds all that tasks have left by listing one of them.
        properties = {
            **metadata.properties,
            "write.py-location-provider.impl": f"{__name__}.{TaskLocations.__name__}",
            "write.data.path": f"{folder_of(metadata, HIDDEN)}/{granted.grant.folder}",
            _PREFIX: self._writer.prefix,
        }
        self._metadata = metadata.model_copy(update={"properties": properties})
        self.schema = arrow_schema(metadata.schema())

    def write(self, rows: pa.Table) -> None:
        """Write rows as files, one or more for each partition, and make them durable."""
        for file in describe_files(self._metadata, self._io, rows.cast(self.schema)):
            self._writer.add(file.path.rpartition("/")[2], file.size, msgspec.msgpack.encode(file))

    def manifest(self) -> bytes:
        return self._writer.manifest()

    def discard(self) -> None:
        self._writer.discard()


class TaskLocations(LocationProvider):
    """Names the files of a task as all that tasks stage is named: by fence, run and part, with a random end."""

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        suffix = data_file_name.rpartition(".")[2]
        return f"{self.data_path}/{self.table_properties[_PREFIX]}{secrets.token_hex(8)}.{suffix}"


def grant_table(grant: Grant, metadata: TableMetadata, io: FileIO) -> bytes:
    """Return what tasks need to write files of a table."""
    # Without its history, which may be megabytes.
    history: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    lean = metadata.model_copy(update={**history, "statistics": [], "partition_statistics": []})
    # M8: the library gives a store all that the catalog was given, its passwords and tokens too.
    properties = {name: str(value) for name, value in io.properties.items() if name.startswith(_OF_STORES)}
    table = _TableOfTasks(lean.model_dump_json().encode(), properties)
    return msgspec.msgpack.encode(LakeGrant(grant, msgspec.msgpack.encode(table)))


def hidden_folder(metadata: TableMetadata, io: FileIO, shown: str) -> LakeFolder:
    """Return the folders of a table where files wait. Raises PieceRefused for a store that lists no files."""
    if not isinstance(io, PyArrowFileIO):
        raise PieceRefused(
            f"{shown} is in a store that {type(io).__name__} reaches, which lists no files",
            suggestion="leave out py-io-impl, or let the driver write",
        )
    scheme, netloc, path = io.parse_location(folder_of(metadata, HIDDEN), io.properties)
    location = io.parse_location(metadata.location, io.properties)[2] if scheme == "file" else metadata.location

    def settle(names: Sequence[str]) -> None:
        if scheme == "file":
            sync_files(location, names)

    return LakeFolder(io.fs_by_scheme(scheme, netloc), path, shown, settle)


def place_files(taken: Sequence[TakenFile], folder: str) -> tuple[list[StagedDataFile], list[MovedFile]]:
    """Return the files as the table gets them, and from where each has to be moved before."""
    files, moved = [], []
    for each in taken:
        file = msgspec.msgpack.decode(each.about, type=StagedDataFile)
        place = f"{folder}/{secrets.token_hex(16)}.{file.path.rpartition('.')[2]}"
        moved.append(MovedFile(file.path, place))
        files.append(msgspec.structs.replace(file, path=place))
    return files, moved


def move_files(io: FileIO, location: str, moved: Sequence[MovedFile]) -> None:
    """Move files to their places, if an attempt that was killed has not done so."""
    assert not moved or isinstance(io, PyArrowFileIO), "only those stage"
    for each in moved:
        files, source = _find(io, each.waits_at, io.properties)
        _, target = _find(io, each.place, io.properties)
        if files.get_file_info(target).type == pafs.FileType.NotFound:
            if isinstance(files, pafs.LocalFileSystem):
                files.create_dir(target.rpartition("/")[0])
            files.move(source, target)
    sync_files(location, [each.place for each in moved])


def _find(io: FileIO, url: str, properties: Mapping[str, str]) -> tuple[pafs.FileSystem, str]:
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, path = io.parse_location(url, dict(properties))
    return io.fs_by_scheme(scheme, netloc), path
