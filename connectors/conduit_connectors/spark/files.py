"""spark.Destination: files in any format and file system of Spark, each record exactly once."""

import hashlib
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Required, Unpack

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pydantic import Field

from conduit_connectors.spark.buffered_destination import BufferedDestination
from conduit_connectors.spark.delivered_ids import ids_of
from conduit_connectors.spark.folder import Folder, LocalFolder, folder_of
from conduit_connectors.spark.manifest import Manifests, batch_folder, stage_folder
from conduit_connectors.spark.row_buffer import BufferArguments, BufferOptions, Load
from conduit_connectors.spark.rows import Envelopes, Fields, RowMaker, frame_of, schema_difference
from conduit_py import sdk
from conduit_py.sdk import Batch, FatalError
from conduit_py.sdk.spark import error_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ParquetRows:
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


_SCHEMA = "_conduit/schema.arrow"
_OWNER = "_conduit/owner"


def _label(path: str) -> str:
    """Return where a folder is, in the same words however it is named; without a password."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return os.path.realpath(path.removeprefix("file:"))
    if scheme.lower() == "file":
        return os.path.realpath(rest)
    return f"{scheme.lower()}://{'/'.join(filter(None, rest.rpartition('@')[2].split('/')))}"


class FilesOptions(BufferOptions):
    """Options of the destination of files."""

    path: str = Field(min_length=1, description="the folder to write to, a path or a URL; executors must see it too")
    format: str = Field(default="parquet", description='"parquet", "orc", "json", "csv" or another of Spark\'s')
    options: dict[str, str] = Field(default={}, description="options of the format")
    partition_by: list[str] = Field(default=[], description="columns that become folders inside of each batch")
    remember: int = Field(
        default=500_000,
        ge=1,
        description="how many of the last records are recognised when they come again; "
        "more than the windows of all sources together",
    )


class FilesArguments(BufferArguments, total=False):
    """FilesOptions as a caller writes them, for editors and type checkers."""

    path: Required[str]
    format: str
    options: Mapping[str, str]
    partition_by: Sequence[str]
    remember: int


class StagedFiles(msgspec.Struct, frozen=True):
    """What an exactly-once transaction makes visible: folders, and where they go."""

    moves: list[tuple[str, str]]


class Destination(
    BufferedDestination[FilesOptions],
    sdk.StagedDestination[FilesOptions],
    sdk.PreparingDestination[FilesOptions],
):
    """Writes batches of files that become visible as a whole, each with a manifest of its contents.

    Exactly-once in an exactly-once pipeline (staged). In an at-least-once one too, as long as what comes again
    after a crash is among the last `remember` records: those are recognised by source and position, which are
    committed with the data, acked and not written. One destination to a path.
    """

    _stages: str | None = None
    """In an exactly-once pipeline: the folder of the stages of this run."""
    _schema_kept = False
    _unmoved: tuple[str, str] | None = None
    """A batch that is committed and not yet where readers see it: where it is, and where it goes."""
    _prepared: ParquetRows | None = None

    def __init__(self, **options: Unpack[FilesArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at(self.options.path)]

    @property
    def claims(self) -> str:
        # Stages and batches have numbers only: those of another node of the pipeline would have the same.
        return f"the folder {_label(self.options.path)}"

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        # A hash, because the name of a pipeline may have characters that file systems refuse.
        name = hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()
        self._own(name)
        for intent in intents:
            self.apply(intent)
        mine = f"_conduit/staged/{name}"
        for name in self._folder.names(mine):
            if name.isdecimal() and int(name) <= fence:
                self._folder.remove(f"{mine}/{name}")
        # A zombie's stages are in a folder of a lower fence: never committed, they are never moved from there.
        self._stages = f"{mine}/{fence:012d}"
        self._fence = fence

    def _own(self, name: str) -> None:
        """Note which pipeline writes here. Batches of another would have the same numbers, and be taken for its own."""
        if not self._folder.create(_OWNER, name.encode()) and self._folder.read(_OWNER) != name.encode():
            raise FatalError(
                f"{self.options.path} is written by another exactly-once pipeline",
                suggestion=f"give each pipeline a path of its own; if that one is no more, delete {_OWNER} there",
            )

    def write(self, batch: Batch) -> dict[int, str] | None:
        refused = super().write(batch)
        if self._stages is not None:
            self._handled.clear()
            if self._buffer.full:
                self._stage_buffer()
        return refused

    def prepares(self, *, exactly_once: bool) -> bool:
        """Whether Arrow can write the files as Spark does: Parquet, with a schema known before the first record.

        An at-least-once pipeline recognises repeated records one by one, which only the process that writes can do.
        """
        options = self.options
        plain = options.format == "parquet" and not options.options and not options.partition_by
        return exactly_once and plain and (options.payload == "envelope" or options.columns is not None)

    def equipment(self) -> bytes:
        # Parsing declared columns needs a session, which only the driver has.
        schema = self._declared_rows().schema
        assert schema is not None, "declared"
        return bytes(schema.serialize())

    def equip(self, equipment: bytes) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(equipment))
        fields = self.options.payload == "fields"
        self._prepared = ParquetRows(Fields(schema, self.options) if fields else Envelopes())

    def prepare(self, batch: Batch) -> dict[int, str]:
        assert self._prepared is not None, "equipped"
        return self._prepared.add(batch)

    def prepared(self) -> bytes:
        assert self._prepared is not None, "something was prepared"
        return self._prepared.file()

    def take(self, pieces: Sequence[bytes]) -> None:
        number = next(self._numbers)
        for part, piece in enumerate(pieces):
            self._folder.create(f"{self._stage_name(number)}/part-{part:05d}.parquet", piece, alone=False)
        self._folder.settle(self._stage_name(number))
        self._collected.append(number)

    def stage(self) -> bytes | None:
        numbers = self._collect_stages()
        if not numbers:
            return None
        self._keep_schema()
        moves = [(self._stage_name(number), f"batch={self._fence:012d}-{number:012d}") for number in numbers]
        return msgspec.json.encode(StagedFiles(moves))

    def apply(self, intent: bytes) -> None:
        for name, to in msgspec.json.decode(intent, type=StagedFiles).moves:
            self._folder.move(name, to)

    def _prepare(self, session: "SparkSession") -> None:
        try:
            self._folder: Folder = folder_of(session, self.options.path)
            self._manifests = Manifests(self._folder, self.options.remember)
            self._manifests.recover()
            # A manifest of an earlier run may name a stage of the same number.
            self._run = uuid.uuid4().hex
        except (OSError, Py4JError) as error:
            raise FatalError(
                f"cannot write to {self.options.path}: {error_text(error)}",
                suggestion="correct `path`, or who may write there",
            ) from error
        self._agree_on_schema()

    def _agree_on_schema(self) -> None:
        """Use the schema of the files that exist; a declared schema must be the same."""
        if not isinstance(self._maker, Fields):
            return
        text = self._folder.read(_SCHEMA)
        if text is None:
            return
        there = pa.ipc.read_schema(pa.py_buffer(text))
        if self._maker.schema is not None and (change := schema_difference(there, self._maker.schema)):
            raise FatalError(
                f"`columns` are not those of the files at {self.options.path}: {change}",
                suggestion="write to another path, or declare the columns that are there",
            )
        self._maker.schema = there

    def _find_repeats(self, batch: Batch) -> set[int]:
        return self._manifests.written.among(batch)

    def _stage(self, session: "SparkSession", load: Load, number: int) -> int:
        name = self._stage_name(number)
        try:
            self._write_files(session, load.rows, name)
        except BaseException:
            # If it cannot be removed now, the next run removes it.
            with suppress(OSError, Py4JError):
                self._folder.remove(name)
            raise
        return number

    def _publish(self, session: "SparkSession", load: Load, number: int) -> None:
        self._keep_schema()
        # `recover` looks for the last batch only, so the one before must be in place first.
        self._move_committed()
        stage = self._stage_name(number)
        batch = self._manifests.commit(stage, [ids_of(piece.batch, piece.kept) for piece in load.pieces])
        self._unmoved = stage, batch_folder(batch)
        self._move_committed()

    def _move_committed(self) -> None:
        if self._unmoved is not None:
            self._folder.move(*self._unmoved)
            self._unmoved = None

    def _stage_name(self, number: int) -> str:
        """The folder of a stage; its files become visible with their manifest, or with the pipeline's transaction."""
        return stage_folder(f"{self._run}-{number}") if self._stages is None else f"{self._stages}/{number:012d}"

    def _keep_schema(self) -> None:
        """Store the schema. Called before the first rows are visible."""
        if not self._schema_kept:
            assert self._maker.schema is not None, "rows were made"
            self._folder.create(_SCHEMA, self._maker.schema.serialize().to_pybytes())
            self._schema_kept = True

    def _write_files(self, session: "SparkSession", rows: pa.RecordBatch, name: str) -> None:
        """Write rows to a folder that readers do not see, durably."""
        frame = frame_of(session, rows)
        writer = frame.write.format(self.options.format).mode("overwrite").options(**self.options.options)
        # Without _SUCCESS: the marker would be moved along with the data.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        if self.options.partition_by:
            writer = writer.partitionBy(*self.options.partition_by)
        writer.save(self._folder.url(name))
        if isinstance(self._folder, LocalFolder):
            self._check_shared(self._folder, name, rows.num_rows)
        self._folder.settle(name)

    def _check_shared(self, folder: LocalFolder, name: str, rows: int) -> None:
        """Count the rows: an executor elsewhere may have written to its own disk, which Spark takes for success."""
        files = folder.files(name)
        written = rows if files else 0
        if self.options.format == "parquet":
            written = sum(pq.read_metadata(file).num_rows for file in files)
        if written != rows:
            raise FatalError(
                f"of {rows} rows written to {self.options.path}, {written} are there",
                suggestion="give a path that this machine and all executors share",
            )
