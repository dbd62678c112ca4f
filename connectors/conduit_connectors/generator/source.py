"""The generator source: records made up at a chosen pace."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import trio
from pydantic import AwareDatetime, Field, model_validator

from conduit_connectors.generator.pace import Burst, Pace
from conduit_connectors.generator.rows import BLOCK, FieldType, Rows
from conduit_connectors.numbering import number_of, positions_of
from conduit_py import sdk
from conduit_py.sdk import Data, EndOfSource, FatalError, Operation, Options, Payload, Record, encode_json

_COLLECTION = "opencdc.collection"
_UNLIMITED_STEP = timedelta(milliseconds=1)
_BEFORE = 1


class SourceOptions(Options):
    """What a user may say to the generator source."""

    rate: float = Field(default=0, ge=0, description="records per second; 0 is as fast as they are taken")
    count: int | None = Field(default=None, ge=0, description="how many records there are; None is without end")
    burst: Burst | None = Field(default=None, description="generate for a while, pause for a while")
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
    collections: list[str] = Field(default=[], description="the collections that records take turns to belong to")
    seed: int = Field(default=0, description="another seed makes other records")
    start: AwareDatetime = Field(
        default=datetime(2020, 1, 1, tzinfo=UTC), description="the time in the first record's time fields"
    )

    @model_validator(mode="after")
    def _path_is_for_file(self) -> "SourceOptions":
        if (self.path is not None) != (self.format == "file"):
            raise ValueError('format="file" and path go together')
        return self


class Source(sdk.Source[SourceOptions]):
    """Records that are a function of the seed and their number, counted from 0; the position is the number.

    At-least-once on its own, exactly-once with a destination that can: a run that goes on after a position
    makes the very records that an uninterrupted one would have made, at another time of day too. So `time`
    fields do not tell the time: they begin at `start` and advance by `1 / rate` seconds a record, by a
    millisecond without a rate. The key is the number in decimal.

    Field types: `index` (the number), `int` (31 bits), `float` (from 0 to 1), `string`, `bool`, `time`,
    `duration` (below an hour). A delete has the payload before, an update both, others the one after.
    A rate is kept over time, but of what back-pressure held up at most a second is made up for.
    """

    async def open(self, position: bytes | None) -> None:
        options = self.options
        self._next = 0 if position is None else number_of("generator", position) + 1
        self._pace = Pace(options.rate, options.burst)
        step = timedelta(seconds=1 / options.rate) if options.rate else _UNLIMITED_STEP
        self._rows = Rows(options.fields, options.seed, options.start, step)
        self._content = await _content(options.path) if options.path is not None else b""
        self._block: list[Record] = []

    async def read(self, n: int) -> list[Record]:
        await trio.lowlevel.checkpoint()
        count = self.options.count
        if count is not None:
            n = min(n, count - self._next)
            if n <= 0:
                raise EndOfSource
        if not self._block:
            self._make_block(self._next // BLOCK)
        n = await self._pace.wait(min(n, len(self._block)))
        # Each record is handed out once, so that it is free to be changed and to be forgotten.
        records, self._block = self._block[:n], self._block[n:]
        self._next += len(records)
        return records

    def _make_block(self, number: int) -> None:
        self._block = self._records(number)[self._next - number * BLOCK :]

    def _records(self, number: int) -> list[Record]:
        indices = range(number * BLOCK, (number + 1) * BLOCK)
        operations = self._operations(number)
        payloads = self._payloads(number, operations)
        collections = self.options.collections
        rows = zip(indices, positions_of("generator", indices), operations, payloads, strict=True)
        return [
            Record(
                position,
                operation,
                {_COLLECTION: collections[index % len(collections)]} if collections else {},
                b"%d" % index,
                payload,
            )
            for index, position, operation, payload in rows
        ]

    def _operations(self, number: int) -> list[Operation]:
        operations = self.options.operations
        if len(operations) == 1:
            return operations * BLOCK
        return [operations[drawn % len(operations)] for drawn in self._rows.choices(number, "operation")]

    def _payloads(self, number: int, operations: list[Operation]) -> list[Payload]:
        after = self._data(number)
        if self.options.operations == [Operation.CREATE]:
            return [Payload(None, new) for new in after]
        before = self._data(number, _BEFORE) if Operation.UPDATE in self.options.operations else after
        return list(map(_payload, operations, before, after))

    def _data(self, number: int, variant: int = 0) -> list[Data]:
        if self.options.format == "file":
            return [self._content] * BLOCK
        rows = self._rows.block(number, variant)
        return [encode_json(row) for row in rows] if self.options.format == "raw" else list(rows)


def _payload(operation: Operation, before: Data, after: Data) -> Payload:
    if operation is Operation.DELETE:
        return Payload(before, None)
    return Payload(before if operation is Operation.UPDATE else None, after)


async def _content(path: Path) -> bytes:
    try:
        return await trio.Path(path).read_bytes()
    except OSError as error:
        raise FatalError(
            f"cannot read {path}: {error.strerror}", suggestion="check path and its permissions"
        ) from error
