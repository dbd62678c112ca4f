"""GZ-T10, as far as there is something like it here: what recovery needs is stored with every commit, and stays small.

Gazette stores hints between transactions, so that a player of the recovery log need not read all of it. We play
nothing back: checkpoint, positions and state are rows that the next commit replaces. So a start reads as much after
a thousand transactions as after ten, though outbox and seen keys have grown.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from exactly_once_scenario import Numbers
from trio.testing import MockClock

from conduit_py import Batch, Destination, Pipeline, Record, Source, State, TransactionLimits, processor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.sqlite.tables import SqliteSession, SqliteTables
from conduit_py.store.store import Kind, Store
from conduit_py.store.tables import Tables
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage

T = TypeVar("T")


@processor(state=True, batch=True)
async def busy(batch: Batch, state: State) -> list[Record]:
    """Changes everything that a transaction commits: state, seen keys and outbox."""
    await state.once("numbers", [b"%d" % record.payload["n"] for record in batch])
    state.put("sum", state.get("sum", 0) + sum(record.payload["n"] for record in batch))
    state.publish("audit", batch[0].copy())
    return list(batch)


def pipeline(storage: FakeStorage, transactions: int) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", Numbers(first=0, count=transactions, acked=lambda name, numbers: None, name="s"))],
        processors=[busy],
        destinations=[Destination("d", FakeStagedDestination(storage=storage))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=1),
    )


async def count_committed(store: Store) -> int:
    claimed = await store.claim_state("p")
    assert claimed is not None
    return claimed.committed


class CountingStore(MemoryStore):
    """Counts the bytes of what it is asked for, as they would be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    async def transact(self, work: Callable[[Tables], T]) -> T:
        return self._counted(await super().transact(work))

    async def look(self, work: Callable[[Tables], T]) -> T:
        return self._counted(await super().look(work))

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        return self._counted(await super()._load(pipeline, kind))

    def _counted(self, found: T) -> T:
        self.bytes += len(repr(found))
        return found


async def test_gz_t10_a_start_reads_as_many_bytes_after_a_thousand_transactions_as_after_ten(
    autojump_clock: MockClock,
) -> None:
    read: dict[int, int] = {}
    for transactions in (10, 1000):
        store, storage = CountingStore(), FakeStorage()
        await run_to_end(pipeline(storage, transactions), store)
        assert await count_committed(store) == transactions
        store.bytes = 0
        again = await run_to_end(pipeline(storage, transactions), store)
        read[transactions] = store.bytes
        assert (again.status, again.progress.read) == (Status.COMPLETED, 0)

    # Numbers have more digits; a row for each transaction would be tens of thousands of bytes.
    assert 0 < read[1000] < read[10] + 100


async def test_gz_t10_sqlite_works_as_little_at_a_start_after_a_thousand_transactions_as_after_ten(
    tmp_path: Path,
) -> None:
    after_end: dict[int, int] = {}
    after_kill: dict[int, int] = {}
    for transactions in (10, 1000):
        storage, directory = FakeStorage(), tmp_path / str(transactions)
        async with await SqliteStore.open(directory) as store:
            # What is shown here does not depend on it, and a thousand times it takes long.
            await store.look(lambda tables: connection(tables).execute("PRAGMA synchronous=OFF"))
            await run_to_end(pipeline(storage, transactions), store)
            assert await count_committed(store) == transactions
        async with await SqliteStore.open(directory) as store:
            after_end[transactions] = await count_records(store, pipeline(storage, transactions))
            # As if the process had died before it could show what it committed last.
            storage.applied, storage.staged = (0, 0), {(1, transactions): [storage.visible.pop()]}
            after_kill[transactions] = await count_records(store, pipeline(storage, transactions))
        assert storage.visible == list(range(transactions))

    assert 0 < after_end[1000] <= 1.1 * after_end[10]
    assert 0 < after_kill[1000] <= 1.1 * after_kill[10]


async def count_records(store: SqliteStore, declared: Pipeline) -> int:
    """How many steps the machine of SQLite takes for a run that has nothing to read: a row it looks at is several."""
    taken = [0]

    def step() -> int:
        taken[0] += 1
        return 0

    await store.look(lambda tables: connection(tables).set_progress_handler(step, 1))
    outcome = await run_to_end(declared, store)
    await store.look(lambda tables: connection(tables).set_progress_handler(None, 1))
    assert (outcome.status, outcome.progress.read) == (Status.COMPLETED, 0)
    return taken[0]


def connection(tables: Tables) -> sqlite3.Connection:
    assert isinstance(tables, SqliteTables)
    assert isinstance(tables.sql, SqliteSession)
    return tables.sql.connection
