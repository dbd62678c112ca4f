"""The Parquet destination: rows as files in a folder, on this machine, without Spark and without Java."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Required, Unpack

from pydantic import Field

from conduit_connectors.objects.dataset_destination import DatasetDestination, DatasetOptions, why_columns_stay_here
from conduit_connectors.objects.dataset_place import LocalPlace
from conduit_connectors.objects.dataset_writer import DatasetWriter, FileLimits
from conduit_connectors.objects.partition import PartitionBy
from conduit_connectors.objects.row_formats import TableFormat
from conduit_connectors.policy_options import DEPRECATED, OLD_SPELLING, PolicyArguments
from conduit_connectors.probe_path import probe_writable

Compression = Literal["snappy", "zstd", "gzip", "lz4", "none"]


class DestinationOptions(DatasetOptions):
    """Options of the Parquet destination."""

    path: Path = Field(description="the folder that gets the files; it is created when missing")
    columns: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description='the columns and their types, {"id": "int64", "at": "timestamp[us]"}; '
        "None: those of the files before, else of the first records",
    )
    drift: Literal["refuse", "ignore"] | None = Field(
        default=None, description=OLD_SPELLING, json_schema_extra=DEPRECATED
    )
    seconds_max: float = Field(
        default=1.0, gt=0, description="how long rows wait for more of their file, outside exactly-once pipelines"
    )
    compression: Compression = Field(default="snappy", description="how pages are compressed")

    @property
    def old_spelling(self) -> str | None:
        return self.drift


class DestinationArguments(PolicyArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    columns: Mapping[str, str] | None
    drift: Literal["refuse", "ignore"] | None
    rows_max: int
    size_max: int
    seconds_max: float
    compression: Compression


class Destination(DatasetDestination[DestinationOptions]):
    """Writes the fields of `payload.after` as rows of Parquet files in one folder.

    Exactly-once in an exactly-once pipeline (staged): the files of a transaction are complete and on the disk before
    its commit, and are renamed into the folder after it. At-least-once in any other: records count as handled when
    their file is complete, on the disk and renamed into the folder.

    A reader of the folder sees whole files only. Until then they are in its folder `_conduit`, which readers of
    Parquet skip, as everything that begins with an underscore. Names begin with the time (`part-20261117T114500…`), so
    their order is the order of writing. Files are never changed, so they may be read, moved and deleted by others; the
    folder `_conduit` must stay.

    All files have the same columns: those that `columns` declares, else those of earlier files, which `_conduit/schema`
    keeps, else those of the first records that arrive. What Arrow would have to change to store it is refused. So is a
    record with a field that has no column, unless the field is null.

    Records may change the columns of later files: with `on_new_field="add"` these have more columns, with
    `on_type="widen"` larger integers, double floats and decimals with more digits. Earlier files stay as they are, so
    readers must take the columns of all files together (Arrow: `pyarrow.unify_schemas`, Spark: `mergeSchema`).
    """

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str:
        # Files wait in a folder that is named for the pipeline: another node of it would remove them.
        return f"the folder {os.path.realpath(self.options.path)}"

    def data_file(self) -> Path:
        return self.options.path

    def probe(self) -> str:
        return probe_writable(self.options.path)

    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        return why_columns_stay_here(self.options.columns, self.options)

    def make_writer(self) -> DatasetWriter:
        options, shown = self.options, str(self.options.path)
        place = LocalPlace(options.path)
        rows = TableFormat(place, PartitionBy(()), "parquet", options.compression, options.columns, options, shown)
        return DatasetWriter(place, rows, FileLimits(options.rows_max, options.size_max), shown)
