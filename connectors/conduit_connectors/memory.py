"""The memory connector: reads from and writes to lists, for tests and examples."""

from collections.abc import Sequence
from typing import Annotated, Any, Required, TypedDict, Unpack

import trio
from pydantic import Field, InstanceOf

from conduit_connectors.numbering import number_of, positions_of
from conduit_py import sdk
from conduit_py.sdk import Batch, Data, EndOfSource, Lag, NothingYet, Options, Record


class SourceOptions(Options):
    """Options of the memory source."""

    # InstanceOf passes on the list itself. Declared as list[...], pydantic would copy it, and appends would be lost.
    records: Annotated[InstanceOf[list[Any]], Field(description="records, or just their payloads: dicts or bytes")]
    bounded: bool = Field(default=True, description="end after the last record; False waits for more to be added")


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    records: Required[Sequence[Any]]
    bounded: bool


class Source(sdk.SourceConnector[SourceOptions]):
    """The records of a list, in order; the position is the index.

    At-least-once on its own, exactly-once with a destination that can, for as long as the list lives.
    Every read returns copies, so the list is never changed. Records may be appended while it is read.
    """

    in_process = True

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "its records are objects of this process"

    @property
    def endless(self) -> bool:
        return not self.options.bounded

    async def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else number_of("memory", position) + 1

    def check_position(self, position: bytes) -> None:
        number_of("memory", position)

    async def read(self, n: int) -> list[Record]:
        await trio.lowlevel.checkpoint()
        items = self.options.records[self._next : self._next + n]
        if not items:
            raise EndOfSource if self.options.bounded else NothingYet
        first, self._next = self._next, self._next + len(items)
        positions = positions_of("memory", range(first, self._next))
        return [_record(item, position) for item, position in zip(items, positions, strict=True)]

    async def lag(self) -> Lag:
        await trio.lowlevel.checkpoint()
        return Lag(records=max(len(self.options.records) - self._next, 0))


class DestinationOptions(Options):
    """Options of the memory destination."""

    into: Annotated[InstanceOf[list[Any]], Field(description="the list that records are appended to")]


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    into: Required[list[Any]]


class Destination(sdk.DestinationConnector[DestinationOptions]):
    """Appends records to a list, in order; each counts as handled at once.

    At-least-once. Nothing is durable: the records live as long as the list.
    """

    in_process = True

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    async def write(self, batch: Batch) -> None:
        await trio.lowlevel.checkpoint()
        self.options.into.extend(batch.records)


def _record(item: Record | Data, position: bytes) -> Record:
    record = item.copy() if isinstance(item, Record) else Record.of(item).copy()
    record.position = position
    return record
