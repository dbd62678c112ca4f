"""The Delta destination: appends rows to a Delta Lake table, without Spark and without Java."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Required, Unpack

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pydantic import Field, SecretStr

from conduit_connectors.column_policy import explain, new_fields
from conduit_connectors.delta.adopted_files import AdoptedFile, add_actions, move_files, takes_files
from conduit_connectors.delta.partitions import refuse_lost, why_not_divided
from conduit_connectors.delta.table import (
    added_files,
    concat,
    delta_field,
    local_folder,
    parse_columns,
    settle,
    table_errors,
    table_files,
    table_place,
)
from conduit_connectors.delta.task_files import DeltaTaskFiles, grant_table, hidden_folder
from conduit_connectors.file.disk import sync_above, sync_below
from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.lake_parts import HIDDEN, LakeDestination, TakenParts, why_one_writer
from conduit_connectors.objects.staged_parts import owned_folder
from conduit_connectors.policy_options import OnType, PolicyArguments, PolicyOptions
from conduit_connectors.table_rows import fit_batch
from conduit_py.sdk import Batch, Dataset, FatalError, Fenced, PartId, StageCleared

_STAGED = re.compile(r"(\d{12})-.+")
"""The files of the driver, and those of tasks with their grants and lists."""


class DestinationOptions(PolicyOptions):
    """Options of the Delta destination."""

    impossible = {  # noqa: RUF012 - a ClassVar of the base
        ("on_type", "widen"): "a Delta table gets another type for a column only by writing all of its files again"
    }

    path: str = Field(min_length=1, description='the table: a folder, or a URL such as "s3://bucket/orders"')
    columns: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description='to create a table that is missing: its columns in Delta\'s types, {"id": "long", "at": "date"}',
    )
    partition_by: list[str] = Field(default=[], description="columns by which a table that is created is partitioned")
    on_type: OnType = Field(
        default="refuse",
        description='a value that its column does not hold: "refuse" the record, or "text": a column of text gets it as'
        ' text, others refuse the record. "widen" is not possible',
    )
    storage: dict[str, SecretStr] = Field(
        default={}, description="options of the object store, such as its region and keys"
    )
    rows_max: int = Field(default=100_000, ge=1, description="how many rows a file gets at most")


class DestinationArguments(PolicyArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str]
    columns: Mapping[str, str] | None
    partition_by: Sequence[str]
    storage: Mapping[str, str | SecretStr]
    rows_max: int


class StagedCommit(msgspec.Struct, frozen=True):
    """The files that an exactly-once transaction makes visible. `version` grows with each one of a pipeline."""

    application: str
    version: int
    files: list[str]
    adopted: list[AdoptedFile] = []
    """Those of tasks of Spark. They become files of the table as they are."""


class Destination(LakeDestination[DestinationOptions]):
    """Appends the fields of `payload.after` as rows, in the types of the table.

    Exactly-once in an exactly-once pipeline (staged): each transaction is one commit of the table. The commit
    carries the number of the transaction as Delta's transaction id, and is not repeated. At-least-once in any
    other. A record that the table's types would change, or that has no structured payload, is refused.

    On Spark executors write the files, and the driver moves them into the table and commits them. A table with
    constraints or generated columns, or partitions by decimals, floats or bytes, is written by the driver from those
    files. A value that a partition does not keep, such as an empty text, is refused.
    """

    takes = dict

    _application: str | None = None
    """In an exactly-once pipeline: its application id in the table."""

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str:
        return f"the Delta table {table_place(self.options.path, self.options.storage)}"

    def datasets(self) -> Sequence[Dataset]:
        return [Dataset.at(self.options.path)]

    def probe(self) -> str:
        storage = {name: value.get_secret_value() for name, value in self.options.storage.items()}
        with table_errors(self.options.path):
            try:
                return f"version {DeltaTable(self.options.path, storage_options=storage).version()} of the table"
            except TableNotFoundError:
                if self.options.columns is not None:
                    return "there is no table yet; it will be created"
                raise FatalError(f"there is no Delta table at {self.options.path}", suggestion="check `path`") from None

    def open(self) -> None:
        self._storage = {name: value.get_secret_value() for name, value in self.options.storage.items()}
        with table_errors(self.options.path):
            self._table = self._open_table()
            self._schema = pa.schema(self._table.schema())
            self._partition_by = self._table.metadata().partition_columns
            self._files = table_files(self._table.table_uri, self._storage)
        self._rows: list[pa.Table] = []
        self._staged: list[str] = []
        self._ignored = IgnoredFields()
        self.drift_count = self._ignored.drift

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        for intent in intents:
            self.apply(intent)
        with table_errors(self.options.path):
            self._table.update_incremental()
            applied = self._table.transaction_version(f"conduit-py/{owner}")
        if applied is not None and applied >> 32 > fence:
            # What it writes would count as applied before, and be passed over.
            raise Fenced(
                f"{self.options.path} has a newer run of pipeline {owner!r} than this one, which has fence {fence}: "
                "another process runs it, or the state directory is not the one that was used before",
                suggestion="run a pipeline in one place at a time, always with the same state directory",
            )
        folder = f"{HIDDEN}/{owned_folder(owner)}"
        with table_errors(self.options.path):
            for file in self._files.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
                # Some object stores list the folder itself too.
                if (stage := _STAGED.fullmatch(file.base_name)) and int(stage[1]) <= fence:
                    self._files.delete_file(file.path)
        self._application = f"conduit-py/{owner}"
        # A replaced run stages under a lower fence. It never commits, so its files are never applied.
        self._folder, self._fence, self._count = folder, fence, 0

    def write(self, batch: Batch) -> dict[int, str]:
        refused = self.keep_rows(batch)
        if self._application is not None and sum(rows.num_rows for rows in self._rows) >= self.options.rows_max:
            self._stage_rows()
        return refused

    def keep_rows(self, batch: Batch) -> dict[int, str]:
        unfit = self._add_columns(batch) if self.options.on_new_field == "add" else {}
        if self.options.ignores_new_fields and self._ignored is not None:
            self._ignored.count(batch, self._schema.names, self.options.path)
        rows, refused = fit_batch(
            batch, self._schema, more=self.options.ignores_new_fields, texts=self.options.on_type == "text"
        )
        explain(refused, unfit, batch)
        if rows is not None and (rows := refuse_lost(rows, self._partition_by, refused, len(batch))) is not None:
            self._rows.append(rows)
        return refused

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._append(concat(rows), None)
        if adopted := self._seal():
            self._show([], adopted, None)
            self._remove_waiting([], adopted)

    def stage(self) -> bytes | None:
        self._stage_rows()
        files, self._staged = self._staged, []
        if adopted := self._seal():
            # One commit has all of a transaction, so those of the driver become files of the table too.
            files, adopted = [], [*map(AdoptedFile.of, files), *adopted]
        if not files and not adopted:
            return None
        assert self._application is not None
        self._count += 1
        return msgspec.json.encode(StagedCommit(self._application, self._fence << 32 | self._count, files, adopted))

    def apply(self, intent: bytes) -> None:
        stage = msgspec.json.decode(intent, type=StagedCommit)
        with table_errors(self.options.path):
            self._table.update_incremental()
            done = (self._table.transaction_version(stage.application) or -1) >= stage.version
        if not done:
            self._show(stage.files, stage.adopted, Transaction(stage.application, stage.version))
        self._remove_waiting(stage.files, stage.adopted)

    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        return why_one_writer(self.options) or why_not_divided(self.options.columns, self.options.partition_by)

    def grant(self) -> bytes:
        uri, owned = self._table.table_uri, self._application is not None
        with table_errors(self.options.path):
            if self._parts is None:
                place = hidden_folder(uri, self._storage, self.options.path)
                granted = place.grant(self._folder.rpartition("/")[2] if owned else None, self._fence if owned else 0)
                self._parts = TakenParts(place, granted)
        return grant_table(self._parts.grant, uri, self._schema, self._partition_by)

    @property
    def rows_max(self) -> int:
        return self.options.rows_max

    def clear_staged(self, age_seconds: float, owner: str | None) -> StageCleared:
        storage = {name: value.get_secret_value() for name, value in self.options.storage.items()}
        with table_errors(self.options.path):
            try:
                uri = DeltaTable(self.options.path, storage_options=storage).table_uri
            except TableNotFoundError:
                return StageCleared()
            return hidden_folder(uri, storage, self.options.path).clear_dead(age_seconds, owner)

    def open_task(self, grant: bytes, part: PartId) -> DeltaTaskFiles:
        storage = {name: value.get_secret_value() for name, value in self.options.storage.items()}
        task = DeltaTaskFiles(grant, part, storage, self.options.path)
        self._partition_by = task.partition_by
        return task

    def errors(self) -> AbstractContextManager[None]:
        return table_errors(self.options.path)

    def _seal(self) -> list[AdoptedFile]:
        if self._parts is None:
            return []
        with table_errors(self.options.path):
            return [AdoptedFile.of(each.path, each.size, each.about) for each in self._parts.seal()]

    def _show(self, files: Sequence[str], adopted: Sequence[AdoptedFile], transaction: Transaction | None) -> None:
        """Commit the rows of files that wait, or those files, and remove what is not needed any more."""
        with table_errors(self.options.path):
            if adopted and takes_files(self._table, self._files, adopted):
                self._adopt(adopted, transaction)
            else:
                # In their own types: they may have columns that the table is about to get.
                tables = [pq.read_table(name, filesystem=self._files, partitioning=None) for name in files]
                tables += [each.read(self._files, pa.schema(self._table.schema())) for each in adopted]
                self._append(concat(tables), transaction)

    def _adopt(self, adopted: Sequence[AdoptedFile], transaction: Transaction | None) -> None:
        move_files(self._files, adopted)
        self._settle([each.name for each in adopted])
        properties = CommitProperties(app_transactions=[transaction]) if transaction is not None else None
        actions, schema, by = add_actions(self._files, adopted), self._table.schema(), self._partition_by
        self._table.create_write_transaction([*actions], "append", schema, by, commit_properties=properties)
        self._settle([f"_delta_log/{self._table.version():020d}.json"])

    def _remove_waiting(self, files: Sequence[str], adopted: Sequence[AdoptedFile]) -> None:
        waiting = [*files, *(each.waits_as for each in adopted)]
        with table_errors(self.options.path):
            for name in waiting:
                if self._files.get_file_info(name).type != pafs.FileType.NotFound:
                    self._files.delete_file(name)
            if self._parts is not None:
                self._parts.mark_visible(waiting)

    def _open_table(self) -> DeltaTable:
        options = self.options
        try:
            return DeltaTable(options.path, storage_options=self._storage)
        except TableNotFoundError:
            if options.columns is None:
                raise FatalError(
                    f"there is no Delta table at {options.path}",
                    suggestion='correct `path`, or give `columns` to create it: {"id": "long", "name": "string"}',
                ) from None
        schema = parse_columns(options.columns)
        # Another process may create it at the same time.
        table = DeltaTable.create(
            options.path, schema, "ignore", partition_by=options.partition_by, storage_options=self._storage
        )
        if (folder := local_folder(table.table_uri)) is not None:
            sync_below(folder, (folder / "_delta_log").iterdir())
            sync_above(folder)
        return table

    def _stage_rows(self) -> None:
        """Write what is buffered under a name with an underscore, which readers of the table skip."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        name = f"{self._folder}/{self._fence:012d}-{self._count:09d}-{len(self._staged):06d}.parquet"
        with table_errors(self.options.path):
            if local_folder(self._table.table_uri) is not None:
                self._files.create_dir(self._folder)
            pq.write_table(concat(rows), name, filesystem=self._files)
            self._settle([name])
        self._staged.append(name)

    def _add_columns(self, batch: Batch) -> dict[str, str]:
        """Give fields that are new a column, which the table gets in the commit of the rows; return why some get none.

        The first values decide its type.
        """
        new = new_fields(batch, set(self._schema.names))
        if not new:
            return {}
        with table_errors(self.options.path):
            # Others may have added it meanwhile.
            self._table.update_incremental()
            there = pa.schema(self._table.schema())
        known = {*self._schema.names}
        self._schema = pa.schema([*self._schema, *(field for field in there if field.name not in known)])
        unfit: dict[str, str] = {}
        for name, kind in new.items():
            try:
                if name not in self._schema.names:
                    self._schema = self._schema.append(delta_field(name, kind, self._schema.names))
            except ValueError as error:
                unfit[name] = f"the field {name!r} gets no column: {error}"
        return unfit

    def _append(self, rows: pa.Table, transaction: Transaction | None) -> None:
        properties = CommitProperties(app_transactions=[transaction]) if transaction is not None else None
        more = {*rows.column_names} - {field.name for field in self._table.schema().fields}
        with table_errors(self.options.path):
            write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge" if more else None,
                commit_properties=properties,
            )
            log = f"_delta_log/{self._table.version():020d}.json"
            self._settle([*added_files(self._files.open_input_file(log).read()), log])

    def _settle(self, names: Sequence[str]) -> None:
        """Sync local files. Object stores make a file durable when it is closed."""
        settle(self._table.table_uri, names)
