"""The pytest plugin, imported in every project that has conduit-py installed: so it imports next to nothing itself."""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conduit_py.store.memory import MemoryStore

SEED_VARIABLE = "CONDUIT_SEED"
_before = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conduit-py")
    group.addoption("--conduit-seed", type=int, metavar="N", help="run tests that are @simulated under this seed only")


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--conduit-seed")
    if seed is not None:
        config.stash[_before] = os.environ.get(SEED_VARIABLE)
        os.environ[SEED_VARIABLE] = str(seed)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _before in config.stash:
        before = config.stash[_before]
        if before is None:
            del os.environ[SEED_VARIABLE]
        else:
            os.environ[SEED_VARIABLE] = before


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--conduit-seed")
    return None if seed is None else f"conduit-py: simulating with seed {seed} only"


@pytest.fixture
def memory_store() -> "MemoryStore":
    """A state store that is empty at the start of the test and forgotten at its end."""
    from conduit_py.store.memory import MemoryStore

    return MemoryStore()
