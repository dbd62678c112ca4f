"""The Parquet destination: rows as files in a folder, on this machine, without Spark and without Java."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Required, TypedDict, Unpack

from pydantic import Field

from conduit_connectors.objects.dataset_place import LocalPlace
from conduit_connectors.objects.dataset_writer import DatasetWriter, FileLimits
from conduit_connectors.objects.partition import PartitionBy
from conduit_connectors.objects.row_formats import TableFormat
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch

Compression = Literal["snappy", "zstd", "gzip", "lz4", "none"]


class DestinationOptions(sdk.Options):
    """Options of the Parquet destination."""

    path: Path = Field(description="the folder that gets the files; it is created when missing")
    columns: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description='the columns and their types, {"id": "int64", "at": "timestamp[us]"}; '
        "None: those of the files before, else of the first records",
    )
    drift: Literal["refuse", "ignore"] = Field(
        default="refuse", description='a record with other fields: "refuse" it, or "ignore" those fields'
    )
    rows_max: int = Field(default=1_000_000, ge=1, description="after how many rows a file is complete")
    size_max: int = Field(default=256 * 1024 * 1024, ge=1, description="after about how many bytes a file is complete")
    seconds_max: float = Field(
        default=1.0, gt=0, description="how long rows wait for more of their file, outside exactly-once pipelines"
    )
    compression: Compression = Field(default="snappy", description="how pages are compressed")


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    columns: Mapping[str, str] | None
    drift: Literal["refuse", "ignore"]
    rows_max: int
    size_max: int
    seconds_max: float
    compression: Compression


class Destination(sdk.StagedDestination[DestinationOptions]):
    """Writes the fields of `payload.after` as rows of Parquet files in one folder.

    Exactly-once in an exactly-once pipeline (staged): the files of a transaction are complete and on the disk before
    its commit, and are renamed into the folder after it. At-least-once in any other: records count as handled when
    their file is complete, on the disk and renamed into the folder.

    A reader of the folder sees whole files only. Until then they are in its folder `_conduit`, which readers of
    Parquet skip, as everything that begins with an underscore. Names begin with the time (`part-20261117T114500…`), so
    their order is the order of writing. Files are never changed, so they may be read, moved and deleted by others; the
    folder `_conduit` must stay.

    All files have the same columns: those that `columns` declares, else those of earlier files, which `_conduit/schema`
    keeps, else those of the first records that arrive. What Arrow would have to change to store it is refused, and a
    record with a field that has no column too, unless the field is null or `drift` is "ignore".
    """

    acks: ClassVar[AckMode] = AckMode.FLUSH
    takes = dict

    _writer: DatasetWriter | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def flush_seconds(self) -> float:
        return self.options.seconds_max

    @property
    def flush_records(self) -> int:
        return self.options.rows_max

    def data_file(self) -> Path:
        return self.options.path

    def open(self) -> None:
        options = self.options
        place, partition = LocalPlace(options.path), PartitionBy(())
        more = options.drift == "ignore"
        format = TableFormat(place, partition, "parquet", options.compression, options.columns, more=more)
        self._writer = DatasetWriter(place, format, FileLimits(options.rows_max, options.size_max), str(options.path))
        self._writer.open()

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        assert self._writer is not None
        self._writer.begin(owner, fence, intents)

    def write(self, batch: Batch) -> dict[int, str]:
        assert self._writer is not None
        return self._writer.write(batch)

    def flush(self) -> None:
        assert self._writer is not None
        self._writer.flush()

    def stage(self) -> bytes | None:
        assert self._writer is not None
        return self._writer.stage()

    def apply(self, intent: bytes) -> None:
        assert self._writer is not None
        self._writer.apply(intent)

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
