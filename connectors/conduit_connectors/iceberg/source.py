"""The Iceberg source: the rows of a table, and then what each later snapshot adds."""

from collections.abc import Iterator, Mapping
from typing import Required, Unpack

import pyarrow as pa
from pydantic import Field, SecretStr
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Snapshot

from conduit_connectors.iceberg.catalog import catalog_label, connect, open_table, table_errors
from conduit_connectors.lake_source import LakeArguments, LakeFile, LakeOptions, LakeSource
from conduit_py.sdk import Dataset, FatalError


class SourceOptions(LakeOptions):
    """Options of the Iceberg source."""

    table: str = Field(pattern=r"[^.].*\.[^.]+", description='the table with its namespace: "sales.orders"')
    catalog: dict[str, SecretStr] = Field(
        default={},
        description='the catalog as pyiceberg describes it: {"type": "rest", "uri": "http://…"}; its "name" may be one'
        " of .pyiceberg.yaml",
    )


class SourceArguments(LakeArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    table: Required[str]
    catalog: Mapping[str, str | SecretStr]


class Source(LakeSource[SourceOptions]):
    """The rows of the current snapshot of an Iceberg table, file after file, and then what each later snapshot adds.

    Resumes exactly after any row; at-least-once on its own, exactly-once with a destination that can. It ends at the
    current snapshot, and the next run goes on with those since then; with `tail` it waits for them.

    A snapshot that deletes or overwrites rows is an error, because it does not say which rows they are. One that only
    rewrites files is passed over. The snapshot that was read in part, and those after it, must still be there: expired
    ones are an error, and so is a table that was rolled back behind them. Rows have the columns of the table at their
    snapshot. Positional deletes are read; the library refuses others.
    """

    _catalog: Catalog | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset(catalog_label(self.options.catalog), self.options.table)]

    def teardown(self) -> None:
        super().teardown()
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
            # With it go the connections to the store.
            vars(self).pop("_table", None)

    def open_table(self) -> tuple[str, int]:
        self._catalog = connect(self.options.catalog)
        self._table = open_table(self._catalog, self.options.table)
        for name in self.options.key or ():
            if name not in self._table.schema().column_names:
                names = ", ".join(self._table.schema().column_names)
                raise FatalError(f"there is no column {name!r}", suggestion=f"columns are {names}")
        current = self._table.current_snapshot()
        # A table without a snapshot has no rows, and its first one is after this.
        return str(self._table.metadata.table_uuid), 0 if current is None else current.snapshot_id

    def first_files(self, version: int) -> list[LakeFile]:
        if version == 0:
            self._tasks: dict[str, FileScanTask] = {}
            return []
        snapshot = self._snapshot(version)
        with table_errors(self.options.table):
            tasks = self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            self._tasks = {task.file.file_path: task for task in tasks}
        return [LakeFile(path) for path in sorted(self._tasks)]

    def next_version(self, version: int) -> int | None:
        with table_errors(self.options.table):
            self._table.refresh()
        following = None
        snapshot = self._table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != version:
            following, parent = snapshot.snapshot_id, snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
            if snapshot is None and (parent is not None or version != 0):
                raise self._gone(version)
        if following is None and snapshot is None and version != 0:
            raise self._gone(version)
        return following

    def changed_files(self, version: int) -> list[LakeFile]:
        self._tasks = {}
        if version == 0:
            return []
        snapshot = self._snapshot(version)
        operation = snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND
        if operation is Operation.REPLACE:
            return []
        if operation is not Operation.APPEND:
            raise FatalError(
                f"snapshot {version} of {self.options.table} deletes or overwrites rows, and does not tell which",
                suggestion="follow tables to which rows are added only; to start with the table as it is now, give the"
                " source a new id",
            )
        with table_errors(self.options.table):
            self._tasks = {file.file_path: FileScanTask(file) for file in self._added_files(snapshot)}
        return [LakeFile(path) for path in sorted(self._tasks)]

    def read_file(self, version: int, file: LakeFile) -> Iterator[pa.Table]:
        snapshot = self._snapshot(version)
        try:
            with table_errors(self.options.table):
                scan = ArrowScan(self._table.metadata, self._table.io, self._schema_of(snapshot), AlwaysTrue())
                for batch in scan.to_record_batches([self._tasks[file.name]]):
                    yield pa.Table.from_batches([batch])
        except FatalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise self._gone(version) from error
            raise

    def _added_files(self, snapshot: Snapshot) -> list[DataFile]:
        return [
            entry.data_file
            for manifest in snapshot.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(self._table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in (None, snapshot.snapshot_id)
        ]

    def _schema_of(self, snapshot: Snapshot) -> Schema:
        schemas = self._table.schemas()
        return (
            schemas.get(snapshot.schema_id or 0, self._table.schema())
            if snapshot.schema_id is not None
            else (self._table.schema())
        )

    def _snapshot(self, version: int) -> Snapshot:
        snapshot = self._table.snapshot_by_id(version)
        if snapshot is None:
            raise self._gone(version)
        return snapshot

    def _gone(self, version: int) -> FatalError:
        return FatalError(
            f"snapshot {version} of {self.options.table}, up to which it was read, is gone: expired, or rolled back",
            suggestion="expire snapshots later than the source reads; to start with the table as it is now, give the"
            " source a new id",
        )
