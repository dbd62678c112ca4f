"""Fault injection inside one process: kill or freeze a run at a durable operation, or cut the power at any moment.

`FaultyRun` runs code in which every durable operation stands in a `durable` block. It can kill the run right
before or right after one of them, or freeze it there. A frozen run that continues after another run has taken
over is a zombie.

`run_with_outage` works with scripted connectors. Every event of their log, and every write of an `OutageStore`,
is a moment. At the chosen one the power is cut: it and all later ones never happen, and the run is cancelled.
Log and store then hold what a restart would find. Trying every moment shows that none loses a record:

    for moment in itertools.count():
        log, store = EventLog(), …
        struck = await run_with_outage(pipeline_of(log), log=log, moment=moment)
        await pipeline_of(log)()
        assert log.numbers() …
        if not struck: break
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias

import trio

from conduit_py.errors import StateFailed
from conduit_py.store.memory import MemoryDeadLetterStore, MemoryStore
from conduit_py.store.store import Kind, StoredEntry
from conduit_py.testing.event_log import EventLog

When: TypeAlias = Literal["before", "after"]

_RUN: ContextVar["FaultyRun"] = ContextVar("run")


class FaultPoint(NamedTuple):
    """A moment of a run: right before or right after its nth durable operation, counted from 0."""

    operation: int
    when: When


class FaultyRun:
    """One run that may be killed or frozen at a durable operation. It lists its operations."""

    def __init__(self, *, killed_at: FaultPoint | None = None, frozen_at: FaultPoint | None = None) -> None:
        self.killed_at = killed_at
        self.frozen_at = frozen_at
        self.dead = False
        self.frozen = trio.Event()
        self.thawed = trio.Event()
        self.operations: list[str] = []
        self.on_operation: Callable[[], None] = lambda: None
        """Called after every durable operation."""
        self.scope = trio.CancelScope()

    async def run(self, work: Callable[[], Awaitable[Any]]) -> bool:
        """Do the work as this run. Return False when it was killed."""
        token = _RUN.set(self)
        try:
            with self.scope:
                await work()
        finally:
            _RUN.reset(token)
        return not self.dead

    async def reach(self, point: FaultPoint) -> None:
        """Go past this point, unless the run is killed or frozen there."""
        if self.dead or point == self.killed_at:
            self.dead = True
            self.scope.cancel()
            # Tasks that are shielded from the cancellation must not continue either: a dead process does nothing.
            await trio.sleep_forever()
        if point == self.frozen_at:
            self.frozen.set()
            await self.thawed.wait()


@asynccontextmanager
async def durable(name: str) -> AsyncIterator[None]:
    """A durable operation: what the block does, without waiting. Outside of a FaultyRun it is not interrupted."""
    run = _RUN.get(None)
    await trio.lowlevel.checkpoint()
    if run is None:
        yield
        return
    number = len(run.operations)
    run.operations.append(name)
    await run.reach(FaultPoint(number, "before"))
    yield
    run.on_operation()
    await run.reach(FaultPoint(number, "after"))


class Outage:
    """A power cut at the moment with this number, counted from 0. It cancels its scope."""

    def __init__(self, moment: int) -> None:
        self.scope = trio.CancelScope()
        self.struck = False
        self._left = moment

    def pass_moment(self) -> bool:
        """Count one moment. Return False if it does not happen any more."""
        if self._left == 0:
            self.struck = True
            self.scope.cancel()
        else:
            self._left -= 1
        return not self.struck


async def run_with_outage(main: Callable[..., Awaitable[Any]], *args: Any, log: EventLog, moment: int) -> bool:
    """Run `main(*args)` up to this moment of the log. Return False when it ended by itself before that."""
    outage = Outage(moment)
    log.outage = outage
    try:
        with outage.scope:
            await main(*args)
    except Exception:
        # A killed process raises nothing.
        if not outage.struck:
            raise
    finally:
        log.outage = None
    return outage.struck


class OutageStore(MemoryStore):
    """A memory store whose writes are moments of an event log, so that an outage can cut them off."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log
        self.letters = MemoryDeadLetterStore(self._enter, self._enter_letters)

    async def _save(self, rows: list[StoredEntry]) -> None:
        await trio.lowlevel.checkpoint()
        what = [f"{row.kind}:{row.node}={row.value.decode()}" for row in rows if row.kind == "position"]
        if self._log.note("store", "save", *(what or [row.kind for row in rows])):
            await super()._save(rows)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await trio.lowlevel.checkpoint()
        if self._log.note("store", "forget", kind):
            await super()._forget(pipeline, kind, node)

    async def _enter_letters(self) -> None:
        await trio.lowlevel.checkpoint()
        # An error, because the change happens if this returns.
        if not self._log.note("store", "letters"):
            raise StateFailed("the power is cut")

    async def close(self) -> None:
        """Stay open: the next run uses it again."""
        await trio.lowlevel.checkpoint()
