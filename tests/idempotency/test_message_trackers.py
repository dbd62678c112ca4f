"""Each message is handled once: trackers in memory, in our store, and in the user's own database (vectors ME-*)."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from conduit_py.errors import Fenced
from conduit_py.idempotency.sqlalchemy_tracker import SqlAlchemyTracker
from conduit_py.idempotency.tracker import (
    REPEATED,
    KeyBusy,
    MemoryTracker,
    MessageTracker,
    Repeat,
    StoreTracker,
    handle_once,
    handle_once_async,
    store_transaction,
)
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore


class Tracked:
    """A tracker with a way to begin a transaction, which is committed unless its block raises."""

    def __init__(self, tracker: MessageTracker[Any], begin: Callable[[], AbstractContextManager[Any]]) -> None:
        self.tracker = tracker
        self.begin = begin

    def once(self, key: bytes) -> bool:
        with self.begin() as open_transaction:
            return self.tracker.once(open_transaction, key)


def made(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    return create_engine(request.getfixturevalue("postgres").replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = made(request, tmp_path)
    yield engine
    engine.dispose()


def sql_tracked(engine: Engine) -> Tracked:
    tracker = SqlAlchemyTracker("orders")
    tracker.create(engine)
    tracker.create(engine)

    @contextmanager
    def begin() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            yield session

    return Tracked(tracker, begin)


def memory_tracked() -> Tracked:
    tracker = MemoryTracker()
    return Tracked(tracker, tracker.transaction)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def tracked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tracked]:
    if request.param == "memory":
        yield memory_tracked()
    else:
        engine = made(request, tmp_path)
        yield sql_tracked(engine)
        engine.dispose()


REPEATS: list[Repeat] = ["skip", "mark"]


@pytest.mark.parametrize("repeat", REPEATS)
def test_me_01_a_repeat_ends_as_normally_as_a_first_time(tracked: Tracked, repeat: Repeat) -> None:
    for _ in range(2):
        with tracked.begin() as open_transaction:
            handle_once(tracked.tracker, open_transaction, b"1", lambda: None, repeat=repeat)

    assert not tracked.once(b"1")


def test_me_02_a_message_is_tracked_when_its_transaction_is_committed_and_not_when_it_is_rolled_back(
    tracked: Tracked,
) -> None:

    def fail() -> None:
        raise ValueError("handler")

    with pytest.raises(ValueError, match="handler"), tracked.begin() as open_transaction:
        handle_once(tracked.tracker, open_transaction, b"1", fail)
    after_rollback = tracked.once(b"1")

    assert (after_rollback, tracked.once(b"1"), tracked.once(b"2")) == (True, False, True)


def test_me_03_a_message_that_was_handled_is_not_handled_again(tracked: Tracked) -> None:
    tracked.once(b"1")
    with tracked.begin() as open_transaction:
        result = handle_once(tracked.tracker, open_transaction, b"1", lambda: pytest.fail("handled again"))

    assert result is None


def test_me_04_a_message_that_was_handled_is_handled_marked_if_that_is_wanted(tracked: Tracked) -> None:
    tracked.once(b"1")
    headers = {"message_id": "1"}
    with tracked.begin() as open_transaction:
        result = handle_once(tracked.tracker, open_transaction, b"1", lambda: "done", headers=headers, repeat="mark")

    assert (result, headers) == ("done", {"message_id": "1", REPEATED: "true"})


def test_me_05_two_messages_with_one_id_are_handled_once_and_two_with_two_ids_twice(tracked: Tracked) -> None:
    handled: list[bytes] = []
    for key in (b"1", b"1", b"2"):
        with tracked.begin() as open_transaction:
            handle_once(tracked.tracker, open_transaction, key, partial(handled.append, key))

    assert handled == [b"1", b"2"]


@pytest.mark.parametrize("repeat", REPEATS)
def test_me_15_the_first_time_the_header_is_absent_whatever_came_with_the_message(
    tracked: Tracked, repeat: Repeat
) -> None:
    headers = {REPEATED: "False"}
    with tracked.begin() as open_transaction:
        handle_once(tracked.tracker, open_transaction, b"1", lambda: None, headers=headers, repeat=repeat)

    assert headers == {}


def test_a_key_twice_in_one_transaction_is_a_repeat(tracked: Tracked) -> None:
    with tracked.begin() as open_transaction:
        answers = [tracked.tracker.once(open_transaction, b"1") for _ in range(2)]

    assert answers == [True, False]


def test_me_10_the_row_of_the_tracker_and_those_of_the_handler_are_committed_together_or_not_at_all(
    engine: Engine,
) -> None:
    tracked = sql_tracked(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))

    def insert(session: Session, number: int) -> None:
        session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        if number == 2:
            raise OSError("later")

    with tracked.begin() as session:
        handle_once(tracked.tracker, session, b"1", lambda: insert(session, 1))
    with pytest.raises(OSError, match="later"), tracked.begin() as session:
        handle_once(tracked.tracker, session, b"2", lambda: insert(session, 2))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id FROM orders")).all()

    assert [tuple(row) for row in rows] == [(1,)]
    assert (tracked.once(b"1"), tracked.once(b"2")) == (False, True)


def test_me_14_an_error_that_is_no_repeat_is_raised_and_the_message_may_come_again(engine: Engine) -> None:
    tracked = sql_tracked(engine)
    failing = [OperationalError("INSERT", {}, OSError("the disk is full"))]

    @event.listens_for(engine, "before_cursor_execute")
    def fail(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if failing and statement.startswith("INSERT"):
            raise failing.pop()

    handled: list[int] = []
    with pytest.raises(OperationalError), tracked.begin() as session:
        handle_once(tracked.tracker, session, b"1", lambda: handled.append(1))
    with tracked.begin() as session:
        handle_once(tracked.tracker, session, b"1", lambda: handled.append(2))

    assert handled == [2]


def test_me_14_a_missing_table_is_an_error_and_not_a_repeat(engine: Engine) -> None:
    with pytest.raises(Exception, match=r"no such table|does not exist"), Session(engine) as session:
        SqlAlchemyTracker("orders").once(session, b"1")


def test_databases_without_an_insert_that_ignores_tell_a_repeat_by_the_row_that_is_there(engine: Engine) -> None:
    tracker = SqlAlchemyTracker("orders")
    tracker.create(engine)
    answers = []
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE work (id INTEGER)"))
        for key in (b"1", b"2", b"1"):
            answers.append(tracker._once_by_error(session, {"scope": "orders", "key": key, "at": 0.0}))
        session.execute(text("INSERT INTO work VALUES (1)"))

    with pytest.raises(Exception, match=r"NOT NULL|not-null"), Session(engine) as session:
        tracker._once_by_error(session, {"scope": "orders", "key": b"3", "at": None})
    assert answers == [True, True, False]


@pytest.mark.parametrize("first_commits", [True, False])
def test_me_16_the_second_of_two_at_once_waits_and_goes_on_only_if_the_first_is_rolled_back(
    postgres: str, first_commits: bool
) -> None:
    engine = create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"))
    tracked = sql_tracked(engine)
    inserted = threading.Event()

    def waits() -> bool:
        query = text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        with engine.connect() as connection:
            return bool(connection.execute(query).scalar())

    def first() -> None:
        with Session(engine) as session:
            tracked.tracker.once(session, b"1")
            inserted.set()
            while not waits():
                pass
            session.commit() if first_commits else session.rollback()

    with ThreadPoolExecutor() as pool:
        running = pool.submit(first)
        assert inserted.wait(300)
        second = tracked.once(b"1")
        running.result(10)
    engine.dispose()

    assert second is not first_commits


def test_me_16_in_memory_the_second_of_two_at_once_is_asked_to_come_again() -> None:
    tracker = MemoryTracker()

    def second() -> None:
        with tracker.transaction() as late:
            tracker.once(late, b"1")

    # Its error rolls the first one back too.
    with pytest.raises(KeyBusy), tracker.transaction() as first:
        handle_once(tracker, first, b"1", second)

    with tracker.transaction() as third:
        assert tracker.once(third, b"1")


def test_keys_are_forgotten_when_they_are_old_and_other_scopes_stay(engine: Engine) -> None:
    now = [1000.0]
    orders, returns = (SqlAlchemyTracker(scope, clock=lambda: now[0]) for scope in ("orders", "returns"))
    orders.create(engine)
    with Session(engine) as session, session.begin():
        assert orders.once(session, b"old")
        assert returns.once(session, b"old")
        now[0] += 100
        assert orders.once(session, b"young")
        forgotten = orders.forget(session, 50)

    assert forgotten == 1
    with Session(engine) as session:
        assert [orders.seen(session, key) for key in (b"old", b"young")] == [False, True]
        assert returns.seen(session, b"old")


def test_a_tracker_in_memory_forgets_what_is_older_than_its_retention() -> None:
    now = [0.0]
    tracker = MemoryTracker(retention_seconds=60, clock=lambda: now[0])
    for at, key in ((0, b"1"), (50, b"2"), (61, b"1")):
        now[0] = at
        with tracker.transaction() as open_transaction:
            assert tracker.once(open_transaction, key)

    assert len(tracker) == 2


def test_a_session_of_asyncio_takes_part_in_the_same_way(postgres: str) -> None:
    address = postgres.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(address)
    tracker = SqlAlchemyTracker("orders")
    tracker.create(engine)
    engine.dispose()

    async def main() -> list[bool]:
        answers = []
        async_engine = create_async_engine(address)
        for commits in (False, True, True):
            async with AsyncSession(async_engine) as session:
                answers.append(await tracker.once_async(session, b"1"))
                await (session.commit() if commits else session.rollback())
        await async_engine.dispose()
        return answers

    assert asyncio.run(main()) == [True, True, False]


async def test_me_02_me_05_our_own_store_tracks_with_state_and_outbox_or_not_at_all() -> None:
    store = MemoryStore()
    claim = await store.claim("billing")
    tracker = StoreTracker("orders")

    async def bill(message: bytes) -> str | None:
        async with store_transaction(claim) as unit:

            async def handler() -> str:
                total = int(await unit.get(b"total") or b"0") + 1
                unit.put(b"total", b"%d" % total)
                unit.intend("mail", message, b"bill")
                if message == b"bad":
                    raise ValueError("bad")
                return "billed"

            return await handle_once_async(tracker, unit, message, handler)

    answers = [await bill(message) for message in (b"1", b"1", b"2")]
    with pytest.raises(ValueError, match="bad"):
        await bill(b"bad")
    pending = await store.outbox.lease("mail", "me", 1, 10)

    assert answers == ["billed", None, "billed"]
    assert await claim.get(b"total") == b"2"
    assert [intent.key for intent in pending or []] == [b"1", b"2"]
    assert await store.seen.known("orders", [b"1", b"2", b"bad"]) == {b"1", b"2"}


async def test_me_12_what_is_tracked_survives_a_new_start(tmp_path: Path) -> None:
    tracker = StoreTracker("orders")
    answers = []
    for _ in range(2):
        async with await SqliteStore.open(tmp_path) as store, store_transaction(await store.claim("billing")) as unit:
            answers.append([await tracker.once(unit, key) for key in (b"1", b"1")])

    assert answers == [[True, False], [False, False]]


async def test_a_handler_that_was_taken_over_commits_nothing() -> None:
    store = MemoryStore()
    claim = await store.claim("billing")

    async def handle() -> None:
        async with store_transaction(claim) as unit:
            unit.put(b"k", b"v")
            await store.claim("billing")

    with pytest.raises(Fenced):
        await handle()

    assert await claim.get(b"k") is None
