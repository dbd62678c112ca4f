"""The Parquet destination: rows as files in a folder, on this machine, without Spark and without Java."""

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Required, Unpack

import msgspec
import pyarrow as pa
from pydantic import Field

from conduit_connectors.column_policy import DEPRECATED, OLD_SPELLING, PolicyArguments, PolicyOptions, explain, widen
from conduit_connectors.file.disk import advice, make_folders, sync_path
from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.objects.dataset_place import StagedFile
from conduit_connectors.objects.dataset_writer import FilesIntent
from conduit_connectors.parquet.columns import add_columns, columns_of, load_schema, parse_columns, store_schema
from conduit_connectors.parquet.growing_file import GrowingFile, remove_remnants
from conduit_connectors.probe_path import probe_writable
from conduit_connectors.table_rows import NO_FIELDS, fit_batch
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError, TransientError

Compression = Literal["snappy", "zstd", "gzip", "lz4", "none"]


class DestinationOptions(PolicyOptions):
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
    rows_max: int = Field(default=1_000_000, ge=1, description="after how many rows a file is complete")
    size_max: int = Field(default=256 * 1024 * 1024, ge=1, description="after about how many bytes a file is complete")
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


class _Complete(NamedTuple):
    path: Path
    name: str


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
    record with a field that has no column too, unless the field is null.

    Records may change the columns of later files: with `on_new_field="add"` these have more columns, with
    `on_type="widen"` larger integers, double floats and decimals with more digits. Earlier files stay as they are, so
    readers must take the columns of all files together (Arrow: `pyarrow.unify_schemas`, Spark: `mergeSchema`).
    """

    acks: ClassVar[AckMode] = AckMode.FLUSH
    takes = dict

    _file: GrowingFile | None = None
    _owned: Path | None = None
    """In an exactly-once pipeline: where its files wait for their commit."""
    _failed: bool = False
    _ignored: IgnoredFields | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str:
        # Files wait in a folder that is named for the pipeline: another node of it would remove them.
        return f"the folder {os.path.realpath(self.options.path)}"

    @property
    def flush_seconds(self) -> float:
        return self.options.seconds_max

    @property
    def flush_records(self) -> int:
        return self.options.rows_max

    def data_file(self) -> Path:
        return self.options.path

    def probe(self) -> str:
        return probe_writable(self.options.path)

    def open(self) -> None:
        self._complete: list[_Complete] = []
        self._named_at = datetime.fromtimestamp(0, UTC)
        self._hidden = self.options.path / "_conduit"
        self._open_files = self._hidden / "open"
        declared = None if self.options.columns is None else parse_columns(self.options.columns)
        with self._disk_errors():
            make_folders(self._open_files)
            remove_remnants(self._open_files)
            known = load_schema(self._hidden / "schema")
            self._schema = self._agree(known, declared)
            if self._schema is not None and (known is None or not self._schema.equals(known)):
                store_schema(self._hidden / "schema", self._schema)
        self._ignored = IgnoredFields()
        self.drift_count = self._ignored.drift

    def _agree(self, known: pa.Schema | None, declared: pa.Schema | None) -> pa.Schema | None:
        """Return the columns of the next file: those that are declared, and those that records have made before."""
        if declared is None or known is None:
            return declared or known
        if not self.options.changes_columns:
            return declared
        return pa.schema([*known, *(field for field in declared if field.name not in known.names)])

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        # A hash: the id of a pipeline may have characters that file systems refuse.
        owned = self._hidden / hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()
        if intents and not owned.is_dir():
            raise FatalError(
                f"{owned} is gone, where the files of the last transaction may have been",
                suggestion="put it back as it was; others must not change what is below _conduit",
            )
        for intent in intents:
            self.apply(intent)
        with self._disk_errors():
            make_folders(owned)
            for path in owned.iterdir():
                if (found := _STAGED.fullmatch(path.name)) and int(found[1]) <= fence:
                    path.unlink(missing_ok=True)
        # A replaced run stages under a lower fence. It never commits, so its files are never applied.
        self._owned, self._fence = owned, fence

    def write(self, batch: Batch) -> dict[int, str]:
        self._check_usable()
        if self._schema is None:
            self._schema = columns_of(batch)
            if self._schema is None:
                return {
                    index: _NO_COLUMNS if isinstance(row, dict) else NO_FIELDS
                    for index, row in enumerate(batch.payloads)
                }
            with self._disk_errors():
                store_schema(self._hidden / "schema", self._schema)
        table, refused = self._fit(batch, self._schema)
        if table is not None:
            with self._disk_errors():
                self._append(table, self._schema)
        return refused

    def _fit(self, batch: Batch, schema: pa.Schema) -> tuple[pa.Table | None, dict[int, str]]:
        """Return the rows that fit, and why the others do not, after the columns were changed as the options say."""
        options = self.options
        unfit: dict[str, str] = {}
        if options.on_new_field == "add":
            schema, unfit = add_columns(batch, schema)
        elif options.ignores_new_fields and self._ignored is not None:
            self._ignored.count(batch, schema.names, str(options.path))
        fitting = partial(fit_batch, batch, more=options.ignores_new_fields, texts=options.on_type == "text")
        table, refused = fitting(schema)
        if refused and options.on_type != "refuse":
            rows = [row for index in refused if isinstance(row := batch.payloads[index], dict)]
            wider = widen(schema, rows)
            if not wider.equals(schema):
                schema, (table, refused) = wider, fitting(wider)
        self._use_schema(schema)
        return table, explain(refused, unfit, batch)

    def _use_schema(self, schema: pa.Schema) -> None:
        """Note the columns, if they have changed, and begin another file: each has the same columns to its end."""
        if schema.equals(self._schema):
            return
        with self._disk_errors():
            store_schema(self._hidden / "schema", schema)
            self._finish_file()
        self._schema = schema

    def flush(self) -> None:
        self._check_usable()
        with self._disk_errors():
            self._finish_file()
            self._show(self._complete)
        self._complete = []

    def stage(self) -> bytes | None:
        self._check_usable()
        assert self._owned is not None
        with self._disk_errors():
            self._finish_file()
            sync_path(self._owned)
        complete, self._complete = self._complete, []
        if not complete:
            return None
        files = [StagedFile(each.path.name, each.name) for each in complete]
        return msgspec.json.encode(FilesIntent(self._owned.name, files))

    def apply(self, intent: bytes) -> None:
        staged = msgspec.json.decode(intent, type=FilesIntent)
        folder = self._hidden / staged.folder
        with self._disk_errors():
            self._show([_Complete(folder / each.waits_as, each.name) for each in staged.files], again=True)

    def teardown(self) -> None:
        if self._ignored is not None:
            self._ignored.report()
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _append(self, table: pa.Table, schema: pa.Schema) -> None:
        options = self.options
        while table.num_rows:
            if self._file is None:
                self._file = GrowingFile(self._next_path(), schema, options.compression)
            part = table.slice(0, options.rows_max - self._file.rows)
            self._file.write(part)
            table = table.slice(part.num_rows)
            if self._file.rows >= options.rows_max or self._file.size >= options.size_max:
                self._finish_file()

    def _finish_file(self) -> None:
        if self._file is not None:
            self._file.finish()
            self._complete.append(_Complete(self._file.path, self._next_name()))
            self._file = None

    def _show(self, files: Sequence[_Complete], *, again: bool = False) -> None:
        """Give complete files their names. With `again`, one that is gone has or had its name already."""
        for path, name in files:
            try:
                path.rename(self.options.path / name)
            except FileNotFoundError:
                # Only an intent may be applied twice. Else the rows of the file are nowhere, and must not be acked.
                if not again or not path.parent.is_dir():
                    raise
        for folder in {self.options.path, *(path.parent for path, _ in files)} if files else ():
            sync_path(folder)

    def _next_path(self) -> Path:
        # Random: a state that starts afresh counts its fences from one again.
        suffix = secrets.token_hex(8)
        if self._owned is None:
            return self._open_files / f"{suffix}.parquet"
        return self._owned / f"{self._fence:012d}-{suffix}.parquet"

    def _next_name(self) -> str:
        """Return a name that sorts after all names of this run, and after those of earlier runs if the clock does."""
        self._named_at = max(datetime.now(UTC), self._named_at + timedelta(microseconds=1))
        return f"part-{self._named_at:%Y%m%dT%H%M%S-%f}-{secrets.token_hex(4)}.parquet"

    def _check_usable(self) -> None:
        if self._failed:
            # Rows that were written before, and are not acked, are lost with their file. Only a new run reads them.
            raise TransientError(
                f"the file that was written in {self.options.path} failed before",
                suggestion="see the first error; a restart begins a new file",
            )

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed = True
            path = self.options.path
            reason = error.strerror or str(error)
            raise TransientError(f"cannot write to {path}: {reason}", suggestion=advice(error, path / "x")) from error


_STAGED = re.compile(r"(\d{12})-[0-9a-f]{16}\.parquet")
_NO_COLUMNS = "no field has a value, so the columns are not known yet: name them in `columns`"
