"""Both stores, for the tests that must hold for either."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite import SqliteStore
from conduit_py.store.store import Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "state") as opened:
        yield opened
