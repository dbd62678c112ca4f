"""ChangeSource: changes of a database in transactions, with keepalives between them, as a CDC source reads them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import trio
from pydantic import Field, InstanceOf

from conduit_py import sdk
from conduit_py.record import Record


class ChangeOptions(sdk.Options):
    """The transactions of the database and how the source reads them."""

    sizes: list[int] = Field(description="the number of records in each transaction; 0 is a keepalive")
    first: int = Field(default=0, description="the number of the first record")
    ends: Literal["flag", "marker"] = Field(
        default="flag", description="whether the last record of a transaction ends it, or a reading without records"
    )
    pause_seconds: float = Field(default=0.0, description="the time between two reads")
    endless: bool = Field(default=False, description="whether it waits for more after the last transaction")
    acked: Annotated[InstanceOf[Callable[[list[bytes]], Any]] | None, Field(description="called by ack")] = None


class ChangeSource(sdk.SourceConnector[ChangeOptions]):
    """Positions are `transaction:records of it`. A transaction that is read to its end has the position `next:0`."""

    has_groups: ClassVar[bool] = True

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._at, self._done = (0, 0) if position is None else map(int, position.split(b":"))

    async def read(self, n: int) -> sdk.Reading:
        await trio.sleep(self.options.pause_seconds)
        sizes, ends_by_marker = self.options.sizes, self.options.ends == "marker"
        if self._at == len(sizes):
            if self.options.endless:
                await trio.sleep_forever()
            raise sdk.EndOfSource
        size = sizes[self._at]
        if self._done == size:
            self._at, self._done = self._at + 1, 0
            return sdk.Reading([], position=b"%d:0" % self._at)
        records = [self._record(index) for index in range(self._done, min(self._done + n, size))]
        self._done += len(records)
        ended = self._done == size and not ends_by_marker
        position = None
        if ended:
            self._at, self._done = self._at + 1, 0
            position = b"%d:0" % self._at
        return sdk.Reading(records, position=position, continues=not ended)

    def _record(self, index: int) -> Record:
        number = self.options.first + sum(self.options.sizes[: self._at]) + index
        return Record.of({"n": number}, position=b"%d:%d" % (self._at, index + 1))

    async def ack(self, positions: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        if self.options.acked is not None:
            self.options.acked(list(positions))


def boundaries(sizes: Sequence[int]) -> list[int]:
    """Return how many records there are after each transaction."""
    return [sum(sizes[: index + 1]) for index in range(len(sizes))]
