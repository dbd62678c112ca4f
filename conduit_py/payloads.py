"""Payloads: records as a source may return them, in columns, so that a Record is made only when somebody asks."""

import dataclasses
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeVar, overload
from uuid import UUID

import msgspec

from conduit_py.errors import FatalError
from conduit_py.record import Data, Operation, Payload, Record, copy_data

T = TypeVar("T")


class LazyPositions(Sequence[bytes]):
    """The positions of one read. Most are never made: a commit needs only the last one."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """True if two of them may be equal."""

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        """Return these positions and the later ones as one sequence."""
        return [*self, *later]

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

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        if isinstance(later, Positions) and later.template == self.template:
            ascending = self.ascending and later.ascending and self.numbers[-1] < later.numbers[0]
            return Positions(self.template, [*self.numbers, *later.numbers], ascending)
        return [*self, *later]


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


class PositionMap:
    """Positions of a source with partitions: where it is in each of them, as one value."""

    @staticmethod
    def encode(mapping: Mapping[str, int | str]) -> bytes:
        """Return the position for this map. Equal maps give equal bytes."""
        return _MAP_ENCODER.encode(mapping)

    @staticmethod
    def decode(position: bytes) -> dict[str, int | str]:
        """Return the map of a position. Raises FatalError for bytes that `encode` did not make."""
        try:
            return _MAP_DECODER.decode(position)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FatalError(
                f"the stored position {position[:80]!r} is not a map of partitions: {error}",
                suggestion="another connector stored it; give this source another id, or set its position",
            ) from error


@dataclasses.dataclass(slots=True, eq=False)
class MapPositions(LazyPositions):
    """Positions that are maps. Each is the one before it, with one step: the new value of one key.

    `start` is the map before the first step. A position is made when somebody asks for it, so each costs no more memory
    than its step. Whole numbers must grow for each key.
    """

    start: Mapping[str, int | str]
    steps: Sequence[tuple[str, int | str]]
    _last: tuple[int, Mapping[str, int | str]] | None = dataclasses.field(default=None, init=False)
    """The map that was made last and its index: the next one is mostly asked for next."""

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, stop, step)]
            if start == 0 and stop == len(self):
                return self
            return MapPositions(self._map_before(start), self.steps[start:stop])
        return PositionMap.encode(self._map_before(range(1, len(self) + 1)[index]))

    def __iter__(self) -> Iterator[bytes]:
        current = dict(self.start)
        for key, value in self.steps:
            current[key] = value
            yield PositionMap.encode(current)

    def _map_before(self, index: int) -> Mapping[str, int | str]:
        last = self._last
        begin, before = last if last is not None and last[0] <= index else (0, self.start)
        current = {**before}
        current.update(self.steps[begin:index])
        # Replaced, never changed: destinations in several threads may ask.
        self._last = index, current
        return current

    @property
    def repeats(self) -> bool:
        current = dict(self.start)
        for key, value in self.steps:
            before = current.get(key)
            grows = before < value if isinstance(before, int) and isinstance(value, int) else before != value
            if not grows:
                return True
            current[key] = value
        return False

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        if isinstance(later, MapPositions) and later.start == self._map_before(len(self)):
            return MapPositions(self.start, [*self.steps, *later.steps])
        return [*self, *later]


_MAP_ENCODER = msgspec.json.Encoder(order="sorted")
_MAP_DECODER = msgspec.json.Decoder(dict[str, int | str])


def join(earlier: "list[Record] | Payloads", later: "list[Record] | Payloads") -> "list[Record] | Payloads":
    """Return the records of two reads as one sequence; in columns if both are, with nothing but payloads."""
    if isinstance(earlier, Payloads) and isinstance(later, Payloads):
        positions = earlier.positions
        if earlier.columns is None and later.columns is None and isinstance(positions, LazyPositions):
            kind = earlier.kind if earlier.kind is later.kind else None
            return Payloads(earlier.payloads + later.payloads, positions.join(later.positions), kind)
    return [*earlier, *later]


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
