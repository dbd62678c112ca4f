"""Shape: the fields and operations of generated records. They depend only on the seed and the number of the record."""

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from pydantic import Field, model_validator

from conduit_py.sdk import Data, Operation, Options, Payload, Structured, encode_json

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
        columns = [self._column(kind, number, _draw(source)) for kind in self._fields.values()]
        names = list(self._fields)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def choices(self, number: int, purpose: str) -> Sequence[int]:
        """Return a random number for each record of a block."""
        return _draw(self._random(number, purpose))

    def _random(self, number: int, purpose: str) -> random.Random:
        # A text as seed gives the same numbers on every machine and in every process.
        return random.Random(f"{self._seed}:{number}:{purpose}")

    def _column(self, kind: FieldType, number: int, drawn: Sequence[int]) -> list[Any]:
        indices = range(number * BLOCK, (number + 1) * BLOCK)
        if kind == "index":
            return list(indices)
        if kind == "time":
            return [self._start + index * self._step for index in indices]
        return list(map(_MAKERS[kind], drawn))


def _draw(source: random.Random) -> Sequence[int]:
    """64 random bits for each record of a block."""
    return struct.unpack(f"<{BLOCK}Q", source.randbytes(8 * BLOCK))


def _string(drawn: int) -> str:
    return f"{_FIRST[drawn & 7]}-{_SECOND[drawn >> 3 & 7]}-{drawn >> 48:04x}"


_FIRST = ["amber", "bold", "calm", "dark", "early", "fair", "gold", "high"]
_SECOND = ["ant", "bear", "crow", "deer", "elk", "fox", "goat", "hare"]
_MAKERS: dict[str, Callable[[int], Any]] = {
    "int": lambda drawn: drawn >> 33,
    "float": lambda drawn: (drawn >> 11) * 2.0**-53,
    "string": _string,
    "bool": lambda drawn: drawn & 1 == 1,
    "duration": lambda drawn: timedelta(milliseconds=drawn % 3_600_000),
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


class Maker:
    """Makes the operations and payloads of one shape, a block at a time: a function of the seed and the number."""

    def __init__(self, shape: Shape, content: bytes, seed: int, start: datetime, step: timedelta) -> None:
        self._shape = shape
        self._content = content
        self._rows = RandomRows(shape.fields, seed, start, step)

    def block(self, number: int) -> tuple[list[Operation], list[Payload]]:
        """Return the operations and payloads of the records from `number * BLOCK` on."""
        operations = self._operations(number)
        return operations, self._payloads(number, operations)

    def _operations(self, number: int) -> list[Operation]:
        operations = self._shape.operations
        if len(operations) == 1:
            return operations * BLOCK
        return [operations[drawn % len(operations)] for drawn in self._rows.choices(number, "operation")]

    def _payloads(self, number: int, operations: list[Operation]) -> list[Payload]:
        after = self._data(number)
        if self._shape.operations == [Operation.CREATE]:
            return [Payload(None, new) for new in after]
        before = self._data(number, _BEFORE) if Operation.UPDATE in self._shape.operations else after
        return list(map(_payload, operations, before, after))

    def _data(self, number: int, variant: int = 0) -> list[Data]:
        if self._shape.format == "file":
            return [self._content] * BLOCK
        rows = self._rows.block(number, variant)
        return [encode_json(row) for row in rows] if self._shape.format == "raw" else list(rows)


def _payload(operation: Operation, before: Data, after: Data) -> Payload:
    if operation is Operation.DELETE:
        return Payload(before, None)
    return Payload(before if operation is Operation.UPDATE else None, after)
