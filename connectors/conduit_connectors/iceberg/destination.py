"""The Iceberg destination: rows of a table, appended or one per key, in commits that happen once."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any, Self, Unpack

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from conduit_connectors.change_marks import says_truncate, unchanged_fields, whole_row
from conduit_connectors.column_policy import explain, new_fields, with_texts
from conduit_connectors.iceberg.catalog import catalog_label, connect, create_table, open_table, table_errors
from conduit_connectors.iceberg.columns import arrow_schema, make_column, wider_types
from conduit_connectors.iceberg.commits import TableCommits, TableIntent, hash_of
from conduit_connectors.iceberg.data_files import StagedDataFile, folder_of, sync_files, write_files
from conduit_connectors.iceberg.options import DestinationArguments, DestinationOptions
from conduit_connectors.iceberg.task_files import IcebergTaskFiles, MovedFile, grant_table, hidden_folder, place_files
from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.lake_parts import LakeDestination, LakeFolder, TakenParts, why_one_writer
from conduit_connectors.table_rows import fit_batch
from conduit_py.sdk import Batch, Dataset, Operation, PartId, PieceRefused, Record, StageCleared
from conduit_py.sdk.arrow import fit_to_schema


class Destination(LakeDestination[DestinationOptions]):
    """Writes the fields of `payload.after` as rows of an Iceberg table: appended, or one row per key.

    Exactly-once in an exactly-once pipeline (staged): the data files of a transaction are complete before its commit,
    and one commit of the table shows all of them. It names the pipeline and the transaction in the snapshot and in a
    property of the table, and is not repeated. At-least-once in any other, effectively once with `mode="upsert"`.
    Commits of others in between are no problem. Files of runs that were killed are deleted by the next one.

    A record that the table's types would change, or that has no structured payload, is refused. With
    `mode="upsert"` the rows with the keys of a transaction are replaced by whole rows, which rewrites the files
    that have them; a record that leaves fields unchanged, or deletes all rows, is refused. New columns and wider
    types are committed before the rows that need them.

    On Spark executors write the data files, with `mode="append"`, and the driver commits them.
    """

    _owner: str | None = None  # in an exactly-once pipeline: its id
    _catalog: Catalog | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset(catalog_label(self.options.catalog), self.options.table)]

    @property
    def claims(self) -> str:
        return f"the Iceberg table {self.options.table} of the catalog {catalog_label(self.options.catalog)}"

    @property
    def takes(self) -> Any:
        # Absent ones are deletes, whose key is enough.
        return dict | None if self.options.mode == "upsert" else dict

    def probe(self) -> str:
        with closing(connect(self.options.catalog)) as catalog, table_errors(self.options.table):
            if self.options.columns is not None and not catalog.table_exists(self.options.table):
                return "there is no table yet; it will be created"
            columns = open_table(catalog, self.options.table).schema().column_names
        return f"the table has the columns {', '.join(columns)}"

    def open(self) -> None:
        options = self.options
        self._catalog = catalog = connect(options.catalog)
        with table_errors(options.table):
            missing = not catalog.table_exists(options.table)
        if missing and options.columns is not None:
            table = create_table(catalog, options.table, options.columns, options.partition_by)
        else:
            table = open_table(catalog, options.table)
        self._commits = TableCommits(table, options.table)
        self._read_schema()
        self._rows: list[pa.Table] = []
        self._latest: dict[tuple[Any, ...], dict[str, Any] | None] = {}
        self._key_names: tuple[str, ...] = tuple(options.key or ())
        self._files: list[StagedDataFile] = []
        self._ignored = IgnoredFields()
        self.drift_count = self._ignored.drift

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        for intent in intents:
            self.apply(intent)
        self._commits.refresh()
        self._commits.check_fence(owner, fence)
        self._commits.clear(owner, fence)
        # Nothing can be staged there by tasks if the store lists no files.
        with suppress(PieceRefused), table_errors(self.options.table):
            self._hidden().clear(hash_of(owner), fence)
        # A replaced run stages under a lower fence. It never commits, so its files are never applied.
        self._owner, self._fence, self._number = owner, fence, 1

    def write(self, batch: Batch) -> dict[int, str]:
        unfit = self._add_columns(batch) if self.options.on_new_field == "add" else {}
        if self.options.ignores_new_fields and self._ignored is not None:
            self._ignored.count(batch, self._schema.names, self.options.table)
        refused = self._write_upserts(batch) if self.options.mode == "upsert" else self._write_rows(batch)
        return explain(refused, unfit, batch)

    def flush(self) -> None:
        # Not below the folder of a pipeline: nobody clears it.
        files, keys = self._write_files("conduit"), self._take_keys()
        staged, moved = self._seal("conduit")
        self._commits.move(moved)
        if files or staged or keys is not None:
            self._commits.append([*files, *staged], keys)
        self._mark_visible(moved)

    def stage(self) -> bytes | None:
        assert self._owner is not None
        files, keys = self._write_files(self._folder), self._take_keys()
        staged, moved = self._seal(self._folder)
        if not files and not staged and keys is None:
            return None
        path = None if keys is None else self._store_keys(keys)
        intent = TableIntent(self._owner, self._fence, self._number, [*files, *staged], path, moved)
        self._number += 1
        return msgspec.msgpack.encode(intent)

    def apply(self, intent: bytes) -> None:
        decoded = msgspec.msgpack.decode(intent, type=TableIntent)
        self._commits.apply(decoded)
        self._mark_visible(decoded.moved)

    def stages_remotely(self, *, exactly_once: bool) -> str | None:
        if self.options.mode != "append":
            return 'the last row of a key is known only where all rows are: the driver, with mode="upsert"'
        if "py-io-impl" in self.options.catalog:
            return "its store is not reached by Arrow: leave out py-io-impl"
        return why_one_writer(self.options)

    def for_tasks(self) -> Self:
        # They ask no catalog. The keys of the store are in the grant.
        return self.with_options(self.options.model_copy(update={"catalog": {}}))

    def grant(self) -> bytes:
        with table_errors(self.options.table):
            if self._parts is None:
                place, owned = self._hidden(), self._owner is not None
                folder = hash_of(self._owner) if self._owner is not None else None
                self._parts = TakenParts(place, place.grant(folder, self._fence if owned else 0))
            table = self._commits.table
            return grant_table(self._parts.grant, table.metadata, table.io)

    @property
    def rows_max(self) -> int:
        return self.options.rows_max

    def clear_staged(self, age_seconds: float, owner: str | None) -> StageCleared:
        with closing(connect(self.options.catalog)) as catalog, table_errors(self.options.table):
            if not catalog.table_exists(self.options.table):
                return StageCleared()
            table = catalog.load_table(self.options.table)
            place = hidden_folder(table.metadata, table.io, self.options.table)
            return place.clear_dead(age_seconds, owner)

    def open_task(self, grant: bytes, part: PartId) -> IcebergTaskFiles:
        return IcebergTaskFiles(grant, part, self.options.table)

    def keep_rows(self, batch: Batch) -> dict[int, str]:
        return self.write(batch)

    def errors(self) -> AbstractContextManager[None]:
        return table_errors(self.options.table)

    def teardown(self) -> None:
        super().teardown()
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
            # With it go the connections to the store.
            vars(self).pop("_commits", None)

    @property
    def _folder(self) -> str:
        assert self._owner is not None
        return f"conduit-{hash_of(self._owner)}/{self._fence:012d}/{self._number:09d}"

    def _hidden(self) -> LakeFolder:
        table = self._commits.table
        return hidden_folder(table.metadata, table.io, self.options.table)

    def _seal(self, folder: str) -> tuple[list[StagedDataFile], list[MovedFile]]:
        if self._parts is None:
            return [], []
        with table_errors(self.options.table):
            return place_files(self._parts.seal(), folder_of(self._commits.table.metadata, folder))

    def _mark_visible(self, moved: Sequence[MovedFile]) -> None:
        if self._parts is not None and moved:
            with table_errors(self.options.table):
                self._parts.mark_visible(each.waits_at for each in moved)

    def _read_schema(self) -> None:
        self._schema = arrow_schema(self._commits.table.schema())

    def _fit(self, batch: Batch) -> tuple[pa.Table | None, dict[int, str]]:
        more, texts = self.options.ignores_new_fields, self.options.on_type == "text"
        rows, refused = fit_batch(batch, self._schema, more=more, texts=texts)
        widens = refused and self.options.on_type != "refuse"
        if widens and self._widen([batch.payloads[index] for index in refused]):
            rows, refused = fit_batch(batch, self._schema, more=more, texts=texts)
        return rows, refused

    def _write_rows(self, batch: Batch) -> dict[int, str]:
        rows, refused = self._fit(batch)
        if rows is not None:
            self._rows.append(rows)
        if self._owner is not None and sum(rows.num_rows for rows in self._rows) >= self.options.rows_max:
            self._files += self._write_table(self._folder)
        return refused

    def _write_upserts(self, batch: Batch) -> dict[int, str]:
        records = batch.records
        gone = {index for index, record in enumerate(records) if record.operation is Operation.DELETE}
        whole: list[Any] = [whole_row(record) if index not in gone else {} for index, record in enumerate(records)]
        # Not the deleted ones: they have no values for columns that take no null.
        put = [index for index in range(len(records)) if index not in gone]
        sequences = [batch.sequences[index] for index in put]
        rows = Batch.of_payloads(batch.span, [whole[index] for index in put], sequences)
        unfit = self._fit(rows)[1] if put else {}
        refused = {put[place]: reason for place, reason in unfit.items()}
        for index, record in enumerate(records):
            try:
                if index in refused:
                    continue
                key = self._key_of(record, whole[index])
                self._latest.pop(key, None)
                self._latest[key] = None if index in gone else whole[index]
            except ValueError as error:
                refused[index] = str(error)
        return refused

    def _key_of(self, record: Record, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of a record's key. Raises ValueError if the table can find no row by it."""
        if says_truncate(record):
            raise ValueError("deletes all rows, which an Iceberg table does not do as a part of a transaction")
        if unchanged := unchanged_fields(record, row):
            named = ", ".join(map(repr, unchanged))
            raise ValueError(f"leaves {named} unchanged, and an Iceberg table takes whole rows only")
        fields = {**(record.key if isinstance(record.key, dict) else {}), **row}
        names = self._key_names or (tuple(record.key) if isinstance(record.key, dict) else ())
        if not names:
            raise ValueError('has no structured key; name its columns with the option "key"')
        if self._key_names and names != self._key_names:
            raise ValueError(f"has a key of {', '.join(names)}, and others one of {', '.join(self._key_names)}")
        values = {name: fields.get(name) for name in names}
        schema = pa.schema([self._schema.field(name) for name in names if name in self._schema.names])
        if len(schema) < len(names) or any(value is None or value != value for value in values.values()):
            raise ValueError(f"has no value for {', '.join(names)}, or the table no column for it")
        for reason in fit_to_schema([values], schema).refused.values():
            raise ValueError(reason)
        self._key_names = names
        return tuple(values.values())

    def _take_keys(self) -> pa.Table | None:
        """Return the keys whose rows are replaced or deleted, and forget them."""
        latest, self._latest = self._latest, {}
        if not latest:
            return None
        schema = pa.schema([self._schema.field(name) for name in self._key_names])
        rows = [dict(zip(self._key_names, key, strict=True)) for key in latest]
        return pa.Table.from_batches([fit_to_schema(rows, schema).batch])

    def _store_keys(self, keys: pa.Table) -> str:
        table = self._commits.table
        path = f"{folder_of(table.metadata, self._folder)}/keys.parquet"
        with table_errors(self.options.table):
            with table.io.new_output(path).create(overwrite=True) as file:
                pq.write_table(keys, pa.PythonFile(file, mode="w"))
            sync_files(table.metadata.location, [path])
        return path

    def _write_files(self, folder: str) -> list[StagedDataFile]:
        rows = [row for row in self._latest.values() if row is not None]
        if rows:
            shown = with_texts(rows, self._schema) if self.options.on_type == "text" else rows
            fitted = fit_to_schema(shown, self._schema, more=True)
            assert not fitted.refused, "each was fitted when it came"
            self._rows.append(pa.Table.from_batches([fitted.batch]))
        files, self._files = [*self._files, *self._write_table(folder)], []
        return files

    def _write_table(self, folder: str) -> list[StagedDataFile]:
        rows, self._rows = self._rows, []
        if not rows:
            return []
        table = self._commits.table
        # Rows from before a column was added have null there, and those from before it was widened get its type.
        whole = pa.concat_tables(rows, promote_options="permissive").cast(self._schema)
        with table_errors(self.options.table):
            return write_files(table, folder_of(table.metadata, folder), whole)

    def _add_columns(self, batch: Batch) -> dict[str, str]:
        """Give fields that are new a column, which the table gets at once; return why some get none."""
        new = new_fields(batch, set(self._schema.names))
        if not new:
            return {}
        # Others may have added it meanwhile.
        self._commits.refresh()
        self._read_schema()
        unfit: dict[str, str] = {}
        fields: list[pa.Field] = []
        for name, kind in new.items():
            try:
                if name not in self._schema.names:
                    taken = [*self._schema.names, *(field.name for field in fields)]
                    fields.append(make_column(name, kind, taken))
            except ValueError as error:
                unfit[name] = f"the field {name!r} gets no column: {error}"
        if fields:
            self._alter(lambda update: update.union_by_name(pa.schema(fields)))
        return unfit

    def _widen(self, rows: Sequence[Any]) -> bool:
        wider = wider_types(self._commits.table.schema(), [row for row in rows if isinstance(row, dict)])

        def change(update: Any) -> None:
            for name, kind in wider.items():
                update.update_column((name,), kind)

        if wider:
            self._alter(change)
        return bool(wider)

    def _alter(self, change: Callable[[Any], None]) -> None:
        self._commits.alter(change)
        self._read_schema()
