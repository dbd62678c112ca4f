"""What only a store in PostgreSQL can do or suffer: several servers, broken connections, other people's databases."""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
import trio.testing
from warm_python import WarmPython, run_warm

from conduit_py.errors import EnvironmentUnfit, Fenced, Repeated, RunElsewhere, StateFailed
from conduit_py.store.claim import Changes, Claim, ClaimState
from conduit_py.store.postgres.store import PostgresStore
from conduit_py.store.postgres.tables import FORMAT_VERSION
from conduit_py.store.store import open_store
from conduit_py.store.tables import Tables
from conduit_py.testing.services import PostgresServer

CHILD = Path(__file__).with_name("claim_child.py")
Database = psycopg.Connection[Any]


@pytest.fixture
async def stores(database: Database, shared_database: str) -> AsyncIterator[list[PostgresStore]]:
    """Two servers on one database."""
    async with (
        await PostgresStore.open(shared_database) as one,
        await PostgresStore.open(shared_database) as other,
    ):
        yield [one, other]


async def test_claims_in_two_servers_fence_each_other(stores: list[PostgresStore]) -> None:
    first = await stores[0].claim("orders")
    await first.commit(Changes(1, b"one", {b"k": b"1"}))
    second = await stores[1].claim("orders")
    await second.commit(Changes(2, b"two", {b"k": b"2"}))
    with pytest.raises(Fenced):
        await first.commit(Changes(2, b"mine"))

    assert await stores[0].claim_state("orders") == ClaimState(2, 2, b"two")
    assert await first.get(b"k") == b"2"


class SlowCommit:
    """Commits the first transaction of a claim, then waits inside it for `go_on`."""

    def __init__(self, claim: Claim) -> None:
        self.entered, self.go_on = trio.Event(), trio.Event()
        self._claim = claim
        self._token = trio.lowlevel.current_trio_token()

    def __call__(self, tables: Tables) -> None:
        tables.commit(self._claim.owner, self._claim.fence, Changes(1, b"one"))
        self._token.run_sync_soon(self.entered.set)
        trio.from_thread.run(self.go_on.wait, trio_token=self._token)


async def test_a_claim_waits_for_a_commit_that_is_under_way_and_finds_it(stores: list[PostgresStore]) -> None:
    claim = await stores[0].claim("orders")
    newer: list[ClaimState] = []
    slow = SlowCommit(claim)

    async def claim_again() -> None:
        again = await stores[1].claim("orders")
        newer.append(ClaimState(again.fence, again.committed, again.checkpoint))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stores[0].transact, slow)
        await slow.entered.wait()
        nursery.start_soon(claim_again)
        await wait_for_lock(stores[1])
        waited = not newer
        slow.go_on.set()

    assert waited
    assert newer == [ClaimState(2, 1, b"one")]


async def wait_for_lock(store: PostgresStore) -> None:
    """Until some transaction waits for the row of another."""

    def waiting(tables: Tables) -> int:
        rows: list[Any] = tables.sql.rows(  # type: ignore[attr-defined]
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(rows[0][0])

    async def somebody_waits() -> bool:
        return bool(await store.look(waiting))

    await eventually(somebody_waits)


async def eventually(happens: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(300):
        while True:
            if await happens():
                return
            await trio.sleep(0.01)


@pytest.mark.parametrize("succeeds", [True, False])
async def test_me_16_of_two_who_record_a_key_at_once_the_second_waits_for_the_first(
    stores: list[PostgresStore], succeeds: bool
) -> None:
    claim = await stores[1].claim("second")
    outcome: list[str] = []
    entered, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def first(tables: Tables) -> None:
        tables.remember("ids", [b"a"])
        token.run_sync_soon(entered.set)
        trio.from_thread.run(go_on.wait, trio_token=token)
        if not succeeds:
            raise ValueError("rolled back")

    async def first_commits() -> None:
        try:
            await stores[0].transact(first)
        except ValueError:
            outcome.append("first rolled back")

    async def second_commits() -> None:
        try:
            await claim.commit(Changes(1, b"", once=[("ids", b"a")]))
            outcome.append("second committed")
        except Repeated:
            outcome.append("second repeated")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first_commits)
        await entered.wait()
        nursery.start_soon(second_commits)
        await wait_for_lock(stores[1])
        go_on.set()

    assert sorted(outcome) == (["second repeated"] if succeeds else ["first rolled back", "second committed"])


async def test_a_pipeline_is_held_by_one_server_at_a_time(stores: list[PostgresStore]) -> None:
    one, other = stores
    async with one.run_lock("orders"), other.run_lock("returns"):
        with pytest.raises(RunElsewhere, match=r"pipeline 'orders' is run by process \d+ on \S+, which shares"):
            async with other.run_lock("orders"):
                pytest.fail("held twice")
        with pytest.raises(RunElsewhere):
            async with one.run_lock("orders"):
                pytest.fail("held twice in one server")
    # Not at once: PostgreSQL ends the session of a closed connection in its own time.
    await eventually(lambda: try_to_hold(other, "orders"))


async def test_a_server_that_was_killed_holds_nothing(database: Database, shared_database: str) -> None:
    command = [sys.executable, str(CHILD), "held", shared_database, "orders"]
    with WarmPython(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert await trio.to_thread.run_sync(holder.stdout.readline) == b"held\n"
        refused = await trio.to_thread.run_sync(partial(run_warm, command, check=True))
        holder.kill()
    async with await PostgresStore.open(shared_database) as store:
        await eventually(lambda: try_to_hold(store, "orders"))

    assert refused.stdout.startswith(f"pipeline 'orders' is run by process {holder.pid} on ")


async def try_to_hold(store: PostgresStore, pipeline: str) -> bool:
    try:
        async with store.run_lock(pipeline):
            return True
    except RunElsewhere:
        return False


async def test_connections_that_broke_while_idle_are_replaced_unseen(
    stores: list[PostgresStore], database: Database
) -> None:
    await stores[0].save_positions("orders", {"web": b"1"})
    end_connections(database)
    await stores[0].save_positions("orders", {"web": b"2"})
    claim = await stores[0].claim("orders")
    end_connections(database)
    await claim.commit(Changes(1, b"one"))

    assert await stores[1].positions("orders") == {"web": b"2"}


async def test_a_connection_that_breaks_within_a_transaction_fails_it_whole_and_nothing_else(
    stores: list[PostgresStore], database: Database
) -> None:
    claim = await stores[0].claim("orders")

    def broken(tables: Tables) -> None:
        tables.commit("orders", claim.fence, Changes(1, b"one"))
        end_connections(database)
        tables.claim_state("orders")

    with pytest.raises(StateFailed, match=r"^postgresql://127\.0\.0\.1:\d+/test_\d+ could not be written: ") as failed:
        await stores[0].transact(broken)
    await claim.commit(Changes(1, b"again"))

    assert isinstance(failed.value.__cause__, psycopg.OperationalError)
    assert await stores[1].claim_state("orders") == ClaimState(1, 1, b"again")


async def test_a_transaction_that_would_wait_for_ever_is_run_again(stores: list[PostgresStore]) -> None:
    await stores[0].claim("a")
    await stores[0].claim("b")
    runs: list[str] = []
    met = {"a": trio.Event(), "b": trio.Event()}
    token = trio.lowlevel.current_trio_token()

    def cross(first: str, second: str, tables: Tables) -> None:
        runs.append(first)
        tables.claim(first)
        token.run_sync_soon(met[first].set)
        trio.from_thread.run(met[second].wait, trio_token=token)
        tables.claim(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stores[0].transact, lambda tables: cross("a", "b", tables))
        nursery.start_soon(stores[1].transact, lambda tables: cross("b", "a", tables))

    assert len(runs) >= 3
    assert [await stores[0].claim_state(owner) for owner in "ab"] == [ClaimState(3), ClaimState(3)]


def end_connections(database: Database) -> None:
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def test_servers_that_create_the_tables_at_once_take_turns(postgres: str) -> None:
    async def open_and_claim() -> None:
        async with await PostgresStore.open(postgres) as store:
            await store.claim("orders")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(open_and_claim)
    async with await PostgresStore.open(postgres) as store:
        claimed = await store.claim_state("orders")

    assert claimed == ClaimState(5)


async def test_a_newer_format_is_refused_and_left_alone(postgres: str) -> None:
    async with await PostgresStore.open(postgres):
        pass
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE conduit_py.format SET version = version + 1")
    with pytest.raises(EnvironmentUnfit, match=rf"has format version {FORMAT_VERSION + 1}; this conduit-py can read"):
        await PostgresStore.open(postgres)


async def test_an_address_that_leads_nowhere_is_refused_without_its_password() -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        await open_store("postgresql://me:secret@127.0.0.1:1/orders")

    assert str(refused.value).startswith("postgresql://127.0.0.1:1/orders cannot be used: ")
    assert "secret" not in f"{refused.value} {refused.value.suggestion}"
    assert refused.value.suggestion == "check the address and the user in --state, and that the server is running"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("postgresql://host/x?colour=red", "--state is not an address of a PostgreSQL database"),
        ("mysql://me:secret@host/x", "--state cannot be mysql://…"),
    ],
)
async def test_an_address_that_is_none_is_refused(state: str, message: str) -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        await open_store(state)

    assert str(refused.value).startswith(message)


async def test_a_user_who_may_not_create_the_schema_is_refused_with_what_to_do(
    postgres: str, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(EnvironmentUnfit, match="permission denied for database") as refused:
        await PostgresStore.open(postgres.replace("tester@", "guest@"))

    assert refused.value.suggestion == (
        "let the user create the schema conduit_py, or create it and make the user its owner"
    )


async def test_commits_wait_for_the_disk_even_where_the_database_does_not_ask_for_it(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {postgres.rpartition('/')[2]} SET synchronous_commit = off")

    def setting(tables: Tables) -> str:
        return str(tables.sql.rows("SHOW synchronous_commit")[0][0])  # type: ignore[attr-defined]

    async with await PostgresStore.open(postgres) as store:
        assert await store.look(setting) == "on"


async def test_a_cancelled_caller_leaves_and_its_transaction_is_whole_or_absent(stores: list[PostgresStore]) -> None:
    claim = await stores[0].claim("orders")
    slow = SlowCommit(claim)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stores[0].transact, slow)
        await slow.entered.wait()
        nursery.cancel_scope.cancel()
    during = await stores[1].claim_state("orders")
    slow.go_on.set()
    # A newer claim waits for what is under way.
    after = await stores[1].claim("orders")

    assert during == ClaimState(1)
    assert (after.fence, after.committed, after.checkpoint) == (2, 1, b"one")
