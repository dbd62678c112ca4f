"""Pipelines joined by a journal: what one has not committed the other does not see, and then sees once (GZ-T12)."""

from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, journal, memory

from conduit_py import Destination, Pipeline, Source, TransactionLimits
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store
from conduit_py.testing import run_to_end


def first(folder: Path, items: list[Any], *, bounded: bool, min_seconds: float = 0.0) -> Pipeline:
    return Pipeline(
        "first",
        sources=[Source("list", memory.Source(records=items, bounded=bounded))],
        destinations=[Destination("queue", journal.Destination(path=folder / "queue"))],
        delivery="exactly_once",
        transaction=TransactionLimits(min_seconds=min_seconds, max_seconds=60),
    )


def second(folder: Path) -> Pipeline:
    return Pipeline(
        "second",
        sources=[Source("queue", journal.Source(path=folder / "queue", until="end"))],
        destinations=[Destination("lines", file.Destination(path=folder / "lines", format="json"))],
        delivery="exactly_once",
    )


async def drain(folder: Path, store: Store) -> list[bytes]:
    """Run the second pipeline over what there is, and give what readers of its file see."""
    outcome = await run_to_end(second(folder), store)
    assert outcome.status is Status.COMPLETED, outcome.error
    return (folder / "lines").read_bytes().splitlines()


@pytest.mark.parametrize("count", [1, 700])
async def test_gz_t12_a_transaction_that_is_cut_short_upstream_is_seen_once_after_recovery(
    tmp_path: Path, count: int
) -> None:
    store, items = MemoryStore(), [{"n": n} for n in range(count)]
    cut_short = Supervisor(first(tmp_path, items, bounded=False, min_seconds=50), store)
    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_short.run)
            while _written(cut_short) < count:  # noqa: ASYNC110
                await trio.sleep(0.01)
            before = await drain(tmp_path, store)
            cut_short.force()
    outcome = await run_to_end(first(tmp_path, items, bounded=True), store)

    assert before == []
    assert outcome.status is Status.COMPLETED, outcome.error
    expected = [b'{"n":%d}' % n for n in range(count)]
    assert await drain(tmp_path, store) == expected
    assert await drain(tmp_path, store) == expected


def _written(supervisor: Supervisor) -> int:
    return sum(meter.records for meter in supervisor.progress().nodes if meter.kind == "destination")
