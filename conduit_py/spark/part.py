"""Part: the stretch of one source's input that one task works on, and the source that gives it on an executor."""

from collections.abc import Mapping
from typing import Any

import msgspec

from conduit_py import sdk
from conduit_py.record import Record
from conduit_py.sdk.source import EndOfSource, Reading
from conduit_py.sdk.splittable import SplittableSource
from conduit_py.store.packing import pack, unpack
from conduit_py.stream.plugin_calls import PluginCaller


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """Records that the driver has read, and those of them that their source could not understand."""

    records: list[bytes]
    refused: dict[int, str]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What a task is given. `split` says where the source is to read, `carried` has what was read already.

    With `equipment`, by the place of a destination, what comes of it is made ready for them to take as it is.
    `each` asks for the positions of all records also then, because the source wants to be told of every one.
    """

    source: str
    split: bytes = b""
    carried: Carried | None = None
    equipment: dict[int, bytes] | None = None
    each: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "Part":
        return msgspec.msgpack.decode(encoded, type=cls)


def carry(records: list[Record], refused: Mapping[int, str]) -> Carried:
    """These records as the content of a part. What cannot be carried raises RecordRefused."""
    return Carried(list(map(pack, records)), dict(refused))


class PartSource(sdk.Source[sdk.Options]):
    """The records of a part, and then the end; without a part there are none. `positions` has what was read."""

    def __init__(self, node: str, connector: sdk.Source[Any] | None, part: Part | None) -> None:
        super().__init__()
        self.positions: list[bytes] = []
        self._part = part
        self._calls = PluginCaller(node, connector.fresh()) if part is not None and connector is not None else None
        self._left = part.carried if part is not None else None

    def fresh(self) -> "PartSource":
        return self

    async def open(self, position: bytes | None) -> None:
        if self._calls is not None and self._part is not None:
            assert isinstance(self._calls.plugin, SplittableSource)
            await self._calls("open_part", self._part.split)

    async def read(self, n: int) -> list[Record] | Reading:
        reading: list[Record] | Reading
        reading = await self._calls("read", n) if self._calls is not None else self._carried(n)
        records = reading.records if isinstance(reading, Reading) else reading
        self.positions += [record.position for record in records]
        return reading

    def _carried(self, n: int) -> Reading:
        left = self._left
        if left is None or not left.records:
            raise EndOfSource
        now = {index: why for index, why in left.refused.items() if index < n}
        later = {index - n: why for index, why in left.refused.items() if index >= n}
        self._left = Carried(left.records[n:], later)
        return Reading(list(map(unpack, left.records[:n])), now)

    async def teardown(self) -> None:
        if self._calls is not None:
            try:
                await self._calls("teardown")
            finally:
                self._calls.close()
