"""Every store, for the tests that must hold for any, and a clock that they can put forward."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio

from conduit_py.store.database import Database
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite import SqliteStore
from conduit_py.store.store import Store

PassTime = Callable[[float], Awaitable[None]]


class Clock:
    """Real time, and as much more as a test wants."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    async def pass_time(self, seconds: float) -> None:
        self.ahead += seconds
        await trio.lowlevel.checkpoint()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with _opened(request.param, tmp_path, clock) as opened:
        yield opened


@pytest.fixture
def pass_time(clock: Clock) -> PassTime:
    """Has the store believe that this many seconds have passed."""
    return clock.pass_time


def _opened(kind: str, directory: Path, clock: Clock) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    return SqliteStore(Database.open(directory / "state"), clock)
