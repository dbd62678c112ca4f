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

When: TypeAlias = Literal["before", "after"]

_RUN: ContextVar["Mortal"] = ContextVar("run")


class Point(NamedTuple):
    """A moment of a run: right before or right after its nth durable operation, counted from 0."""

    operation: int
    when: When


class Mortal:
    """One run: what becomes of it, and what it has done."""

    def __init__(self, *, killed_at: Point | None = None, frozen_at: Point | None = None) -> None:
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

    async def passes(self, point: Point) -> None:
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
    await run.passes(Point(number, "before"))
    yield
    run.on_operation()
    await run.passes(Point(number, "after"))
