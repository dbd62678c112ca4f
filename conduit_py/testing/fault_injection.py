"""Faults: durable operations of runs in one process, each of which may be the last, or be long put off.

A run here is everything that happens in a task tree started with `as_run`. What it makes durable it does
inside `Faults.durable`, so that the harness can kill it right before or right after, or freeze it there
and let it go on much later, when another run has taken over: a zombie.
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
    """One run: what becomes of it, and what it has done."""

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

    async def live(self, work: Callable[[], Awaitable[Any]]) -> bool:
        """Do the work as this run; False when it was killed on the way."""
        token = _RUN.set(self)
        try:
            with self.scope:
                await work()
        finally:
            _RUN.reset(token)
        return not self.dead

    async def passes(self, point: FaultPoint) -> None:
        if self.dead or point == self.killed_at:
            self.dead = True
            self.scope.cancel()
            # Whoever is shielded from that must not do anything either: a dead process does not.
            await trio.sleep_forever()
        if point == self.frozen_at:
            self.frozen.set()
            await self.thawed.wait()


@asynccontextmanager
async def durable(name: str) -> AsyncIterator[None]:
    """What is done in the block, without waiting, lasts. Outside of a run nothing can befall it."""
    run = _RUN.get(None)
    await trio.lowlevel.checkpoint()
    if run is None:
        yield
        return
    number = len(run.operations)
    run.operations.append(name)
    await run.passes(FaultPoint(number, "before"))
    yield
    run.on_operation()
    await run.passes(FaultPoint(number, "after"))


class Outage:
    """Strikes at the moment with this number, counted from 0, and cancels its scope."""

    def __init__(self, moment: int) -> None:
        self.scope = trio.CancelScope()
        self.struck = False
        self._left = moment

    def pass_moment(self) -> bool:
        """Whether the next moment still happens."""
        if self._left == 0:
            self.struck = True
            self.scope.cancel()
        else:
            self._left -= 1
        return not self.struck


async def run_with_outage(main: Callable[..., Awaitable[Any]], *args: Any, log: EventLog, moment: int) -> bool:
    """Run `main(*args)` up to this moment of the log; False when it ended before that, by itself."""
    outage = Outage(moment)
    log.outage = outage
    try:
        with outage.scope:
            await main(*args)
    except Exception:
        # What a process would have raised after it was killed is nobody's concern.
        if not outage.struck:
            raise
    finally:
        log.outage = None
    return outage.struck


class OutageStore(MemoryStore):
    """A memory store that stands in the world of a log: its writes are moments of it, with an event each."""

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
        if not self._log.note("store", "letters"):
            raise StateFailed("the power is cut")

    async def close(self) -> None:
        """Stay open: the next run uses it again."""
        await trio.lowlevel.checkpoint()
