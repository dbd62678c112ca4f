"""The destination of objects: datasets of JSON lines, CSV, Avro or Parquet, in a folder or a bucket."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Required, Self, Unpack

from pydantic import Field, field_validator, model_validator

from conduit_connectors.file.csv_format import Delimiter
from conduit_connectors.objects.dataset_destination import DatasetDestination, DatasetOptions, why_columns_stay_here
from conduit_connectors.objects.dataset_place import DatasetPlace, LocalPlace
from conduit_connectors.objects.dataset_writer import DatasetWriter, FileLimits
from conduit_connectors.objects.partition import PartitionBy
from conduit_connectors.objects.pattern import CLOUD_SCHEMES, has_wildcards, parse_place
from conduit_connectors.objects.remote_place import RemotePlace
from conduit_connectors.objects.row_formats import (
    COMPRESSIONS,
    DatasetCompression,
    DatasetFormat,
    RowFormat,
    TableFormat,
    TextFormat,
)
from conduit_connectors.objects.source_options import StoreArguments, StoreOptions
from conduit_connectors.policy_options import OnNewField, OnType, PolicyArguments
from conduit_connectors.probe_path import probe_writable
from conduit_py.sdk import Dataset, KeptOrder


class DestinationOptions(StoreOptions, DatasetOptions):
    """Options of the destination of objects."""

    url: str = Field(
        min_length=1, description='the folder that gets the files: a path, or an address such as "s3://bucket/orders"'
    )
    format: DatasetFormat = Field(default="json", description="what a file holds; json is one object per line")
    partition_by: list[str] = Field(
        default=[],
        description='the folders of a record: fields, or parts of a time: ["country", "day(at)"] makes '
        "country=DE/at_day=2026-11-17/; year, month, day and hour are known",
    )
    columns: dict[str, str] | list[str] | None = Field(
        default=None,
        min_length=1,
        description='the columns: of CSV their names, of Avro and Parquet with their types, {"id": "int64"}; '
        "None: those of the files before, else of the first records",
    )
    on_new_field: OnNewField = Field(
        default="refuse",
        description='a field that has no column in Avro or Parquet: "refuse" the record, "add" the column to later'
        ' files, or "ignore" the field; JSON takes all, and CSV refuses others than its columns',
    )
    on_type: OnType = Field(
        default="refuse",
        description='a value that its column in Avro or Parquet does not hold: "refuse" the record, "widen" the column'
        ' of later files to a type that holds it exactly, or "text": as "widen", and a column of text gets it as text',
    )
    compression: DatasetCompression = Field(
        default="default",
        description="how files are compressed; by default Parquet with snappy, Avro with deflate, others not at all",
    )
    delimiter: Delimiter = ","

    @field_validator("url")
    @classmethod
    def _names_a_folder(cls, url: str) -> str:
        if has_wildcards(parse_place(url).path):
            raise ValueError("it must name one folder, without wildcards")
        return url

    @field_validator("partition_by")
    @classmethod
    def _names_partitions(cls, fields: list[str]) -> list[str]:
        PartitionBy(fields)
        return fields

    @model_validator(mode="after")
    def _fits_the_format(self) -> Self:
        known = COMPRESSIONS[self.format]
        if self.compression not in ("default", *known):
            raise ValueError(f"{self.format} can be compressed with {', '.join(known)}, not {self.compression!r}")
        wanted = {"json": None, "csv": list}.get(self.format, dict)
        if self.columns is not None and (wanted is None or not isinstance(self.columns, wanted)):
            raise ValueError("columns is a list of names for csv, names with types for avro and parquet")
        if self.format in ("json", "csv") and (self.on_new_field, self.on_type) != ("refuse", "refuse"):
            raise ValueError(f"on_new_field and on_type are for avro and parquet: {self.format} has no typed columns")
        return self


class DestinationArguments(StoreArguments, PolicyArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    format: DatasetFormat
    partition_by: Sequence[str]
    columns: Mapping[str, str] | Sequence[str] | None
    rows_max: int
    size_max: int
    seconds_max: float
    compression: DatasetCompression
    delimiter: str


class Destination(DatasetDestination[DestinationOptions]):
    """Writes the fields of `payload.after` as rows of files in a folder, here or in a store of objects.

    Exactly-once in an exactly-once pipeline (staged): the files of a transaction are complete and durable before its
    commit, below `_conduit`, and get their names after it. On this machine that is a rename. A store of objects copies
    the object itself and then removes the first one. So a process that is killed between the two makes the same
    object again: it replaces itself, unless somebody moved it away in that moment. At-least-once in any
    other: records count as handled when their file is complete, durable and visible.

    Readers see whole files only: everything else has a name that begins with an underscore, which readers of datasets
    skip. Names begin with the time (`part-20261117T114500…`), so their order within a folder is the order of writing.
    Files are never changed, so others may read, move and delete them; the folder `_conduit` must stay.

    With `partition_by` rows are in folders such as `country=DE/`, which readers take as a column. The values
    are escaped, so that no record chooses another folder. A record whose value cannot name a folder is refused.
    At most 32 folders have an open file; one more makes the oldest file complete.

    All files have the same columns, but JSON lines, which have none: those that `columns` declares, else those of
    earlier files, which `_conduit` keeps, else those of the first records. What a format would have to change to
    store it is refused. With `on_new_field` and `on_type` records may change the columns of later Avro and Parquet
    files; earlier ones stay as they are.

    Before a file is uploaded, it is on the disk of this machine, in its folder for temporary files.
    """

    # Most writes go into a buffer. When they wait for a store, the runtime moves them to a thread.
    blocking = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def order(self) -> KeptOrder:
        # M6: files become visible one after another, and one of a folder may have later records than that of another.
        return KeptOrder.PARTITION if self.options.partition_by else KeptOrder.EVERYTHING

    @property
    def claims(self) -> str:
        # Files wait in a folder that is named for the pipeline: another node of it would remove them.
        return f"the folder {self.options.label_folder(self.options.url)}"

    def data_file(self) -> Path | None:
        place = parse_place(self.options.url)
        return Path(place.path) if place.scheme == "file" else None

    def datasets(self) -> Sequence[Dataset]:
        return [Dataset.at(self.options.url)]

    def probe(self) -> str:
        scheme, root, path = parse_place(self.options.url)
        if scheme == "file":
            return probe_writable(Path(path))
        store = self.options.open_store(scheme, root)
        try:
            there = next(iter(store.list(path.rstrip("/"), None)), None)
        finally:
            store.close()
        # Nothing is written, so it is not yet clear whether it may be.
        return f"the store answers, and there is {'something' if there else 'nothing yet'} at {path or root}"

    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        options, scheme = self.options, parse_place(self.options.url).scheme
        if scheme != "file" and scheme not in CLOUD_SCHEMES:
            return f"only one process may write through {scheme}://"
        if options.format == "csv":
            return "its columns are those of the first file, which only the driver has"
        return None if options.format == "json" else why_columns_stay_here(options.columns, options)

    def make_writer(self) -> DatasetWriter:
        options = self.options
        scheme, root, path = parse_place(options.url)
        place: DatasetPlace
        if scheme == "file":
            place = LocalPlace(Path(path))
        else:
            place = RemotePlace(options.open_store(scheme, root), path.rstrip("/"))
        limits = FileLimits(options.rows_max, options.size_max)
        return DatasetWriter(place, self._format(place), limits, options.url)

    def _format(self, place: DatasetPlace) -> RowFormat:
        options = self.options
        partition = PartitionBy(options.partition_by)
        compression = COMPRESSIONS[options.format][0] if options.compression == "default" else options.compression
        if options.format == "json" or options.format == "csv":
            columns = options.columns if isinstance(options.columns, list) else None
            return TextFormat(place, partition, options.format, compression, columns, options.delimiter)
        return TableFormat(place, partition, options.format, compression, options.columns, options, options.url)
