"""Files that were written before their commit, and become files of a Delta table without being written again."""

import secrets
import time
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from conduit_connectors.delta.partitions import undivided

_TEXT_MAX = 32
"""Of longer texts the log gets no smallest and largest value: each commit would have them."""


class FileAbout(NamedTuple):
    """What a task says of a file in its manifest, so that the driver need not look into it."""

    partition: dict[str, str | None]
    stats: str

    @classmethod
    def of(cls, partition: dict[str, str | None], footer: pq.FileMetaData) -> "FileAbout":
        return cls(partition, _stats_of(footer))


class AdoptedFile(msgspec.Struct, frozen=True, array_like=True):
    """A complete file: where it waits, and its name in the table, which it gets before the commit."""

    waits_as: str
    name: str
    partition: dict[str, str | None] = {}
    """The partition of its rows, with values as the log has them. The file does not have those columns."""
    size: int = 0
    stats: str = ""
    """What the log says of its rows. If there is none, it is read from the file, as its size is."""

    @classmethod
    def of(cls, waits_as: str, size: int = 0, about: bytes = b"") -> "AdoptedFile":
        """`about` is what a task has said of it."""
        partition, stats = msgspec.msgpack.decode(about, type=FileAbout) if about else FileAbout({}, "")
        # Random, and kept in the intent: a name is never used twice, and is the same whenever the intent is applied.
        # In no folder of its partition: readers take the values from the log, and texts may be anything.
        return cls(waits_as, f"part-{secrets.token_hex(16)}.parquet", partition, size, stats)

    def read(self, files: pafs.FileSystem, schema: pa.Schema) -> pa.Table:
        """Return its rows, with the columns of its partition."""
        return undivided(pq.read_table(self.find(files), filesystem=files, partitioning=None), self.partition, schema)

    def find(self, files: pafs.FileSystem) -> str:
        """Return where it is now: an attempt that was killed may have given it its name."""
        moved = files.get_file_info(self.waits_as).type == pafs.FileType.NotFound
        return self.name if moved else self.waits_as


def takes_files(table: DeltaTable, files: pafs.FileSystem, adopted: Sequence[AdoptedFile]) -> bool:
    """Return True if files of one transaction can be files of the table as they are.

    The rules of a table are the matter of the library, which has to see the rows then. So are rows that are not divided
    by the partitions that the table has.
    """
    there, meta = table.schema(), table.metadata()
    if any({*each.partition} != {*meta.partition_columns} for each in adopted):
        return False
    if any(_is_rule(name) for name in meta.configuration):
        return False
    # Generated columns, columns with an identity or with an invariant.
    if any(name.startswith("delta.") for field in there.fields for name in field.metadata):
        return False
    columns = {field.name: field.type for field in pa.schema(there)}
    with files.open_input_file(adopted[0].find(files)) as file:
        # One that the table has got since reads as null. Types are those of the time when it was written.
        written = pq.ParquetFile(file).schema_arrow
    return all(columns.get(field.name) == field.type for field in written)


def _is_rule(name: str) -> bool:
    return name.startswith(("delta.constraints.", "delta.columnMapping.", "delta.enableRowTracking"))


def move_files(files: pafs.FileSystem, adopted: Sequence[AdoptedFile]) -> None:
    """Give files their names in the table, if they have not got them yet."""
    for each in adopted:
        if each.find(files) == each.waits_as:
            files.move(each.waits_as, each.name)


def add_actions(files: pafs.FileSystem, adopted: Sequence[AdoptedFile]) -> list[AddAction]:
    """Return what a commit says of the files, by what stands at their ends."""
    return [_add_action(files, each) for each in adopted]


def _add_action(files: pafs.FileSystem, adopted: AdoptedFile) -> AddAction:
    size, stats = adopted.size, adopted.stats
    if not stats:
        # Of the driver: only its dead letters that are replayed.
        with files.open_input_file(adopted.name) as file:
            size, stats = file.size(), _stats_of(pq.ParquetFile(file).metadata)
    return AddAction(quote(adopted.name), size, adopted.partition, int(time.time() * 1000), True, stats)


def _stats_of(footer: pq.FileMetaData) -> str:
    """Return as the log has it: the number of rows, and of each plain column the bounds by which readers skip files."""
    bounds: dict[str, list[tuple[Any, Any]]] = {}
    nulls: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            found, name = column.statistics, column.path_in_schema
            if "." in name or found is None or not found.has_null_count:
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                bounds.setdefault(name, []).append((found.min, found.max))
    groups = footer.num_row_groups
    # Only with the bounds of all row groups: else a reader would skip rows.
    whole = {name: each for name, each in bounds.items() if len(each) == groups and all(map(_is_plain, each))}
    stats = {
        "numRecords": footer.num_rows,
        "minValues": {name: _shown(min(low for low, _ in each)) for name, each in whole.items()},
        "maxValues": {name: _shown(max(high for _, high in each)) for name, each in whole.items()},
        "nullCount": nulls,
    }
    return msgspec.json.encode(stats).decode()


def _is_plain(bounds: tuple[Any, Any]) -> bool:
    """Return True for bounds that the log has in the same form: not for floats, whose NaN has no place in the order."""
    return all(type(each) in (int, date) or (type(each) is str and len(each) <= _TEXT_MAX) for each in bounds)


def _shown(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
