"""Snapshots of a PostgreSQL source on request: taken while it streams, resumable at any row, and refused at once."""

import logging
from typing import Any

import psycopg
import pytest
import trio
import trio.testing
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.position import SourcePosition, TableProgress, add_request
from postgres_changes import PATIENCE_SECONDS, ChangeReader, open_reader, run_sql, slot_of
from waiting import until

from conduit_py.sdk import Operation, Reading, Record, SnapshotRefused, SnapshotRequest, metadata

ROWS = 5


@pytest.fixture
def shop(postgres: str) -> str:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY)")
    run_sql(postgres, f"INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, {ROWS}) g", "INSERT INTO u VALUES (1)")
    return postgres


def source_of(dsn: str, **options: Any) -> connector.Source:
    given: dict[str, Any] = {
        "tables": ["t", "u"],
        "snapshot": "never",
        "chunk_size": 2,
        "heartbeat_seconds": 600,
    } | options
    return connector.Source(url=dsn, slot=slot_of(dsn), **given)


def left(position: bytes) -> list[tuple[str, tuple[str, ...] | None, str | None]]:
    """The tables that are left to read after a position."""
    return [(each.table, each.key, each.where) for each in SourcePosition.decode(position).snapshot]


def keys(records: list[Record]) -> list[tuple[str, Any]]:
    return [(record.operation.value, record.key and record.key["id"]) for record in records]  # type: ignore[call-overload]


async def test_a_request_wakes_a_waiting_read_and_is_in_its_position(shop: str) -> None:
    readings: list[Reading] = []
    async with open_reader(source_of(shop)) as reader:
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    readings.append(await reader.source.read(100))

                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await reader.source.request_snapshot(SnapshotRequest("t", "id > 3 -- the new ones"))
        rows = await reader.take(2)

    [announced] = readings
    assert (announced.records, left(announced.position or b"")) == ([], [("public.t", None, "id > 3 -- the new ones")])
    assert keys(rows) == [("snapshot", 4), ("snapshot", 5)]
    assert left(rows[-1].position) == []


async def test_a_request_is_resumed_at_any_row_also_without_a_first_snapshot(shop: str) -> None:
    source = source_of(shop)
    async with open_reader(source) as reader:
        await reader.source.request_snapshot(SnapshotRequest("public.t"))
        announced = (await reader.source.read(100)).position
        rows = await reader.take(ROWS)
    for taken, position in enumerate([announced, *(row.position for row in rows[:-1])]):
        async with open_reader(source, position) as reader:
            assert [record.payload for record in await reader.take(ROWS - taken)] == [
                row.payload for row in rows[taken:]
            ]

    assert keys(rows) == [("snapshot", number) for number in range(1, ROWS + 1)]


async def test_a_request_is_in_the_positions_of_records_that_were_read_before_it(shop: str) -> None:
    async with open_reader(source_of(shop, snapshot="initial")) as reader:
        # The first chunk has two rows: one is returned, and the other has its position already.
        first = await reader.take(1, n=1)
        run_sql(shop, "INSERT INTO t VALUES (9)", "UPDATE t SET v = 'x' WHERE id = 9")
        await reader.source.request_snapshot(SnapshotRequest("t", "id > 4"))
        rest = await reader.take(1)
        request = ("public.t", None, "id > 4")
        assert left(rest[0].position)[-1] == request
        rest += await reader.take(8)

    assert left(first[0].position) == [("public.t", ("1",), None), ("public.u", None, None)]
    assert left(rest[0].position) == [("public.t", ("2",), None), ("public.u", None, None), request]
    # The table was being read, so it is read once more after the others. It ended at 5 when it was begun.
    rows = [each for each in keys(first + rest) if each[0] == "snapshot"]
    assert rows == [("snapshot", number) for number in (1, 2, 3, 4, 5, 1, 5, 9)]


async def test_two_requests_for_the_same_rows_are_two_snapshots_with_other_positions(shop: str) -> None:
    async with open_reader(source_of(shop)) as reader:
        rounds = []
        for _ in range(2):
            await reader.source.request_snapshot(SnapshotRequest("u"))
            rounds += await reader.take(1)

    assert keys(rounds) == [("snapshot", 1)] * 2
    assert rounds[0].position != rounds[1].position


async def test_a_request_that_comes_again_while_its_rows_are_selected_loses_no_other(shop: str) -> None:
    # A select of rows of this request waits for the lock.
    again = SnapshotRequest("t", "pg_advisory_xact_lock_shared(7)::text = ''")
    rows: list[Record] = []
    async with open_reader(source_of(shop)) as reader:

        async def read() -> None:
            rows.extend(await reader.take(ROWS + 2))

        await reader.source.request_snapshot(again)
        await reader.source.request_snapshot(SnapshotRequest("u"))
        with trio.fail_after(PATIENCE_SECONDS), psycopg.connect(shop) as holding:
            holding.execute("SELECT pg_advisory_lock(7)")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await until(lambda: run_sql(shop, WAITS_FOR_LOCK))
                await reader.source.request_snapshot(again)
                holding.execute("SELECT pg_advisory_unlock(7)")

    tables = [record.metadata[metadata.COLLECTION] for record in rows]
    assert tables == ["public.t"] * ROWS + ["public.u", "public.t"]
    assert left(rows[0].position)[1:] == [("public.u", None, None), ("public.t", None, again.where)]


WAITS_FOR_LOCK = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""


def test_the_same_request_before_it_is_begun_is_one_request() -> None:
    first, second = TableProgress("t", where="a", request="1"), TableProgress("t", where="a", request="2")
    other, initial = TableProgress("t", where="b", request="3"), TableProgress("t")
    begun = TableProgress("t", key=("5",), where="a", request="1")

    assert add_request((initial, first, other), second) == (initial, other, second)
    assert add_request((begun, other), second) == (begun, other, second)
    assert add_request((first,), second, begun=True) == (first, second)


def test_a_position_of_an_older_version_is_read() -> None:
    old = b'{"system":"7","lsn":"0/1A","snapshot":[["public.t",["5"]],["public.u",null]],"version":1}'
    position = SourcePosition.decode(old)

    assert position.snapshot == (TableProgress("public.t", ("5",)), TableProgress("public.u"))
    assert SourcePosition.decode(position.encode()) == position


REFUSED = [
    ("nothing", None, "the publication .* does not have the table public.nothing"),
    ("hidden", None, "the table public.hidden is not in `tables`"),
    ("keyless", None, "the table public.keyless has no key that is published"),
    ("t", "id >", "syntax error"),
    ("t", "missing = 1", 'column "missing" does not exist'),
    ("t", "id", "must be type boolean"),
    ("t", "v > 1", "operator does not exist"),
    ("t", "id > 3) OR (true", "syntax error"),
    ("t", "true; DROP TABLE u", "syntax error"),
    ("t", "true THEN 1 END; DROP TABLE u; SELECT CASE WHEN true", "multiple commands|syntax error"),
    ("t", "id > $1", "requires 1"),
    ("t", "id > 3 /*", "unterminated"),
    ("t", "id = 1 OR " * 150 + "true", "at most 1000"),
    ("t", "1 / 0 = 1", "division by zero"),
]


async def test_what_cannot_be_read_is_refused_at_the_request(shop: str) -> None:
    run_sql(shop, "CREATE TABLE hidden (id int PRIMARY KEY)", "CREATE TABLE keyless (id int)")
    run_sql(shop, f"CREATE PUBLICATION {slot_of(shop)} FOR TABLE t, u, hidden, keyless")
    run_sql(shop, "ALTER TABLE keyless REPLICA IDENTITY FULL")
    async with open_reader(source_of(shop, tables=["t", "u", "keyless"])) as reader:
        for table, where, message in REFUSED:
            with pytest.raises(SnapshotRefused, match=message) as refused:
                await reader.source.request_snapshot(SnapshotRequest(table, where))
            assert refused.value.suggestion
        run_sql(shop, "INSERT INTO u VALUES (2)")
        [change] = await reader.take(1)

    assert keys([change]) == [("create", 2)]
    assert left(change.position) == []


async def test_a_table_that_was_published_later_can_be_requested(shop: str) -> None:
    run_sql(shop, "CREATE PUBLICATION growing FOR TABLE u", "CREATE TABLE late (id int PRIMARY KEY)")
    run_sql(shop, "INSERT INTO late VALUES (7)")
    source = source_of(shop, tables=None, publication="growing")
    async with open_reader(source) as reader:
        run_sql(shop, "ALTER PUBLICATION growing ADD TABLE late")
        await reader.source.request_snapshot(SnapshotRequest("late"))
        announced = (await reader.source.read(100)).position
        rows = await reader.take(1)
    async with open_reader(source, announced) as reader:
        again = await reader.take(1)

    assert keys(rows) == keys(again) == [("snapshot", 7)]
    assert rows[0].operation is Operation.SNAPSHOT


async def test_a_request_that_fails_later_is_given_up_and_changes_go_on(
    shop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_reader(source_of(shop, heartbeat_seconds=0.1)) as reader:
        # No row fails now, but one does in the second chunk.
        run_sql(shop, "UPDATE t SET v = id", "UPDATE t SET v = 'none' WHERE id = 4")
        await reader.take(ROWS + 1)
        await reader.source.request_snapshot(SnapshotRequest("t", "v::int > 0"))
        rows = await reader.take(2)
        run_sql(shop, "INSERT INTO u VALUES (2)")
        [change] = await reader.take(1)
        await read_until_given_up(reader, caplog, 1)
        # A column of the condition, and then a whole table, go away before they are read.
        await reader.source.request_snapshot(SnapshotRequest("t", "v <> 'none'"))
        await reader.source.request_snapshot(SnapshotRequest("u"))
        run_sql(shop, "ALTER TABLE t DROP v", f"ALTER PUBLICATION {slot_of(shop)} DROP TABLE u")
        await read_until_given_up(reader, caplog, 3)
        run_sql(shop, "INSERT INTO t VALUES (8)")
        [last] = await reader.take(1)

    assert keys(rows) == [("snapshot", 1), ("snapshot", 2)]
    assert (keys([change]), keys([last])) == ([("create", 2)], [("create", 8)])
    given_up = errors_in(caplog)
    assert "snapshot of 'public.t' is given up: it cannot be read: invalid input syntax" in given_up[0]
    assert 'column "v" does not exist' in given_up[1]
    assert "snapshot of 'public.u' is given up: it is not published any more" in given_up[2]


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]


async def read_until_given_up(reader: ChangeReader, caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Read, without a record, until so many requests were given up."""
    with trio.fail_after(PATIENCE_SECONDS):
        while len(errors_in(caplog)) < count:
            # The source returns progress soon: the end of a request is progress.
            assert not (await reader.source.read(100)).records


async def test_a_requested_table_that_is_gone_at_the_next_start_is_given_up(
    shop: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_sql(shop, "CREATE PUBLICATION going FOR TABLE t, u")
    source = source_of(shop, tables=None, publication="going", snapshot="initial")
    async with open_reader(source) as reader:
        await reader.take(ROWS + 1)
        await reader.source.request_snapshot(SnapshotRequest("u"))
        await reader.source.request_snapshot(SnapshotRequest("t", "id = 5"))
        announced = (await reader.source.read(100)).position
    run_sql(shop, "DROP TABLE u")
    async with open_reader(source, announced) as reader:
        rows = await reader.take(1)

    assert keys(rows) == [("snapshot", 5)]
    assert "the requested snapshot of 'public.u' is given up" in caplog.text
