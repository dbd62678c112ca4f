"""How the tests of connectors call them: directly, as the runtime would, without a pipeline."""

from collections.abc import Callable
from typing import Any

import pytest

from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet, Reading


@pytest.fixture(scope="session")
def read_all() -> Callable[..., list[Record]]:
    """Open a source with sync methods, read it `n` records at a time until it ends or waits, tear it down."""

    def read(source: Any, position: bytes | None = None, n: int = 7) -> list[Record]:
        return [record for record, _ in _read(source, position, n)]

    return read


@pytest.fixture(scope="session")
def read_refused() -> Callable[..., list[tuple[Any, str]]]:
    """The same, but only what was refused: `payload.after` and the reason."""

    def read(source: Any, position: bytes | None = None, n: int = 7) -> list[tuple[Any, str]]:
        return [(record.payload.after, reason) for record, reason in _read(source, position, n) if reason is not None]

    return read


def _read(source: Any, position: bytes | None, n: int) -> list[tuple[Record, str | None]]:
    records: list[tuple[Record, str | None]] = []
    source = source.fresh()
    try:
        source.open(position)
        while True:
            reading = source.read(n)
            if not isinstance(reading, Reading):
                reading = Reading(reading, {})
            assert 1 <= len(reading.records) <= n
            records += [(record, reading.refused.get(index)) for index, record in enumerate(reading.records)]
    except (EndOfSource, NothingYet):
        return records
    finally:
        source.teardown()
