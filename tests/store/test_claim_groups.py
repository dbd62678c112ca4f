"""Transactions of several claims that share one commit of SQLite: a refused one touches no other."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from conduit_py.errors import ConduitError, Fenced, Repeated, StaleToken, StateFailed
from conduit_py.store.claim import Changes, ClaimState, PublishedMessage, ShardChange
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.tables import Tables


class Gate:
    """Keeps the store's thread busy with one look until opened, so that what is asked meanwhile shares a commit."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._open = threading.Event()

    async def hold(self, nursery: trio.Nursery) -> None:
        held = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def wait(tables: Tables) -> None:
            token.run_sync_soon(held.set)
            assert self._open.wait(300)

        nursery.start_soon(self._store.look, wait)
        await held.wait()

    def open(self) -> None:
        self._open.set()


async def together(store: SqliteStore, *calls: Callable[[], Awaitable[object]]) -> list[BaseException | None]:
    """Run the calls in one group, in this order; returns how each failed."""
    failures: list[BaseException | None] = [None] * len(calls)

    async def attempt(index: int) -> None:
        try:
            await calls[index]()
        except Exception as error:
            failures[index] = error

    gate = Gate(store)
    async with trio.open_nursery() as nursery:
        await gate.hold(nursery)
        for index in range(len(calls)):
            nursery.start_soon(attempt, index)
            await trio.testing.wait_all_tasks_blocked()
        gate.open()
    return failures


async def test_a_refused_transaction_touches_no_other_of_its_group(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path) as store:
        good, zombie, late, loser = [await store.claim(owner) for owner in ("good", "zombie", "late", "loser")]
        await store.claim("zombie")
        other = await store.claim("other")
        before = store.commits
        failures = await together(
            store,
            lambda: good.commit(
                Changes(1, b"one", {b"k": b"1"}, [("ids", b"a")], [PublishedMessage("mail", b"", b"1")])
            ),
            lambda: zombie.commit(Changes(1, b"", {b"k": b"v"})),
            lambda: late.commit(Changes(1, b"", {b"k": b"v"}, [("ids", b"b"), ("ids", b"a")])),
            lambda: store.save_positions("positions", {"web": b"1"}),
            lambda: loser.commit(Changes(1, b"", {b"k": b"v"}, shards=[ShardChange("files", "x", "t", b"", b"1")])),
            lambda: good.commit(Changes(2, b"two", {b"k": b"2"}, [("ids", b"b")])),
            lambda: other.commit(Changes(1, b"one", {b"k": b"3"})),
        )

        assert [type(failure) for failure in failures] == [
            type(None),
            Fenced,
            Repeated,
            type(None),
            StaleToken,
            type(None),
            type(None),
        ]
        assert store.commits == before + 1
        assert [await claim.get(b"k") for claim in (good, zombie, late, loser, other)] == [b"2", None, None, None, b"3"]
        assert await store.claim_state("good") == ClaimState(1, 2, b"two")
        assert await store.claim_state("late") == ClaimState(1)
        assert await store.seen.known("ids", [b"a", b"b"]) == {b"a", b"b"}
        assert await store.positions("positions") == {"web": b"1"}


async def test_a_claim_and_a_commit_of_the_same_owner_in_one_group_keep_their_order(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path) as store:
        old = await store.claim("orders")
        failures = await together(
            store,
            lambda: old.commit(Changes(1, b"one")),
            lambda: store.claim("orders"),
            lambda: old.commit(Changes(2, b"two")),
        )

        assert [type(failure) for failure in failures] == [type(None), type(None), Fenced]
        assert await store.claim_state("orders") == ClaimState(2, 1, b"one")


async def test_work_that_is_wrong_in_itself_touches_no_other(tmp_path: Path) -> None:
    def wrong(tables: Tables) -> None:
        tables.claim("wrong")
        raise ValueError("an error of ours")

    async with await SqliteStore.open(tmp_path) as store:
        claim = await store.claim("orders")
        failures = await together(
            store,
            lambda: claim.commit(Changes(1, b"one")),
            lambda: store.transact(wrong),
            lambda: claim.commit(Changes(2, b"two", {b"k": object()})),  # type: ignore[dict-item]
            lambda: claim.commit(Changes(2, b"two", messages=[PublishedMessage("mail", b"", None)])),  # type: ignore[arg-type]
            lambda: claim.commit(Changes(2, b"two")),
        )

        assert [type(failure) for failure in failures] == [
            type(None),
            ValueError,
            sqlite3.ProgrammingError,
            sqlite3.IntegrityError,
            type(None),
        ]
        assert await store.claim_state("orders") == ClaimState(1, 2, b"two")
        assert await store.claim_state("wrong") is None


async def test_a_full_disk_fails_the_group_and_the_transaction_may_be_tried_again(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    async with SqliteStore(database) as store:
        claim = await store.claim("orders")
        (pages,) = database.connection.execute("PRAGMA page_count").fetchone()
        database.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        changes = Changes(1, b"one", {b"k": b"x" * 1_000_000}, [("ids", b"a")])
        with pytest.raises(StateFailed, match="full") as failure:
            await claim.commit(changes)
        database.connection.execute("PRAGMA max_page_count = 1000000")
        await claim.commit(changes)

        assert isinstance(failure.value.__cause__, sqlite3.OperationalError)
        assert not isinstance(failure.value, Fenced)
        assert (await store.claim_state("orders"), len(await claim.scan())) == (ClaimState(1, 1, b"one"), 1)


async def test_refusals_are_errors_of_ours_that_say_that_nothing_was_committed(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path) as store:
        claim = await store.claim("orders")
        await store.seen.remember("ids", [b"\x0a"])
        with pytest.raises(ConduitError) as refused:
            await claim.commit(Changes(1, b"", once=[("ids", b"\x0a")]))

    assert str(refused.value) == "key 0a of scope 'ids' was recorded as seen already; nothing was committed"
