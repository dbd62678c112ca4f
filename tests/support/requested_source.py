"""RequestedSource: counts up, and takes requests for snapshots, whose records it mixes with its own."""

import json
from typing import Any

import trio

from conduit_py import sdk
from conduit_py.record import Record


class RequestedSource(sdk.SourceConnector[sdk.Options]):
    """Reads its `numbers` and waits. Each of the two records of a request takes `row_seconds`.

    The position has the number and the requests that are not done. `wrong` is refused, `broken` fails, `stuck` hangs.
    """

    numbers = 0
    row_seconds = 10.0
    opened: list[bytes | None]
    acked: list[bytes]

    def counting(self, numbers: int) -> "RequestedSource":
        self.numbers, self.opened, self.acked = numbers, [], []
        return self

    def fresh(self) -> "RequestedSource":
        return self

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self.opened.append(position)
        self._at, self._todo = (0, []) if position is None else json.loads(position)
        self._wake, self._announces = trio.Event(), False

    async def read(self, n: int) -> sdk.Reading:
        await trio.lowlevel.checkpoint()
        while True:
            if self._announces:
                self._announces = False
                return sdk.Reading([], position=self._position())
            if self._todo:
                with trio.move_on_after(self.row_seconds) as waiting:
                    await self._wake.wait()
                if not waiting.cancelled_caught:
                    continue
                collection, where, done = self._todo[0]
                self._todo[0:1] = [[collection, where, done + 1]] if done == 0 else []
                return sdk.Reading([self._record({"collection": collection, "where": where, "row": done})])
            if self._at < self.numbers:
                self._at += 1
                return sdk.Reading([self._record({"n": self._at})])
            await self._wake.wait()

    async def request_snapshot(self, request: sdk.SnapshotRequest) -> None:
        await trio.sleep(0.1)
        if request.collection == "wrong":
            raise sdk.SnapshotRefused("there is no collection 'wrong'", suggestion="collections are orders")
        if request.collection == "broken":
            raise OSError("the system is gone")
        if request.collection == "stuck":
            await trio.sleep_forever()
        self._todo.append([request.collection, request.where, 0])
        self._announces = True
        self._wake.set()
        self._wake = trio.Event()

    async def ack(self, positions: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.acked += positions

    def _record(self, value: dict[str, Any]) -> Record:
        return Record.of(value, position=self._position())

    def _position(self) -> bytes:
        return json.dumps([self._at, self._todo]).encode()
