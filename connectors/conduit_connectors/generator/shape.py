"""Shape: the fields and operations of generated records. They depend only on the seed and the number of the record."""

import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import add
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from pydantic import Field, model_validator

from conduit_py.sdk import Data, Operation, Options, Structured, encode_json

FieldType: TypeAlias = Literal["index", "int", "float", "string", "bool", "time", "duration"]

BLOCK = 256
"""How many records share one random generator: seeding one per record would cost more than the record."""


class RandomRows:
    """Makes the rows of records, a block at a time: the same for the same seed, in whatever order blocks are made."""

    def __init__(self, fields: Mapping[str, FieldType], seed: int, start: datetime, step: timedelta) -> None:
        self._fields = fields
        self._seed = seed
        self._start = start
        self._step = step

    def block(self, number: int, variant: int = 0) -> list[Structured]:
        """Make the rows of the records from `number * BLOCK` on. Variants are other rows for the same records."""
        source = self._random(number, f"rows {variant}")
        rows: list[Structured] = [{} for _ in range(BLOCK)]
        # Column by column: the fields of a row would first have to become a tuple.
        for name, kind in self._fields.items():
            for row, value in zip(rows, self._column(kind, number, source.randbytes(_DRAWN_BYTES)), strict=True):
                row[name] = value
        return rows

    def choices(self, number: int, purpose: str) -> Sequence[int]:
        """Return a random number for each record of a block."""
        return _unpack(self._random(number, purpose).randbytes(_DRAWN_BYTES))

    def _random(self, number: int, purpose: str) -> random.Random:
        # A text as seed gives the same numbers on every machine and in every process.
        return random.Random(f"{self._seed}:{number}:{purpose}")

    def _column(self, kind: FieldType, number: int, drawn: bytes) -> Iterable[Any]:
        indices = range(number * BLOCK, (number + 1) * BLOCK)
        if kind == "index":
            return indices
        if kind == "time":
            return [self._start + index * self._step for index in indices]
        return _MAKERS[kind](drawn)


_DRAWN_BYTES = 8 * BLOCK
"""Each record has 64 random bits for each field, as a number with its lowest byte first."""


def _unpack(drawn: bytes) -> Sequence[int]:
    return struct.unpack(f"<{BLOCK}Q", drawn)


def _strings(drawn: bytes) -> Iterable[str]:
    """Two words by the lowest six bits of each number, and its highest 16 bits in hexadecimal digits."""
    highest = bytearray(2 * BLOCK)
    highest[0::2], highest[1::2] = drawn[7::8], drawn[6::8]
    # All digits at once, cut by their spaces: to format each number would take five times as long.
    return map(add, map(_WORDS.__getitem__, drawn[0::8]), highest.hex(" ", 2).split(" "))


_FIRST = ["amber", "bold", "calm", "dark", "early", "fair", "gold", "high"]
_SECOND = ["ant", "bear", "crow", "deer", "elk", "fox", "goat", "hare"]
_WORDS = [f"{_FIRST[byte & 7]}-{_SECOND[byte >> 3 & 7]}-" for byte in range(256)]
_IS_ODD = [byte & 1 == 1 for byte in range(256)]
_MAKERS: dict[str, Callable[[bytes], Iterable[Any]]] = {
    "int": lambda drawn: [number >> 33 for number in _unpack(drawn)],
    "float": lambda drawn: [(number >> 11) * 2.0**-53 for number in _unpack(drawn)],
    "string": _strings,
    "bool": lambda drawn: map(_IS_ODD.__getitem__, drawn[0::8]),
    "duration": lambda drawn: [timedelta(milliseconds=number % 3_600_000) for number in _unpack(drawn)],
}


_BEFORE = 1


class Shape(Options):
    """Options for the payloads and operations of records."""

    format: Literal["structured", "raw", "file"] = Field(
        default="structured", description="the payload: structured data, the same as JSON bytes, or a file's bytes"
    )
    fields: dict[str, FieldType] = Field(
        default={"id": "index", "name": "string", "amount": "float", "active": "bool", "at": "time"},
        min_length=1,
        description="the fields of the payload and what they hold",
    )
    path: Path | None = Field(default=None, description='the file whose content is the payload (format "file")')
    operations: list[Operation] = Field(
        default=[Operation.CREATE], min_length=1, description="the operations to choose from"
    )

    @model_validator(mode="after")
    def _path_is_for_file(self) -> "Shape":
        if (self.path is not None) != (self.format == "file"):
            raise ValueError('format="file" and path go together')
        return self


class ShapeArguments(TypedDict, total=False):
    """Shape as a caller writes them, for editors and type checkers."""

    format: Literal["structured", "raw", "file"]
    fields: Mapping[str, str]
    path: str | Path | None
    operations: Sequence[Literal["create", "update", "delete", "snapshot"] | Operation]


class RecordBlock(NamedTuple):
    """Parts of consecutive records, one value per record in each list."""

    operations: list[Operation]
    befores: list[Data]
    afters: list[Data]

    def between(self, start: int, stop: int) -> "RecordBlock":
        return RecordBlock(self.operations[start:stop], self.befores[start:stop], self.afters[start:stop])

    def add(self, later: "RecordBlock") -> None:
        self.operations.extend(later.operations)
        self.befores.extend(later.befores)
        self.afters.extend(later.afters)


class Maker:
    """Makes the operations and payloads of one shape, a block at a time: a function of the seed and the number."""

    def __init__(self, shape: Shape, content: bytes, seed: int, start: datetime, step: timedelta) -> None:
        self._shape = shape
        self._content = content
        self._rows = RandomRows(shape.fields, seed, start, step)

    def block(self, number: int) -> RecordBlock:
        """Return the parts of the records from `number * BLOCK` on."""
        operations = self._operations(number)
        afters = self._data(number)
        if self._shape.operations == [Operation.CREATE]:
            return RecordBlock(operations, [None] * BLOCK, afters)
        befores = self._data(number, _BEFORE) if Operation.UPDATE in self._shape.operations else afters
        return RecordBlock(
            operations,
            [data if operation in _HAVE_BEFORE else None for operation, data in zip(operations, befores, strict=True)],
            [
                None if operation is Operation.DELETE else data
                for operation, data in zip(operations, afters, strict=True)
            ],
        )

    def _operations(self, number: int) -> list[Operation]:
        operations = self._shape.operations
        if len(operations) == 1:
            return operations * BLOCK
        return [operations[drawn % len(operations)] for drawn in self._rows.choices(number, "operation")]

    def _data(self, number: int, variant: int = 0) -> list[Data]:
        if self._shape.format == "file":
            return [self._content] * BLOCK
        rows = self._rows.block(number, variant)
        return [encode_json(row) for row in rows] if self._shape.format == "raw" else list(rows)


_HAVE_BEFORE = (Operation.UPDATE, Operation.DELETE)
