"""Payloads: records as a source may return them, in columns, so that a Record is made only on demand."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

import msgspec

from conduit_py.positions import join_positions
from conduit_py.record import Data, Operation, Payload, Record, copy_data

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class TableRows(Sequence[Any]):
    """The rows of an Arrow table as payloads. Their dicts are made on demand, all at once, and kept."""

    __slots__ = ("_made", "table")

    def __init__(self, table: "pa.Table") -> None:
        self.table = table
        self._made: list[Any] | None = None

    def make(self) -> list[Any]:
        """Return the rows as dicts, the same ones each time."""
        if self._made is None:
            # Imported only here: pyarrow may not be installed, and it is slow to import.
            from conduit_py.arrow_values import python_rows

            self._made = python_rows(self.table)
        return self._made

    def take(self, indices: Sequence[int]) -> "TableRows":
        """Return the rows at these indices, without making dicts."""
        if isinstance(indices, range) and indices.step == 1:
            return TableRows(self.table.slice(indices.start, len(indices)))
        return TableRows(self.table.take(list(indices)) if indices else self.table.slice(0, 0))

    def copy(self, *, deep: bool) -> "TableRows":
        """Return these rows; with `deep`, their dicts are others than those that were made of these."""
        return TableRows(self.table) if deep else self

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "TableRows": ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.take(range(len(self))[index]) if isinstance(index, slice) else self.make()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


class LazyColumn(Sequence[T]):
    """A column whose values are made of `items`, each on demand, and made again each time.

    Nothing mutable is shared: who changes a value changes only what it got.
    """

    __slots__ = ("items", "make")

    def __init__(self, items: list[Any], make: Callable[[Any], T]) -> None:
        self.items = items
        self.make = make

    def take(self, indices: Sequence[int]) -> "LazyColumn[T]":
        """Return the column of the values at these indices, without making them."""
        return LazyColumn([self.items[index] for index in indices], self.make)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyColumn[T]": ...
    def __getitem__(self, index: int | slice) -> "T | LazyColumn[T]":
        if isinstance(index, slice):
            return LazyColumn(self.items[index], self.make)
        return self.make(self.items[index])

    def __iter__(self) -> Iterator[T]:
        return map(self.make, self.items)


def take(values: Any, indices: Sequence[int]) -> Any:
    """Return the values of a list, column or table at these indices, which may repeat."""
    if isinstance(values, TableRows | LazyColumn):
        return values.take(indices)
    if type(indices) is range and indices.step == 1:
        return values[indices.start : indices.stop]
    return [values[index] for index in indices]


@dataclasses.dataclass(slots=True, eq=False)
class NumbersWithout(Sequence[int]):
    """Numbers without those at some indices. They are listed on demand: a ledger needs only their count."""

    numbers: Sequence[int]
    gone: Sequence[int]
    _listed: list[int] | None = dataclasses.field(default=None, init=False)

    def _list(self) -> list[int]:
        if self._listed is None:
            listed = list(self.numbers)
            # From the end, so that the other indices stay what they are.
            for index in reversed(self.gone):
                del listed[index]
            self._listed = listed
        return self._listed

    def __len__(self) -> int:
        return len(self.numbers) - len(self.gone)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._list()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._list())


class Columns(msgspec.Struct):
    """The parts of records other than position and payload.after, one value per record; None: all have the default."""

    keys: Sequence[Data] | None = None
    metadata: Sequence[dict[str, str]] | None = None
    operations: Sequence[Operation] | None = None
    befores: Sequence[Data] | None = None

    def map(self, change: Callable[[Any], Any]) -> "Columns":
        """Return columns in which `change` has replaced each one."""
        return Columns(*[None if column is None else change(column) for column in msgspec.structs.astuple(self)])


@dataclasses.dataclass(slots=True, eq=False)
class Payloads(Sequence[Record]):
    """The records of one read, as columns. `read` may return it in place of a list of records.

    A record is made on demand, which most pipelines never need. `kind` is the type of all payloads, if
    the source has it: dict, bytes, or the type that `payload_type` asked for.
    """

    payloads: list[Any] | TableRows
    positions: Sequence[bytes]
    kind: type | None = None
    columns: Columns | None = None

    @classmethod
    def of_table(cls, table: "pa.Table", positions: Sequence[bytes], columns: Columns | None = None) -> "Payloads":
        """Return the rows of a `pyarrow.Table` as payloads. Arrow processors and destinations get it as it is.

        Every value must be one that Python can hold: `conduit_py.sdk.arrow.check_values` finds those that are not.
        """
        names = table.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the table has two columns named {twice!r}, and a record has one field of a name")
        # Arrow forgets the number of rows of a table without columns when it is sliced.
        rows = TableRows(table) if names else table.to_pylist()
        return cls(rows, positions, dict, columns)

    @property
    def table(self) -> "pa.Table | None":
        """The table, if these are the rows of one."""
        return self.payloads.table if isinstance(self.payloads, TableRows) else None

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            columns = self.columns and self.columns.map(lambda column: column[index])
            return make_records(self.positions[index], self.payloads[index], self.kind, columns)
        return self[index : index + 1 or None][0]

    def __iter__(self) -> Iterator[Record]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return self[:] == (other[:] if isinstance(other, Payloads) else other)


def join(reads: "Sequence[list[Record] | Payloads]") -> "list[Record] | Payloads":
    """Return the records of several reads as one sequence, in columns if all are."""
    parts = [each for each in reads if isinstance(each, Payloads)]
    if len(parts) < len(reads):
        return [record for each in reads for record in each]
    kinds = {part.kind for part in parts}
    payloads = _join_tables(parts) or [payload for part in parts for payload in part.payloads]
    positions = join_positions([part.positions for part in parts])
    return Payloads(payloads, positions, kinds.pop() if len(kinds) == 1 else None, _join_columns(parts))


def _join_columns(parts: Sequence[Payloads]) -> Columns | None:
    if all(part.columns is None for part in parts):
        return None
    sizes, columns = [len(part) for part in parts], [part.columns or Columns() for part in parts]
    return Columns(
        keys=_join_column([each.keys for each in columns], sizes, lambda: None),
        metadata=_join_column([each.metadata for each in columns], sizes, dict),
        operations=_join_column([each.operations for each in columns], sizes, lambda: Operation.CREATE),
        befores=_join_column([each.befores for each in columns], sizes, lambda: None),
    )


def _join_column(columns: Sequence[Any], sizes: Sequence[int], default: Callable[[], Any]) -> Sequence[Any] | None:
    """Return the columns of several reads as one; a read without this column has the default in all of its records."""
    if all(column is None for column in columns):
        return None
    first = columns[0]
    if isinstance(first, LazyColumn) and all(
        isinstance(column, LazyColumn) and column.make is first.make for column in columns
    ):
        return LazyColumn([item for column in columns for item in column.items], first.make)
    filled = ([default() for _ in range(n)] if each is None else each for each, n in zip(columns, sizes, strict=True))
    return list(chain.from_iterable(filled))


def _join_tables(parts: Sequence[Payloads]) -> TableRows | None:
    """Return the rows of all parts as those of one table; None if they are not tables of one schema."""
    tables = [part.payloads.table for part in parts if isinstance(part.payloads, TableRows)]
    if len(tables) < len(parts) or not all(table.schema.equals(tables[0].schema) for table in tables):
        return None
    import pyarrow as pa

    return TableRows(pa.concat_tables(tables))


def make_records(
    positions: Sequence[bytes], payloads: Sequence[Any], kind: type | None, columns: Columns | None
) -> list[Record]:
    """Make a record of each payload. A payload of the user's own type becomes the dict of its fields."""
    if kind is not dict and kind is not bytes:
        payloads = list(map(to_plain, payloads))
    if columns is None:
        return [
            Record(position=position, payload=Payload(after=after))
            for position, after in zip(positions, payloads, strict=True)
        ]
    parts = zip(
        positions,
        columns.operations or repeat(Operation.CREATE),
        # Each record has its own: a processor may write to it.
        columns.metadata or iter(dict, None),
        columns.keys or repeat(None),
        columns.befores or repeat(None),
        payloads,
        strict=False,
    )
    return [
        Record(position, operation, metadata, key, Payload(before, after))
        for position, operation, metadata, key, before, after in parts
    ]


def kind_of(kinds: set[type]) -> type | None:
    """Return the one type of all values, or None if there are several."""
    return next(iter(kinds)) if len(kinds) == 1 else None


def to_plain(value: Any) -> Any:
    """Return a payload as records have it: that of the user's own type becomes the dict of its fields."""
    if value is None or type(value) is dict or type(value) is bytes:
        return value
    if is_pydantic(type(value)):
        return value.model_dump(by_alias=True)
    return msgspec.to_builtins(value, builtin_types=_CARRIED_AS_THEY_ARE)


_CARRIED_AS_THEY_ARE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)


def copy_value(value: Any) -> Any:
    """Return a record or payload that shares nothing mutable with this one."""
    return value.copy() if isinstance(value, Record) else copy_data(value)


def is_payload(kind: type) -> bool:
    """Return True if values of this type can be payloads."""
    return kind is dict or kind is bytes or is_model(kind)


@lru_cache(maxsize=1024)
def is_model(kind: type) -> bool:
    """Return True for a Struct, a dataclass or a pydantic model."""
    if issubclass(kind, msgspec.Struct):
        return not issubclass(kind, Record | Payload) and not kind.__struct_config__.array_like
    return dataclasses.is_dataclass(kind) or is_pydantic(kind)


def is_pydantic(kind: type) -> bool:
    # By the loaded module: importing pydantic only to ask would slow down the start of those who do not use it.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


SAMPLE_SIZE = 8
_ENCODER = msgspec.json.Encoder()


def estimated_bytes(records: Sequence[Record], sample_size: int = SAMPLE_SIZE) -> int:
    """Estimate the size of records from a sample: measuring each record would cost more than moving it."""
    values: Sequence[Any] = records.payloads if isinstance(records, Payloads) else records
    if type(values) is TableRows:
        # Rows of nulls take no bytes, but they do take room.
        return max(int(values.table.nbytes), len(values))
    size, sample = 0, values[:: -(-len(values) // sample_size)] if len(values) > 1 else values
    for value in sample:
        data = value.payload.after if isinstance(value, Record) and value.payload.before is None else value
        try:
            size += len(data) + 64 if isinstance(data, bytes) else len(_ENCODER.encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            # Only an estimate: a value without a JSON form is refused by the destination, if at all.
            size += 1024
    return size * len(values) // len(sample)
