"""Payloads: records as a source may return them, in columns, so that a Record is made only when somebody asks."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any, TypeVar, overload
from uuid import UUID

import msgspec

from conduit_py.record import Data, Operation, Payload, Record, copy_data

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

    payloads: list[Any]
    positions: Sequence[bytes]
    kind: type | None = None
    columns: Columns | None = None

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
    kinds = {part.kind for part in parts}
    payloads = [payload for part in parts for payload in part.payloads]
    return Payloads(
        payloads, _join_positions([part.positions for part in parts]), kinds.pop() if len(kinds) == 1 else None
    )


def _join_positions(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    made = [part for part in parts if isinstance(part, Positions)]
    if len(made) < len(parts) or len({part.template for part in made}) > 1:
        return [position for part in parts for position in part]
    ascending = all(one.numbers[-1] < other.numbers[0] for one, other in pairwise(made))
    ascending = ascending and all(part.ascending for part in made)
    return Positions(made[0].template, [number for part in made for number in part.numbers], ascending)


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
    values: Sequence[Any] = records.payloads if isinstance(records, Payloads) else records
    size, sample = 0, values[:: -(-len(values) // sample_size)]
    for value in sample:
        data = value.payload.after if isinstance(value, Record) and value.payload.before is None else value
        try:
            size += len(data) + 64 if isinstance(data, bytes) else len(_ENCODER.encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            # Only an estimate: a value without a JSON form is refused by the destination, if at all.
            size += 1024
    return size * len(values) // len(sample)
