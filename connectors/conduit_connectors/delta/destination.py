"""The Delta destination: appends rows to a Delta Lake table, without Spark and without Java."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Required, Unpack
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pydantic import Field, SecretStr

from conduit_connectors.column_policy import check_new_column, explain, new_fields
from conduit_connectors.file.disk import sync_above, sync_below
from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.policy_options import OnType, PolicyArguments, PolicyOptions
from conduit_connectors.table_rows import fit_batch
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError, Fenced, TransientError

_DENIED = re.compile(
    "<Code>(InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied)</Code>"
    "|lacked the necessary privileges|lacked valid authentication credentials"
)
"""What object stores answer to wrong keys, and what deltalake makes of it. No name of a partition can have a `<`."""


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


class Destination(sdk.StagedDestination[DestinationOptions]):
    """Appends the fields of `payload.after` as rows, in the types of the table.

    Exactly-once in an exactly-once pipeline (staged): each transaction is one commit of the table. The commit
    carries the number of the transaction as Delta's transaction id, and is not repeated. At-least-once in any
    other. A record that the table's types would change, or that has no structured payload, is refused.
    """

    acks: ClassVar[AckMode] = AckMode.FLUSH
    takes = dict

    _application: str | None = None
    """In an exactly-once pipeline: its application id in the table."""
    _ignored: IgnoredFields | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str:
        return f"the Delta table {_place(self.options.path, self.options.storage)}"

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
            self._files = pafs.PyFileSystem(DeltaStorageHandler(self._table.table_uri, self._storage))
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
        # A hash: the id of a pipeline may have characters that file systems refuse.
        folder = f"_conduit/{hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()}"
        with table_errors(self.options.path):
            for file in self._files.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
                # Some object stores list the folder itself too.
                if (stage := _STAGED.fullmatch(file.base_name)) and int(stage[1]) <= fence:
                    self._files.delete_file(file.path)
        self._application = f"conduit-py/{owner}"
        # A replaced run stages under a lower fence. It never commits, so its files are never applied.
        self._folder, self._fence, self._count = folder, fence, 0

    def write(self, batch: Batch) -> dict[int, str]:
        unfit = self._add_columns(batch) if self.options.on_new_field == "add" else {}
        if self.options.ignores_new_fields and self._ignored is not None:
            self._ignored.count(batch, self._schema.names, self.options.path)
        rows, refused = fit_batch(
            batch, self._schema, more=self.options.ignores_new_fields, texts=self.options.on_type == "text"
        )
        explain(refused, unfit, batch)
        if rows is not None:
            self._rows.append(rows)
        if self._application is not None and sum(rows.num_rows for rows in self._rows) >= self.options.rows_max:
            self._stage_rows()
        return refused

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._append(_concat(rows), None)

    def stage(self) -> bytes | None:
        self._stage_rows()
        files, self._staged = self._staged, []
        if not files:
            return None
        assert self._application is not None
        self._count += 1
        return msgspec.json.encode(StagedCommit(self._application, self._fence << 32 | self._count, files))

    def apply(self, intent: bytes) -> None:
        stage = msgspec.json.decode(intent, type=StagedCommit)
        with table_errors(self.options.path):
            self._table.update_incremental()
            if (self._table.transaction_version(stage.application) or -1) < stage.version:
                # In their own types: they may have columns that the table is about to get.
                tables = [pq.read_table(name, filesystem=self._files, partitioning=None) for name in stage.files]
                self._append(_concat(tables), Transaction(stage.application, stage.version))
            for name in stage.files:
                if self._files.get_file_info(name).type != pafs.FileType.NotFound:
                    self._files.delete_file(name)

    def teardown(self) -> None:
        # There is nothing to release: every file is closed after it is written.
        if self._ignored is not None:
            self._ignored.report()

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
        schema = _parse_columns(options.columns)
        # Another process may create it at the same time.
        table = DeltaTable.create(
            options.path, schema, "ignore", partition_by=options.partition_by, storage_options=self._storage
        )
        if (folder := _local_folder(table)) is not None:
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
            pq.write_table(_concat(rows), name, filesystem=self._files)
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
                    self._schema = self._schema.append(_delta_field(name, kind, self._schema.names))
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
            self._settle([*_added_files(self._files.open_input_file(log).read()), log])

    def _settle(self, names: Sequence[str]) -> None:
        """Sync local files. Object stores make a file durable when it is closed."""
        if (folder := _local_folder(self._table)) is not None:
            # Folders too: those of a new partition, and of what is staged, may have just been made.
            sync_below(folder, [folder / name for name in names])


def _local_folder(table: DeltaTable) -> Path | None:
    root = urlsplit(table.table_uri)
    return Path(unquote(root.path)) if root.scheme in ("", "file") else None


def _place(path: str, storage: Mapping[str, SecretStr]) -> str:
    """Return where a table is, in the same words whatever way it is named; without anything secret."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme.lower() == "file":
        return os.path.realpath(unquote(rest) if separator else path)
    ends = [value.get_secret_value() for name, value in storage.items() if "endpoint" in name.lower()]
    # Buckets of two stores may have the same name. Passwords are before an "@".
    store = "".join(f" at {each.partition('://')[2].rpartition('@')[2].strip('/')}" for each in sorted(ends))
    kind = scheme.lower().replace("s3a", "s3")
    return f"{kind}://{'/'.join(filter(None, rest.rpartition('@')[2].split('/')))}{store}"


_STAGED = re.compile(r"(\d{12})-\d{9}-\d{6}\.parquet")


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all. Those from before a column was added have null there."""
    return pa.concat_tables(tables, promote_options="default")


def _delta_field(name: str, kind: pa.DataType | None, taken: Sequence[str]) -> pa.Field:
    """Return the column for a field, in the type that Delta has for it. Raises ValueError if it can have none."""
    if isinstance(name, str) and _NO_COLUMN.search(name):
        raise ValueError("no column of a Delta table can have this name")
    kind = check_new_column(name, kind, taken)
    try:
        [field] = pa.schema(Schema.from_arrow(pa.schema([pa.field(name, kind)])))
    except Exception as error:  # a boundary: the library raises nothing more special for a type that Delta lacks
        raise ValueError(f"Delta has no type for {kind}") from error
    return field


_NO_COLUMN = re.compile("[ ,;{}()\n\t=]")
"""What the names of columns in Delta tables cannot have."""


class _Add(msgspec.Struct):
    path: str


class _Action(msgspec.Struct):
    add: _Add | None = None


def _added_files(commit: bytes) -> list[str]:
    """Return the files that a commit of the table's log adds."""
    actions = (msgspec.json.decode(line, type=_Action) for line in commit.splitlines())
    return [unquote(action.add.path) for action in actions if action.add is not None]


def _parse_columns(columns: dict[str, str]) -> Schema:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    try:
        return Schema.from_json(msgspec.json.encode({"type": "struct", "fields": fields}).decode())
    except (DeltaError, ValueError) as error:
        raise FatalError(
            f"`columns` cannot be parsed: {error}",
            suggestion='types are "string", "long", "integer", "double", "boolean", "date", "timestamp", '
            '"decimal(10,2)", "binary"',
        ) from error


@contextmanager
def table_errors(path: str) -> Iterator[None]:
    """Raise errors of the store as TransientError, those of the table as FatalError."""
    try:
        yield
    except (CommitFailedError, OSError) as error:
        if _DENIED.search(str(error)):
            advice = "check the keys in `storage`, and what they allow"
            raise FatalError(f"the store of the Delta table {path} refuses us: {error}", suggestion=advice) from error
        advice = "check the store, and who may write there"
        raise TransientError(f"the Delta table {path}: {error}", suggestion=advice) from error
    except (DeltaError, pa.ArrowException) as error:
        raise FatalError(f"the Delta table {path}: {error}", suggestion="check the table and its columns") from error
