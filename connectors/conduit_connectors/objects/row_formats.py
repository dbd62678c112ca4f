"""RowFormats: what the rows of a dataset are in its files, which of them fit, and to which partition each belongs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import msgspec

from conduit_connectors.file.csv_format import CsvTable
from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.line_formats import encode_json_lines
from conduit_connectors.objects.dataset_place import DatasetPlace
from conduit_connectors.objects.partition import PartitionBy
from conduit_connectors.objects.row_writers import AvroRows, RowGroups, RowWriter, TextRows, dictionary_columns
from conduit_connectors.policy_options import PolicyOptions
from conduit_py.sdk import Batch, FatalError, Record, RecordRefused

DatasetFormat = Literal["json", "csv", "avro", "parquet"]
DatasetCompression = Literal["default", "none", "snappy", "gzip", "zstd", "bz2", "lz4"]
COMPRESSIONS: dict[DatasetFormat, tuple[str, ...]] = {
    "json": ("none", "gzip", "zstd", "bz2"),
    "csv": ("none", "gzip", "zstd", "bz2"),
    "avro": ("deflate", "none"),
    "parquet": ("snappy", "zstd", "gzip", "lz4", "none"),
}
"""What each format can be compressed with, the default first."""
NO_COLUMNS = "no field has a value, so the columns are not known yet: name them in `columns`"
NO_FIELDS = "payload.after is not structured, so it has no fields to write"


Refused: TypeAlias = dict[int, str]


class RowPiece(NamedTuple):
    """Rows for one folder of the dataset, in the form that the writer of the format takes."""

    folder: str
    rows: Any
    total: int


class RowFormat(ABC):
    """Encodes batches, and opens writers of files. It takes care that all files have the same columns."""

    suffix: str
    changes: int = 0
    """How often records have changed the columns. Files that are open then are complete."""

    def __init__(self, place: DatasetPlace, partition: PartitionBy) -> None:
        self._place = place
        self._partition = partition
        self.ignored = IgnoredFields()

    @abstractmethod
    def open(self) -> None:
        """Load what earlier runs noted about the columns."""

    @abstractmethod
    def encode(self, batch: Batch, refused: dict[int, str]) -> list[RowPiece]:
        """Return the rows of a batch, in order within each folder, and add why others are refused."""

    @abstractmethod
    def writer(self, file: IO[bytes]) -> RowWriter: ...

    def cut(self, piece: RowPiece, count: int) -> tuple[RowPiece, RowPiece | None]:
        """Return the first rows of a piece, and the rest. Text is not cut: it has no rows any more."""
        return piece, None

    def _folders(self, batch: Batch, refused: dict[int, str]) -> dict[str, list[int]]:
        """Return which records belong to each folder."""
        found: dict[str, list[int]] = {}
        for index, row in enumerate(batch.payloads):
            if index in refused:
                continue
            if not isinstance(row, dict):
                refused[index] = NO_FIELDS
                continue
            try:
                found.setdefault(self._partition.folder_of(row), []).append(index)
            except RecordRefused as error:
                refused[index] = error.message
        return found


class TextFormat(RowFormat):
    """JSON lines, or CSV with a header in each file."""

    def __init__(
        self,
        place: DatasetPlace,
        partition: PartitionBy,
        format: Literal["json", "csv"],
        compression: str,
        columns: Sequence[str] | None,
        delimiter: str,
    ) -> None:
        super().__init__(place, partition)
        ending = {"none": "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}[compression]
        self.suffix = (".jsonl" if format == "json" else ".csv") + ending
        self._compression = None if compression == "none" else compression
        self._given = columns
        self._delimiter = delimiter
        self._table: CsvTable | None = None
        self._is_csv = format == "csv"
        self._noted: list[str] | None = None

    def open(self) -> None:
        if not self._is_csv:
            return
        content = self._place.load_note("columns")
        self._noted = None if content is None else msgspec.json.decode(content, type=list[str])
        columns = self._given or self._noted
        self._table = CsvTable(Path("the dataset"), self._delimiter, columns and list(columns))

    def encode(self, batch: Batch, refused: dict[int, str]) -> list[RowPiece]:
        if not self._partition:
            return self._encode_part("", batch, list(range(len(batch))), refused)
        made: list[RowPiece] = []
        for folder, indices in self._folders(batch, refused).items():
            dropped = self._partition.dropped
            rows = [batch.payloads[index] for index in indices]
            lean = [{name: value for name, value in row.items() if name not in dropped} for row in rows]
            part = batch.select(indices)
            part = part.with_values(list(map(Record.of, lean)) if part.holds_records else lean, dict)
            made += self._encode_part(folder, part, indices, refused)
        return made

    def writer(self, file: IO[bytes]) -> RowWriter:
        return TextRows(file, self._compression, b"" if self._table is None else self._table.header())

    def _encode_part(self, folder: str, batch: Batch, indices: list[int], refused: dict[int, str]) -> list[RowPiece]:
        encoded = encode_json_lines(batch) if self._table is None else self._encode_csv(self._table, batch.records)
        refused |= {indices[index]: reason for index, reason in encoded.refused.items()}
        count = len(batch) - len(encoded.refused)
        return [RowPiece(folder, encoded.text, count)] if count else []

    def _encode_csv(self, table: CsvTable, records: list[Record]) -> Any:
        encoded = table.encode(records, header=False)
        if table.columns is not None and list(table.columns) != self._noted:
            self._noted = list(table.columns)
            self._place.store_note("columns", msgspec.json.encode(self._noted))
        return encoded


class TableFormat(RowFormat):
    """Parquet or Avro: columns of a schema, declared, noted by earlier runs, or those of the first records."""

    def __init__(
        self,
        place: DatasetPlace,
        partition: PartitionBy,
        format: Literal["avro", "parquet"],
        compression: str,
        declared: Any,
        policy: PolicyOptions,
        shown: str,
    ) -> None:
        super().__init__(place, partition)
        self.suffix = f".{format}"
        self._format = format
        self._compression = compression
        self._declared = declared
        self._policy = policy
        self._shown = shown
        self._schema: Any = None
        self._dictionaries = dictionary_columns(shown)

    def open(self) -> None:
        from conduit_connectors.parquet.columns import decode_schema, parse_columns

        known = decode_schema(self._place.load_note("schema"))
        self._schema = self._agree(known, None if self._declared is None else parse_columns(self._declared))
        if self._schema is not None and (known is None or not self._schema.equals(known)):
            self._note_schema()

    def encode(self, batch: Batch, refused: dict[int, str]) -> list[RowPiece]:
        from conduit_connectors.column_policy import explain, widen
        from conduit_connectors.parquet.columns import add_columns, columns_of

        if self._schema is None:
            self._schema = columns_of(batch)
            if self._schema is None:
                reasons = (NO_COLUMNS if isinstance(row, dict) else NO_FIELDS for row in batch.payloads)
                refused |= dict(enumerate(reasons))
                return []
            self._note_schema()
        policy, schema = self._policy, self._schema
        unfit: dict[str, str] = {}
        if policy.on_new_field == "add":
            schema, unfit = add_columns(batch, schema)
        elif policy.ignores_new_fields:
            self.ignored.count(batch, schema.names, self._shown)
        folders = self._folders(batch, refused) if self._partition else None
        tables, misfits = self._fit(batch, folders, schema)
        if misfits and policy.on_type != "refuse":
            rows = [row for index in misfits if isinstance(row := batch.payloads[index], dict)]
            wider = widen(schema, rows)
            if not wider.equals(schema):
                schema, (tables, misfits) = wider, self._fit(batch, folders, wider)
        self._use_schema(schema)
        refused |= explain(misfits, unfit, batch)
        return [self._piece(folder, table) for folder, table in tables.items()]

    def _fit(self, batch: Batch, folders: dict[str, list[int]] | None, schema: Any) -> tuple[dict[str, Any], Refused]:
        """Return the rows of each folder that fit, and why others do not."""
        from conduit_connectors.table_rows import fit_batch

        tables: dict[str, Any] = {}
        misfits: Refused = {}
        parts: Mapping[str, list[int] | None] = {"": None} if folders is None else folders
        for folder, indices in parts.items():
            part = batch if indices is None else batch.select(indices)
            more, texts = self._policy.ignores_new_fields, self._policy.on_type == "text"
            table, unfit = fit_batch(part, schema, more=more, texts=texts)
            misfits |= {index if indices is None else indices[index]: reason for index, reason in unfit.items()}
            if table is not None:
                tables[folder] = table
        return tables, misfits

    def _agree(self, known: Any, declared: Any) -> Any:
        """Return the columns of the next file: those that are declared, and those that records have made before."""
        if declared is None or known is None:
            return declared or known
        if not self._policy.changes_columns:
            return declared
        for field in declared:
            known = known if field.name in known.names else known.append(field)
        return known

    def _use_schema(self, schema: Any) -> None:
        if not schema.equals(self._schema):
            self._schema = schema
            self._note_schema()
            self.changes += 1

    def writer(self, file: IO[bytes]) -> RowWriter:
        schema = self._file_schema()
        if self._format == "parquet":
            return RowGroups(file, schema, self._compression, self._dictionaries)
        from conduit_connectors.objects.avro_schema import avro_schema

        return AvroRows(file, avro_schema(schema), {"none": "null"}.get(self._compression, self._compression))

    def cut(self, piece: RowPiece, count: int) -> tuple[RowPiece, RowPiece | None]:
        if piece.total <= count:
            return piece, None
        if isinstance(piece.rows, list):
            first, rest = piece.rows[:count], piece.rows[count:]
        else:
            first, rest = piece.rows.slice(0, count), piece.rows.slice(count)
        return piece._replace(rows=first, total=count), piece._replace(rows=rest, total=piece.total - count)

    def _piece(self, folder: str, table: Any) -> RowPiece:
        if self._partition.dropped:
            table = table.drop_columns([name for name in self._partition.dropped if name in table.column_names])
        return RowPiece(folder, table.to_pylist() if self._format == "avro" else table, table.num_rows)

    def _file_schema(self) -> Any:
        schema = self._schema
        for name in self._partition.dropped:
            if name in schema.names:
                schema = schema.remove(schema.get_field_index(name))
        if not schema.names:
            raise FatalError("all columns are folders, so files would be empty", suggestion="partition by fewer fields")
        return schema

    def _note_schema(self) -> None:
        self._place.store_note("schema", self._schema.serialize().to_pybytes())
