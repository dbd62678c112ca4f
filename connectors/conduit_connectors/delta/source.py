"""The Delta source: the rows of a Delta Lake table, and then what each later version changes."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Required, Unpack
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pydantic import Field, SecretStr

from conduit_connectors.delta.table import table_errors
from conduit_connectors.lake_source import LakeArguments, LakeFile, LakeOptions, LakeSource
from conduit_py.sdk import Dataset, FatalError

_STRANGE = frozenset({"deletionVectors", "columnMapping", "v2Checkpoint", "variantType"})


class SourceOptions(LakeOptions):
    """Options of the Delta source."""

    path: str = Field(min_length=1, description='the table: a folder, or a URL such as "s3://bucket/orders"')
    storage: dict[str, SecretStr] = Field(
        default={}, description="options of the object store, such as its region and keys"
    )


class SourceArguments(LakeArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str]
    storage: Mapping[str, str | SecretStr]


class _File(msgspec.Struct):
    path: str
    data_change: bool = msgspec.field(name="dataChange", default=True)
    partition: dict[str, str | None] | None = msgspec.field(name="partitionValues", default=None)
    vector: Any = msgspec.field(name="deletionVector", default=None)


class _Metadata(msgspec.Struct):
    id: str
    schema: str = msgspec.field(name="schemaString")
    configuration: dict[str, str | None] = {}


class _Protocol(msgspec.Struct):
    features: list[str] | None = msgspec.field(name="readerFeatures", default=None)


class _LogLine(msgspec.Struct):
    """An action of a commit. Others than these change nothing that a reader sees."""

    add: _File | None = None
    remove: _File | None = None
    cdc: _File | None = None
    metadata: _Metadata | None = msgspec.field(name="metaData", default=None)
    protocol: _Protocol | None = None


_LINES = msgspec.json.Decoder(_LogLine)


class Source(LakeSource[SourceOptions]):
    """The rows of the newest version of a Delta table, file after file, and then what each later version changes.

    Resumes exactly after any row; at-least-once on its own, exactly-once with a destination that can. It ends at the
    newest version, and the next run goes on with the versions since then; with `tail` it waits for them.

    Added rows are records. Updates and deletes are read from a table that keeps its changes
    (`delta.enableChangeDataFeed`): with the values before a delete, and after an update. Of any other table a version
    that deletes, updates or overwrites rows is an error, because nothing tells which rows they are. Compaction changes
    no rows and is passed over. A version must still be there when it is read: one whose files were vacuumed, or whose
    log was cleaned, is an error. So is a column that is dropped, or whose type changes; new columns are no problem.
    Tables with deletion vectors or mapped columns are refused.
    """

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[Dataset]:
        return [Dataset.at(self.options.path)]

    def open_table(self) -> tuple[str, int]:
        options = self.options
        self._storage = {name: value.get_secret_value() for name, value in options.storage.items()}
        with table_errors(options.path):
            try:
                table = DeltaTable(options.path, storage_options=self._storage)
            except TableNotFoundError:
                raise FatalError(f"there is no Delta table at {options.path}", suggestion="correct `path`") from None
            self._newest = table
            self._store = pafs.PyFileSystem(DeltaStorageHandler(table.table_uri, self._storage))
            _check_features(options.path, table.protocol().reader_features or ())
            schema = pa.schema(table.schema())
        for name in options.key or ():
            if name not in schema.names:
                raise FatalError(f"there is no column {name!r}", suggestion=f"columns are {', '.join(schema.names)}")
        self._dataset = lru_cache(maxsize=2)(self._load)
        self._seen: pa.Schema | None = None
        return str(table.metadata().id), table.version()

    def first_files(self, version: int) -> list[LakeFile]:
        dataset = self._dataset(version)
        self._seen = dataset.schema
        return [LakeFile(path) for path in sorted(fragment.path for fragment in dataset.get_fragments())]

    def next_version(self, version: int) -> int | None:
        if self._newest.version() <= version:
            with table_errors(self.options.path):
                self._newest.update_incremental()
        return version + 1 if self._newest.version() > version else None

    def changed_files(self, version: int) -> list[LakeFile]:
        actions = self._read_log(version)
        for action in actions:
            if action.protocol is not None:
                _check_features(self.options.path, action.protocol.features or ())
            for file in (action.add, action.remove):
                if file is not None and file.vector is not None:
                    raise _no_reader(self.options.path, "deletionVectors")
        if any(action.metadata is not None for action in actions) or self._seen is None:
            self._check_schema(version)
        self._partitions = {
            unquote(action.cdc.path): action.cdc.partition or {} for action in actions if action.cdc is not None
        }
        if self._partitions:
            return [LakeFile(path, "changes") for path in sorted(self._partitions)]
        gone = sorted(unquote(each.remove.path) for each in actions if each.remove and each.remove.data_change)
        added = sorted(unquote(each.add.path) for each in actions if each.add and each.add.data_change)
        if gone and self._configuration(version).get("delta.enableChangeDataFeed") != "true":
            raise FatalError(
                f"version {version} of {self.options.path} deletes, updates or overwrites rows, and the table does not"
                " keep which ones",
                suggestion="set delta.enableChangeDataFeed on tables that are followed; to start with the table as it"
                " is now, give the source a new id",
            )
        # Before the others: an overwrite deletes what was there and then adds.
        return [*(LakeFile(path, "deleted") for path in gone), *(LakeFile(path) for path in added)]

    def read_file(self, version: int, file: LakeFile) -> Iterator[pa.Table]:
        if file.kind == "changes":
            return self._read_changes(file.name)
        dataset = self._dataset(version - 1 if file.kind == "deleted" else version)
        [fragment] = [each for each in dataset.get_fragments() if each.path == file.name]
        return self._read_fragment(fragment, dataset.schema)

    def _read_fragment(self, fragment: pads.Fragment, schema: pa.Schema) -> Iterator[pa.Table]:
        with self._reading():
            for batch in fragment.to_batches(schema=schema, use_threads=False):
                yield pa.Table.from_batches([batch])

    def _read_changes(self, path: str) -> Iterator[pa.Table]:
        assert self._seen is not None
        with self._reading(), self._store.open_input_file(path) as opened:
            for batch in pq.ParquetFile(opened).iter_batches():
                table = pa.Table.from_batches([batch])
                for name, text in self._partitions[path].items():
                    if name not in table.column_names:
                        value = pa.array([text], pa.string()).cast(self._seen.field(name).type)[0]
                        column = pa.repeat(value, table.num_rows)
                        table = table.append_column(self._seen.field(name), column)
                yield table

    def _reading(self) -> "_FileErrors":
        return _FileErrors(self.options.path)

    def _load(self, version: int) -> pads.Dataset:
        with table_errors(self.options.path), self._reading():
            table = DeltaTable(self.options.path, version=version, storage_options=self._storage)
            self._settings = dict(table.metadata().configuration)
            return table.to_pyarrow_dataset()

    def _configuration(self, version: int) -> Mapping[str, str]:
        with table_errors(self.options.path), self._reading():
            table = DeltaTable(self.options.path, version=version, storage_options=self._storage)
            return dict(table.metadata().configuration)

    def _check_schema(self, version: int) -> None:
        """Remember the columns of a version. Raises FatalError if one is gone, or has another type."""
        schema = self._dataset(version).schema
        for field in self._seen or ():
            if field.name not in schema.names or schema.field(field.name).type != field.type:
                raise FatalError(
                    f"version {version} of {self.options.path} drops the column {field.name!r}, or changes its type",
                    suggestion="give the source a new id to read the table from its start as it is now",
                )
        self._seen = schema

    def _read_log(self, version: int) -> list[_LogLine]:
        with table_errors(self.options.path), self._reading():
            content = self._store.open_input_file(f"_delta_log/{version:020d}.json").read()
            return [_LINES.decode(line) for line in content.splitlines() if line.strip()]


class _FileErrors:
    """Raises FatalError for files of the table that are gone."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError | DeltaError | IndexError) or "not found" in str(error).lower():
            assert error is not None
            raise FatalError(
                f"files of a version of {self._path} that was not read to its end are gone: {error}",
                suggestion="vacuum and clean the log later than the source reads; to start with the table as it is now,"
                " give the source a new id",
            ) from error


def _check_features(path: str, features: Sequence[str]) -> None:
    for feature in features:
        if feature in _STRANGE:
            raise _no_reader(path, feature)


def _no_reader(path: str, feature: str) -> FatalError:
    return FatalError(
        f"the Delta table {path} uses {feature}, which this source does not read",
        suggestion="use Spark, or drop that feature of the table",
    )
