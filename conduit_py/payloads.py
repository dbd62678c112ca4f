"""Payloads: records as a source may return them, in columns, so that a Record is made only when somebody asks."""

import dataclasses
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

import msgspec

from conduit_py.record import Data, Operation, Payload, Record, copy_data

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class LazyPositions(Sequence[bytes]):
    """The positions of one read. Most are never made: a commit needs only the last one."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """True if two of them may be equal."""

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        """Return these positions and those of later reads as one sequence."""
        return [*self, *chain.from_iterable(later)]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


@dataclasses.dataclass(slots=True, eq=False)
class Positions(LazyPositions):
    """Positions that differ only in a number. Each is made when somebody asks for it.

    `template` has one `%d`, as in `b"offset:%d"`.
    """

    template: bytes
    numbers: Sequence[int]
    ascending: bool = False
    """True if every number is larger than the one before. Then nobody looks for repeated positions."""

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Positions": ...
    def __getitem__(self, index: int | slice) -> "bytes | Positions":
        if isinstance(index, slice):
            return Positions(self.template, self.numbers[index], self.ascending)
        return self.template % self.numbers[index]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.template.__mod__, self.numbers)

    @property
    def repeats(self) -> bool:
        # Made from one template, so they differ exactly if their numbers do. A range never repeats one.
        distinct = self.ascending or isinstance(self.numbers, range)
        return not distinct and len(set(self.numbers)) < len(self.numbers)

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        alike = [part for part in later if isinstance(part, Positions) and part.template == self.template]
        if len(alike) < len(later):
            # Not by `super()`, which does not find its class in a dataclass with slots.
            return LazyPositions.join(self, later)
        parts = [self, *alike]
        ascending = all(part.ascending for part in parts)
        ascending = ascending and all(one.numbers[-1] < other.numbers[0] for one, other in pairwise(parts))
        return Positions(self.template, _join_numbers([part.numbers for part in parts]), ascending)


def _join_numbers(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    ranges = [part for part in parts if isinstance(part, range) and part.step == 1]
    # Rows of a table have consecutive numbers, for which no list is built.
    if len(ranges) == len(parts) and all(one.stop == other.start for one, other in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    return [number for part in parts for number in part]


class TableRows(Sequence[Any]):
    """The rows of an Arrow table as payloads. Their dicts are made when somebody asks, all at once, and kept."""

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


def take(values: Any, indices: Sequence[int]) -> Any:
    """Return the values of a list or table at these indices, which may repeat."""
    return values.take(indices) if isinstance(values, TableRows) else [values[index] for index in indices]


@dataclasses.dataclass(slots=True, eq=False)
class NumbersWithout(Sequence[int]):
    """Numbers without those at some indices. They are listed when somebody asks: a ledger needs only their count."""

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

    keys: list[Data] | None = None
    metadata: list[dict[str, str]] | None = None
    operations: list[Operation] | None = None
    befores: list[Data] | None = None

    def map(self, change: Callable[[list[Any]], list[Any]]) -> "Columns":
        """Return columns in which `change` has replaced each list."""
        return Columns(*[None if column is None else change(column) for column in msgspec.structs.astuple(self)])


@dataclasses.dataclass(slots=True, eq=False)
class Payloads(Sequence[Record]):
    """The records of one read, as columns. `read` may return it in place of a list of records.

    A record is made when somebody asks for it, which most pipelines never do. `kind` is the type of all payloads, if
    the source knows it: dict, bytes, or the type that `payload_type` asked for.
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
    """Return the records of several reads as one sequence; in columns if all are, with nothing but payloads."""
    parts = [each for each in reads if isinstance(each, Payloads) and each.columns is None]
    if len(parts) < len(reads):
        return [record for each in reads for record in each]
    first, *later = [part.positions for part in parts]
    positions = first.join(later) if isinstance(first, LazyPositions) else [*first, *chain.from_iterable(later)]
    kinds = {part.kind for part in parts}
    payloads = _join_tables(parts) or [payload for part in parts for payload in part.payloads]
    return Payloads(payloads, positions, kinds.pop() if len(kinds) == 1 else None)


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
    if isinstance(values, TableRows):
        # Rows of nulls take no bytes, but they do take room.
        return max(int(values.table.nbytes), len(values))
    size, sample = 0, values[:: -(-len(values) // sample_size)]
    for value in sample:
        data = value.payload.after if isinstance(value, Record) and value.payload.before is None else value
        try:
            size += len(data) + 64 if isinstance(data, bytes) else len(_ENCODER.encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            # Only an estimate: a value without a JSON form is refused by the destination, if at all.
            size += 1024
    return size * len(values) // len(sample)
