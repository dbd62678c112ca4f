"""The SQLite store's one thread: who shares a commit, who gets a failure, who may leave."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from conduit_py.errors import StateFailed
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore


class Gate:
    """Holds the store's thread at its next statement until opened, and keeps the statements it has seen."""

    def __init__(self, database: StateDatabase) -> None:
        self.statements: list[str] = []
        self._reached = threading.Event()
        self._open = threading.Event()
        database.connection.set_trace_callback(self._pass)

    def _pass(self, statement: str) -> None:
        self.statements.append(statement.split()[0])
        self._reached.set()
        self._open.wait(300)

    async def wait_until_reached(self) -> None:
        assert await trio.to_thread.run_sync(self._reached.wait, 10)

    def open(self) -> None:
        self._open.set()


async def hold(store: SqliteStore, gate: Gate, nursery: trio.Nursery) -> None:
    """Have the thread busy with one save, so that what is asked next waits together."""
    nursery.start_soon(store.save_positions, "first", {"web": b"1"})
    await gate.wait_until_reached()


async def test_all_writes_that_wait_share_one_commit(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    gate = Gate(database)
    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            for number in range(100):
                nursery.start_soon(store.save_positions, f"pipeline-{number}", {"web": b"2"})
            await trio.testing.wait_all_tasks_blocked()
            gate.open()

        assert store.commits == 2
        assert gate.statements == ["INSERT", "INSERT"]
        assert len(await store.pipelines()) == 101


async def test_a_group_of_different_writes_is_one_transaction_in_order(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    gate = Gate(database)
    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            for position in (b"2", None, b"3"):
                if position is None:
                    nursery.start_soon(store.forget_positions, "orders")
                else:
                    nursery.start_soon(store.save_positions, "orders", {f"source-{position!r}": position})
                await trio.testing.wait_all_tasks_blocked()
            gate.open()

        assert store.commits == 2
        assert gate.statements == ["INSERT", "BEGIN", "INSERT", "SAVEPOINT", "DELETE", "RELEASE", "INSERT", "COMMIT"]
        assert await store.positions("orders") == {"source-b'3'": b"3"}


async def test_nobody_is_answered_before_the_commit(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    gate = Gate(database)
    answered = []

    async def save(store: SqliteStore) -> None:
        await store.save_positions("orders", {"web": b"1"})
        answered.append("save")

    async with SqliteStore(database) as store, trio.open_nursery() as nursery:
        nursery.start_soon(save, store)
        await gate.wait_until_reached()
        await trio.testing.wait_all_tasks_blocked()
        before = list(answered)
        gate.open()

    assert before == []
    assert answered == ["save"]


async def test_a_cancelled_caller_leaves_at_once_and_the_others_are_answered(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    gate = Gate(database)
    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            for number in range(10):
                nursery.start_soon(store.save_positions, "orders", {f"source-{number}": b"1"})
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as leaving:
                    leaving.start_soon(store.save_positions, "orders", {"left-1": b"1"})
                    leaving.start_soon(store.positions, "orders")
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            # The thread still stands at the gate: those who left did not wait for it.
            assert scope.cancelled_caught
            assert store.commits == 0
            gate.open()

        saved = await store.positions("orders")
        assert {f"source-{number}" for number in range(10)} <= saved.keys()
        assert await store.positions("first") == {"web": b"1"}


async def test_a_read_never_shows_what_is_rolled_back(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    fill(database)
    gate = Gate(database)
    read: list[dict[str, bytes]] = []

    async def look(store: SqliteStore) -> None:
        read.append(await store.positions("orders"))

    async with SqliteStore(database) as store, trio.open_nursery() as nursery:
        await hold(store, gate, nursery)
        nursery.start_soon(expect_full, store, {"web": b"x" * 1_000_000})
        nursery.start_soon(look, store)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    assert read == [{"web": b"before"}]


async def test_a_full_disk_fails_the_whole_group_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    fill(database)
    gate = Gate(database)
    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            nursery.start_soon(expect_full, store, {"web": b"small"})
            nursery.start_soon(expect_full, store, {"shop": b"small", "fax": b"x" * 1_000_000})
            nursery.start_soon(expect_full, store, {"post": b"small"})
            await trio.testing.wait_all_tasks_blocked()
            gate.open()

        assert await store.positions("orders") == {"web": b"before"}
        assert store.commits == 1


async def test_a_full_disk_that_fails_a_transaction_of_several_statements_rolls_all_back(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    fill(database)
    gate = Gate(database)

    async def forget(store: SqliteStore) -> None:
        with pytest.raises(StateFailed, match="full"):
            await store.forget_positions("orders")

    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            nursery.start_soon(forget, store)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(expect_full, store, {"web": b"x" * 1_000_000})
            await trio.testing.wait_all_tasks_blocked()
            gate.open()

        assert gate.statements[1:6] == ["BEGIN", "SAVEPOINT", "DELETE", "RELEASE", "INSERT"]
        assert await store.positions("orders") == {"web": b"before"}


async def test_a_full_disk_does_not_outlast_itself(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    fill(database)
    async with SqliteStore(database) as store:
        await expect_full(store, {"web": b"x" * 1_000_000})
        await store.save_positions("orders", {"web": b"after"})

        assert await store.positions("orders") == {"web": b"after"}
    async with await SqliteStore.open(tmp_path) as reopened:
        assert await reopened.positions("orders") == {"web": b"after"}


async def test_a_write_that_cannot_be_bound_is_rolled_back_with_its_group_and_the_next_goes_on(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    database.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    gate = Gate(database)

    async def expect_refusal(call: Callable[..., Awaitable[None]], *arguments: object) -> None:
        with pytest.raises(StateFailed, match="too big"):
            await call(*arguments)

    async with SqliteStore(database) as store:
        async with trio.open_nursery() as nursery:
            await hold(store, gate, nursery)
            nursery.start_soon(expect_refusal, store.forget_positions, "first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(expect_refusal, store.save_positions, "first", {"web": b"x" * 200_000})
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
        await store.save_positions("second", {"web": b"1"})

        assert await store.positions("first") == {"web": b"1"}
        assert await store.positions("second") == {"web": b"1"}


async def test_closing_finishes_the_writes_that_wait(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    gate = Gate(database)
    store = SqliteStore(database)
    async with trio.open_nursery() as nursery:
        await hold(store, gate, nursery)
        nursery.start_soon(store.save_positions, "orders", {"web": b"1"})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(store.close)
        nursery.start_soon(store.close)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    async with await SqliteStore.open(tmp_path) as reopened:
        assert await reopened.positions("orders") == {"web": b"1"}


def fill(database: StateDatabase) -> None:
    """Let the database grow no further, as on a full disk; what fits into its free pages may still be saved."""
    rows = [("orders", "position", "web", b"before")]
    database.connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
    (pages,) = database.connection.execute("PRAGMA page_count").fetchone()
    database.connection.execute(f"PRAGMA max_page_count = {pages + 1}")


async def expect_full(store: SqliteStore, positions: dict[str, bytes]) -> None:
    with pytest.raises(StateFailed, match=r"state\.db could not be written: .*full") as failure:
        await store.save_positions("orders", positions)
    assert isinstance(failure.value.__cause__, sqlite3.OperationalError)
    assert failure.value.suggestion == "free space on that disk"
