"""Payloads: records as a source may return them, in columns, so that a Record is made only when somebody asks."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

import msgspec

from conduit_py.record import Data, Operation, Payload, Record, copy_data

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@dataclasses.dataclass(slots=True, eq=False)
class Positions(Sequence[bytes]):
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

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        """Return these positions and the later ones as one sequence."""
        if isinstance(later, Positions) and later.template == self.template:
            ascending = self.ascending and later.ascending and self.numbers[-1] < later.numbers[0]
            if _continue(self.numbers, later.numbers):
                return Positions(self.template, range(self.numbers[0], later.numbers[-1] + 1), ascending)
            return Positions(self.template, [*self.numbers, *later.numbers], ascending)
        return [*self, *later]


def _continue(earlier: Sequence[int], later: Sequence[int]) -> bool:
    """Return True for two ranges that are one."""
    if not isinstance(earlier, range) or not isinstance(later, range):
        return False
    return earlier.step == later.step == 1 and earlier.stop == later.start


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


def join(earlier: "list[Record] | Payloads", later: "list[Record] | Payloads") -> "list[Record] | Payloads":
    """Return the records of two reads as one sequence; in columns if both are, with nothing but payloads."""
    if isinstance(earlier, Payloads) and isinstance(later, Payloads):
        positions = earlier.positions
        if earlier.columns is None and later.columns is None and isinstance(positions, Positions):
            kind = earlier.kind if earlier.kind is later.kind else None
            payloads = _join_payloads(earlier.payloads, later.payloads)
            return Payloads(payloads, positions.join(later.positions), kind)
    return [*earlier, *later]


def _join_payloads(earlier: list[Any] | TableRows, later: list[Any] | TableRows) -> list[Any] | TableRows:
    if isinstance(earlier, list) and isinstance(later, list):
        return earlier + later
    if not isinstance(earlier, TableRows) or not isinstance(later, TableRows):
        return [*earlier, *later]
    if not earlier.table.schema.equals(later.table.schema):
        return [*earlier, *later]
    import pyarrow as pa

    return TableRows(pa.concat_tables([earlier.table, later.table]))


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
    if isinstance(records, Payloads) and isinstance(records.payloads, TableRows):
        # Rows of nulls take no bytes, but they do take room.
        return max(int(records.payloads.table.nbytes), len(records))
    step = -(-len(records) // sample_size)
    sample: Sequence[Any] = records.payloads[::step] if isinstance(records, Payloads) else records[::step]
    return sum(map(_bytes, sample)) * len(records) // len(sample)


def _bytes(value: Any) -> int:
    """Return about how many bytes a record or payload has."""
    data = value.payload.after if isinstance(value, Record) and value.payload.before is None else value
    if isinstance(data, bytes):
        return len(data) + 64
    try:
        return len(_ENCODER.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        # Only an estimate: a value without a JSON form is refused by the destination, if at all.
        return 1024
