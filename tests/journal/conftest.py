"""Both logs and both journals, for the tests that must hold for either."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conduit_py.journal.file_log import FileLog
from conduit_py.journal.journal import Journal
from conduit_py.journal.log import Log, MemoryLog


@pytest.fixture(params=["memory", "file", "small segments"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    if request.param == "memory":
        yield MemoryLog()
    else:
        with FileLog(tmp_path / "journal", segment_size=300 if request.param == "small segments" else 2**20) as opened:
            yield opened


@pytest.fixture(params=["memory", "file"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    opened = Journal.in_memory() if request.param == "memory" else await Journal.open(tmp_path / "journal")
    async with opened:
        yield opened
