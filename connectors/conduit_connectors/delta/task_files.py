"""What a task of Spark writes of a Delta table: whole files that wait for a commit of the driver."""

from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_connectors.delta.adopted_files import FileAbout
from conduit_connectors.delta.partitions import PartitionRows, divide, divides
from conduit_connectors.delta.table import settle, table_files
from conduit_connectors.lake_parts import HIDDEN, LakeFolder, LakeGrant, PartWriter
from conduit_connectors.objects.staged_parts import Grant
from conduit_py.sdk import PartId


class _TableOfTasks(msgspec.Struct, frozen=True, array_like=True):
    """What a task needs to know of the table, so that it does not have to read the log."""

    uri: str
    schema: bytes
    partition_by: list[str] = []


class DeltaTaskFiles:
    """The files of one task. It reads nothing of the table: where it is, and its columns, come with the grant."""

    def __init__(self, grant: bytes, part: PartId, storage: Mapping[str, str], shown: str) -> None:
        """Raises PieceRefused if the table of the driver is not reached."""
        granted = msgspec.msgpack.decode(grant, type=LakeGrant)
        table = msgspec.msgpack.decode(granted.table, type=_TableOfTasks)
        self._writer = PartWriter(hidden_folder(table.uri, storage, shown), granted.grant, part)
        self.schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
        self.partition_by = table.partition_by

    def write(self, rows: pa.Table) -> None:
        """Write rows as files, one for each partition, and make them durable."""
        by = self.partition_by if divides(self.schema, self.partition_by) else []
        for part in divide(rows, by):
            self._write_file(part)

    def _write_file(self, part: PartitionRows) -> None:
        name, place = self._writer.new_name(), self._writer.place
        path = self._writer.path(name)
        # Known before it is complete, so that `discard` removes it.
        self._writer.begin(name)
        written: list[pq.FileMetaData] = []
        pq.write_table(part.rows, path, filesystem=place.files, metadata_collector=written)
        place.settle([path])
        about = msgspec.msgpack.encode(FileAbout.of(part.values, written[0]))
        self._writer.add(name, place.files.get_file_info(path).size, about)

    def manifest(self) -> bytes:
        return self._writer.manifest()

    def discard(self) -> None:
        self._writer.discard()


def grant_table(grant: Grant, uri: str, schema: pa.Schema, partition_by: list[str]) -> bytes:
    """Return what tasks need to write files of a table."""
    table = _TableOfTasks(uri, schema.serialize().to_pybytes(), partition_by)
    return msgspec.msgpack.encode(LakeGrant(grant, msgspec.msgpack.encode(table)))


def hidden_folder(uri: str, storage: Mapping[str, str], shown: str) -> LakeFolder:
    """Return the folders of a table where files wait, for the driver and for tasks."""
    return LakeFolder(table_files(uri, storage), HIDDEN, shown, lambda names: settle(uri, names))
