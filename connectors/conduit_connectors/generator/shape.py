"""Shape: what the records of a collection look like, and how they are made."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from conduit_connectors.generator.rows import BLOCK, FieldType, Rows
from conduit_py.sdk import Data, Operation, Options, Payload, encode_json

_BEFORE = 1


class Shape(Options):
    """What a user may say about the payloads and operations of records."""

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


class Maker:
    """Makes the operations and payloads of one shape, a block at a time: a function of the seed and the number."""

    def __init__(self, shape: Shape, content: bytes, seed: int, start: datetime, step: timedelta) -> None:
        self._shape = shape
        self._content = content
        self._rows = Rows(shape.fields, seed, start, step)

    def block(self, number: int) -> tuple[list[Operation], list[Payload]]:
        """What the records from `number * BLOCK` on do, and what they hold."""
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
