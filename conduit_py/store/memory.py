"""MemoryStore: a store that lasts as long as the process, for tests, simulation and throw-away runs."""

from collections.abc import Callable
from typing import TypeVar

import trio

from conduit_py.errors import StateFailed
from conduit_py.store.claim import Changes
from conduit_py.store.memory_letters import MemoryLetterBox
from conduit_py.store.memory_tables import MemoryTables
from conduit_py.store.store import Kind, Row, Store
from conduit_py.store.tables import Tables

T = TypeVar("T")


class MemoryStore(Store):
    """Behaves as the SQLite store does, without thread, lock or disk: what happens depends on the schedule alone.

    A write passes one checkpoint and then happens at once, so a cancelled caller has written nothing.
    With `fail_after=n` the first n writes succeed and every later one raises StateFailed without
    effect, as on a disk that broke; a test may set it again at any time, None mends the disk.
    `saved` has every successful `save_positions`, in order.
    """

    def __init__(self, fail_after: int | None = None, clock: Callable[[], float] = trio.current_time) -> None:
        self.fail_after = fail_after
        self.writes = 0
        self.saved: list[tuple[str, dict[str, bytes]]] = []
        self._rows: dict[tuple[str, Kind, str], bytes] = {}
        self._tables = MemoryTables(clock, self._place, self._displace)
        self.letters = MemoryLetterBox(self._enter, self._enter_write)
        self._closed = False

    async def transact(self, work: Callable[[Tables], T]) -> T:
        await self._enter_write()
        return work(self._tables)

    async def look(self, work: Callable[[Tables], T]) -> T:
        await self._enter()
        return work(self._tables)

    async def pipelines(self) -> list[str]:
        await self._enter()
        return sorted({pipeline for pipeline, _, _ in self._rows})

    async def close(self) -> None:
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        await self._enter()
        return sorted((row[2], value) for row, value in self._rows.items() if row[:2] == (pipeline, kind))

    async def _save(self, rows: list[Row]) -> None:
        await self._enter_write()
        self._rows.update({row[:3]: row.value for row in rows})
        if rows[0].kind == "position":
            self.saved.append((rows[0].pipeline, {row.node: row.value for row in rows if row.kind == "position"}))

    def _place(self, pipeline: str, changes: Changes) -> None:
        self._rows.update({(pipeline, "position", source): value for source, value in changes.positions.items()})
        self._rows.update({(pipeline, "trail", source): value for source, value in changes.trails.items()})
        self.saved.append((pipeline, dict(changes.positions)))

    def _displace(self, pipeline: str) -> None:
        self._drop(pipeline, "position", None)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self._enter_write()
        self._drop(pipeline, kind, node)

    def _drop(self, pipeline: str, kind: Kind, node: str | None) -> None:
        for row in [row for row in self._rows if row[:2] == (pipeline, kind) and node in (None, row[2])]:
            del self._rows[row]

    async def _enter(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise StateFailed("the state store is closed")

    async def _enter_write(self) -> None:
        await self._enter()
        if self.fail_after is not None and self.writes >= self.fail_after:
            raise StateFailed(f"the memory store was told to fail after {self.fail_after} writes")
        self.writes += 1
