"""Snapshots of a MySQL source: rows and changes together are the table, whatever changes while they are read."""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import trio
from conduit_connectors import mysql as connector
from conduit_connectors.mysql.address import connect
from conduit_connectors.mysql.log_cursor import LogPlace
from conduit_connectors.mysql.position import BinlogPosition, GtidState, UnreadTable
from conduit_connectors.mysql.session import DatabaseStatements
from conduit_connectors.mysql.snapshot import ChunkedSnapshot, is_condition
from mariadb_changes import database_of, open_reader, replica_of, run_sql
from postgres_changes import PATIENCE_SECONDS

from conduit_py.sdk import FatalError, Operation, Record, SnapshotRefused, SnapshotRequest
from conduit_py.testing.services import MariaDbServer


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[MariaDbServer]:
    """A server that no other test writes to: positions of rows, and chunks, have places in its log."""
    with MariaDbServer.started() as server:
        yield server


def source_of(url: str, *tables: str, **options: Any) -> connector.Source:
    return connector.Source(url=url, server_id=replica_of(url), tables=list(tables), **options)


def apply(table: dict[Any, Any], records: list[Record]) -> None:
    """Do with each record what a destination with a row for each key does."""
    for record in records:
        if record.metadata.get("conduit.truncate"):
            table.clear()
            continue
        assert isinstance(record.key, dict)
        key = tuple(record.key.values())
        if record.operation is Operation.DELETE:
            table.pop(key, None)
        else:
            assert isinstance(record.payload.after, dict)
            table[key] = tuple(record.payload.after.values())


async def test_changes_before_a_chunk_are_given_before_it_and_the_chunk_has_their_state(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT seq, 'old' FROM seq_1_to_3")

    async with open_reader(source_of(mariadb, "t")) as reader:
        # After the start was found, and before the first chunk is selected.
        run_sql(mariadb, "UPDATE t SET v = 'new' WHERE id = 2", "DELETE FROM t WHERE id = 3")
        records = await reader.take(4)

    assert [(record.operation, record.key) for record in records] == [
        (Operation.UPDATE, {"id": 2}),
        (Operation.DELETE, {"id": 3}),
        (Operation.SNAPSHOT, {"id": 1}),
        (Operation.SNAPSHOT, {"id": 2}),
    ]
    assert [record.payload["v"] for record in records[2:]] == ["old", "new"]


async def test_changes_after_a_chunk_are_given_after_its_rows(mariadb: str) -> None:
    """The chunk is selected, then rows change, and only then the stream comes to the place of the chunk."""
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")

    async with open_reader(source_of(mariadb, "t")) as reader:
        run_sql(mariadb, "UPDATE t SET v = 'before' WHERE id = 1")
        log = reader.source._log
        while log.cursor.place is None:
            await reader.source._streaming.wait()
            await log.handle(reader.source._streaming.take())
        await log.snapshot.select_chunk(reader.source._asked, log.cursor.place)
        run_sql(mariadb, "UPDATE t SET v = 'after' WHERE id = 1", "DELETE FROM t WHERE id = 2")
        records = await reader.take(5)

    assert [(record.operation, record.key, record.payload.after and record.payload["v"]) for record in records] == [
        (Operation.UPDATE, {"id": 1}, "before"),
        (Operation.SNAPSHOT, {"id": 1}, "before"),
        (Operation.SNAPSHOT, {"id": 2}, "old"),
        (Operation.UPDATE, {"id": 1}, "after"),
        (Operation.DELETE, {"id": 2}, None),
    ]


async def test_several_tables_are_read_in_chunks_and_resumed_at_any_row(mariadb: str) -> None:
    run_sql(
        mariadb,
        "CREATE TABLE a (x varchar(10) COLLATE utf8mb4_general_ci, y enum('b','a'), PRIMARY KEY (y, x))",
        "CREATE TABLE b (id bigint PRIMARY KEY)",
        "CREATE TABLE `C d` (`I d` varbinary(10), f float, t timestamp(6), PRIMARY KEY (`I d`, f, t))",
        "INSERT INTO a VALUES ('ä', 'a'), ('B', 'a'), ('', 'b'), ('\"\\\\', 'b'), ('c%d', 'b')",
        "INSERT INTO `C d` VALUES (x'00ff', 0.1, '2020-01-01'), (x'00ff', 0.1, '2020-01-01 00:00:00.000001'),"
        " (x'00ff', 0.3, '2020-01-01'), ('', 1e30, '2020-01-01')",
    )
    source = source_of(mariadb, "C d", "a", "b", chunk_size=2)

    async with open_reader(source) as reader:
        whole = await reader.take(9)
    for index in range(8):
        async with open_reader(source, whole[index].position) as reader:
            assert await reader.take(8 - index) == whole[index + 1 :]

    assert {record.operation for record in whole} == {Operation.SNAPSHOT}
    keys: list[Any] = [tuple((record.key or {}).values()) for record in whole]
    assert len(set(keys)) == 9
    assert keys[4:] == [("b", ""), ("b", '"\\'), ("b", "c%d"), ("a", "ä"), ("a", "B")]
    name = database_of(mariadb)
    assert [record.metadata["opencdc.collection"] for record in whole] == [f"{name}.C d"] * 4 + [f"{name}.a"] * 5


async def test_a_column_that_comes_during_the_snapshot_is_in_the_rows_that_follow(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_4")

    async with open_reader(source_of(mariadb, "t", chunk_size=2)) as reader:
        records = await reader.take(2)
        run_sql(mariadb, "ALTER TABLE t ADD v int DEFAULT 7")
        records += await reader.take(2)

    assert [record.payload.after for record in records] == [{"id": 1}, {"id": 2}, {"id": 3, "v": 7}, {"id": 4, "v": 7}]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("(line text)", "has no primary key"),
        ("(line text, PRIMARY KEY (line(5)))", "has no primary key"),
        ("(id int PRIMARY KEY) ENGINE = MyISAM", "is of the engine MyISAM"),
    ],
)
async def test_a_table_that_cannot_be_read_in_chunks_is_refused_before_anything_is_read(
    mariadb: str, shape: str, reason: str
) -> None:
    run_sql(mariadb, f"CREATE TABLE log {shape}")

    with pytest.raises(FatalError, match=reason) as refused:
        async with open_reader(source_of(mariadb, "log")):
            pass

    assert 'snapshot="never"' in str(refused.value.suggestion)


async def test_a_table_that_goes_before_it_was_read_is_refused_and_never_skipped_silently(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    run_sql(mariadb, "INSERT INTO a SELECT seq FROM seq_1_to_3", "INSERT INTO b VALUES (1)")
    source = source_of(mariadb, "a", "b", chunk_size=1)
    async with open_reader(source) as reader:
        [first] = await reader.take(1)

    with pytest.raises(FatalError, match="was not read to its end, and is not in `tables`") as refused:
        async with open_reader(source_of(mariadb, "a"), first.position):
            pass
    async with open_reader(source_of(mariadb, "a", snapshot="never"), first.position) as reader:
        run_sql(mariadb, "INSERT INTO a VALUES (9)")
        [next_one] = await reader.take(1)

    assert 'snapshot="never"' in str(refused.value.suggestion)
    assert (next_one.operation, next_one.key) == (Operation.CREATE, {"id": 9})


async def test_rows_and_changes_together_are_the_table_under_load(mariadb: str) -> None:
    """Every row changes once, at some time during a snapshot in small chunks that is interrupted again and again."""
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v int)", f"INSERT INTO t SELECT seq, 0 FROM seq_1_to_{ROWS}")
    source = source_of(mariadb, "t", chunk_size=40, heartbeat_seconds=0.1)
    rng = random.Random(7)
    table: dict[Any, Any] = {}
    position: bytes | None = None

    def is_done() -> bool:
        return position is not None and b"snapshot" not in position and (-1,) in table

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            for writer in range(3):
                nursery.start_soon(change_every_row, mariadb, writer)
            while not is_done():
                async with open_reader(source, position) as reader:
                    position = position or reader.source.start_position()
                    for _ in range(rng.randrange(1, 100)):
                        if not is_done():
                            reading = await reader.source.read(rng.choice([1, 3, 50]))
                            apply(table, list(reading.records))
                            position = reading.position or reading.records[-1].position
    run_sql(mariadb, "INSERT INTO t VALUES (-2, -2)")
    async with open_reader(source, position) as reader:
        while (-2,) not in table:
            apply(table, await reader.take(1))

    assert table == {(int(number),): (int(number), int(v)) for number, v in run_sql(mariadb, "SELECT id, v FROM t")}


ROWS = 1500


async def change_every_row(url: str, writer: int) -> None:
    """Change each third row in one of four ways, then insert -1. A second change would hide that one was wrong."""
    rng = random.Random(writer)
    ids = list(range(1 + writer, ROWS + 1, 3))
    rng.shuffle(ids)

    def change(cursor: Any) -> None:
        cursor.execute("BEGIN")
        for _ in range(min(rng.randrange(1, 5), len(ids))):
            one = ids.pop()
            cursor.execute(
                rng.choice(
                    [
                        f"UPDATE t SET v = 1 WHERE id = {one}",
                        f"DELETE FROM t WHERE id = {one}",
                        f"UPDATE t SET id = {one} + {ROWS} WHERE id = {one}",
                        f"INSERT INTO t VALUES ({one} - 10000, 2)",
                    ]
                )
            )
        cursor.execute(rng.choice(["COMMIT"] * 9 + ["ROLLBACK"]))

    with closing(connect(url)) as connection, connection.cursor() as cursor:
        while ids:
            await trio.to_thread.run_sync(change, cursor)
        cursor.execute("INSERT IGNORE INTO t VALUES (-1, -1)")


async def test_a_chunk_is_selected_again_until_it_sees_what_the_stream_has_given(mariadb: str) -> None:
    """The stream has a commit a moment before others see it, and longer if a replica is slow."""
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    snapshot = ChunkedSnapshot((UnreadTable(f"{database_of(mariadb)}.t"),), chunk_size=10)
    session = await DatabaseStatements.connect(mariadb)
    [[file, offset]] = [row[:2] for row in run_sql(mariadb, "SHOW MASTER STATUS")]
    later: LogPlace = (int(file.rpartition(".")[2]), int(offset) + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshot.select_chunk, session, later)
        # Long enough for several selects. If the machine is slower than that, the test shows less.
        await trio.sleep(0.2)
        assert snapshot.needs_chunk
        run_sql(mariadb, "UPDATE t SET v = 'new'")
    at = BinlogPosition.at("1", GtidState(), ())
    [row] = snapshot.finish_chunk((later[0] + 1, 0), at, session.escape)
    session.close()

    assert row.after == {"id": 1, "v": "new"}


async def test_a_snapshot_ends_under_load_although_its_table_grows_as_fast_as_it_is_read(mariadb: str) -> None:
    """Each chunk is followed by as many new rows behind it. The stream has those, so the snapshot needs none."""
    run_sql(
        mariadb,
        "CREATE TABLE t (kind enum('b', 'a'), id int, PRIMARY KEY (kind, id))",
        "INSERT INTO t SELECT 'b', seq FROM seq_1_to_6",
        "INSERT INTO t SELECT 'a', seq FROM seq_1_to_6",
    )
    source, grown, position = source_of(mariadb, "t", chunk_size=2, heartbeat_seconds=0.1), 6, None
    snapshot: list[Any] = []
    with trio.fail_after(PATIENCE_SECONDS):
        while position is None or BinlogPosition.decode(position).snapshot:
            # Opened again, as after a crash: the end is a part of the position.
            async with open_reader(source, position) as reader:
                chunk: list[Any] = []
                # On a quick machine the stream comes first, each time with the rows that were new.
                while not chunk and (position is None or BinlogPosition.decode(position).snapshot):
                    reading = await reader.source.read(100)
                    position = reading.position or reading.records[-1].position
                    chunk = [each.key for each in reading.records if each.operation is Operation.SNAPSHOT]
            snapshot += chunk
            run_sql(mariadb, f"INSERT INTO t SELECT 'a', seq FROM seq_{grown + 1}_to_{grown + 3}")
            grown += 3

    assert snapshot == [{"kind": kind, "id": number} for kind in "ba" for number in range(1, 7)]


@pytest.mark.parametrize("stored", [b'["d.t",["1"],null,null]', b'["d.t"]'])
def test_the_progress_that_earlier_versions_stored_is_read(stored: bytes) -> None:
    """They had no end. The next chunk finds one."""
    position = b'{"server":"1","gtids":"0-1-7","snapshot":[%b],"version":1}' % stored

    [table] = BinlogPosition.decode(position).snapshot
    assert (table.table, table.until) == ("d.t", None)


async def test_a_table_is_read_again_on_request_and_the_request_survives_a_crash(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT seq, seq FROM seq_1_to_4")
    source = source_of(mariadb, "t", snapshot="never", chunk_size=1, heartbeat_seconds=1e6)

    async with open_reader(source) as reader, trio.open_nursery() as nursery:
        readings: list[Any] = []

        async def read() -> None:
            readings.append(await reader.source.read(10))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await reader.source.request_snapshot(SnapshotRequest("t", where="v % 2 = 0 OR v LIKE '%9'"))
        await reader.source.request_snapshot(SnapshotRequest("t", where="v % 2 = 0 OR v LIKE '%9'"))
    [reading] = readings
    async with open_reader(source, reading.position) as reader:
        rows = await reader.take(2)
        assert await reader.take_until_quiet(0.2) == []

    assert reading.records == []
    assert [(row.operation, row.key) for row in rows] == [(Operation.SNAPSHOT, {"id": number}) for number in (2, 4)]
    assert BinlogPosition.decode(rows[-1].position).snapshot == ()


async def test_a_request_that_waits_already_gives_no_empty_reading(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["t"], snapshot="never")

    async with open_reader(source) as reader:
        await reader.source.request_snapshot(SnapshotRequest("t"))
        announced = await reader.source.read(10)
        await reader.source.request_snapshot(SnapshotRequest("t"))
        rows = await reader.source.read(10)

    assert (announced.records, announced.position is None) == ([], False)
    assert [record.key for record in rows.records] == [{"id": 1}]


async def test_a_request_is_in_the_positions_of_records_that_were_read_before(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = source_of(mariadb, "t", snapshot="never")
    async with open_reader(source) as reader:
        run_sql(mariadb, "INSERT INTO t SELECT seq FROM seq_2_to_4")
        [first] = await reader.take(1, n=1)
        await reader.source.request_snapshot(SnapshotRequest("t"))
        reading = await reader.source.read(1)
    async with open_reader(source, reading.records[0].position) as reader:
        rest = await reader.take(5)

    assert BinlogPosition.decode(first.position).snapshot == ()
    assert [(each.operation, each.key) for each in rest] == [
        (Operation.CREATE, {"id": 4}),
        *((Operation.SNAPSHOT, {"id": number}) for number in (1, 2, 3, 4)),
    ]


@pytest.mark.parametrize(
    ("collection", "where", "reason"),
    [
        ("other", None, "does not read a table other"),
        ("keyless", None, "has no primary key"),
        ("t", "nothing = 1", "refuses the condition"),
        ("t", "1) UNION SELECT 1, 2 -- ", "comment"),
        ("t", "1) OR (1", "parenthesis"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_and_the_source_goes_on(
    mariadb: str, collection: str, where: str | None, reason: str
) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE keyless (v int)")
    run_sql(mariadb, "CREATE TABLE other (id int PRIMARY KEY)")
    async with open_reader(source_of(mariadb, "t", "keyless", snapshot="never")) as reader:
        with pytest.raises(SnapshotRefused, match=reason) as refused:
            await reader.source.request_snapshot(SnapshotRequest(collection, where))
        run_sql(mariadb, "INSERT INTO t VALUES (1)")
        [record] = await reader.take(1)

    assert refused.value.suggestion
    assert record.key == {"id": 1}


async def test_a_request_whose_table_is_dropped_is_given_up_and_changes_go_on(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    async with open_reader(source_of(mariadb, "t", "u", snapshot="never")) as reader:
        await reader.source.request_snapshot(SnapshotRequest("u"))
        run_sql(mariadb, "DROP TABLE u", "INSERT INTO t VALUES (1)")
        dropped, record = await reader.take(2)
        keys = [record.key]
        # The changes may come before the chunk is selected: then it is given up after them.
        while BinlogPosition.decode(record.position).snapshot:
            run_sql(mariadb, f"INSERT INTO t VALUES ({len(keys) + 1})")
            [record] = await reader.take(1)
            keys.append(record.key)

    assert dropped.metadata["conduit.truncate"] == "true"
    assert keys == [{"id": number + 1} for number in range(len(keys))]


def test_a_request_never_moves_the_tables_before_it() -> None:
    # A chunk of the first one may be under way, which is found again by its number.
    first, other = UnreadTable("a", request="1"), UnreadTable("b", request="2")
    for begun in (first, UnreadTable("a", key=("5",), request="1")):
        snapshot = ChunkedSnapshot((begun, other), chunk_size=2)
        for table in "abc":
            snapshot.request(UnreadTable(table, request="3"))
        assert snapshot.progress[:2] == (begun, other)
        assert snapshot.progress[-1].table == "c"


def test_conditions_stay_inside_of_their_parentheses() -> None:
    assert is_condition("a = ')' AND (b = \"--\" OR `c;` = 'it''s \\') # ')")
    for text in ("a)", "(a", "a; b", "a -- b", "a /* b", "a # b", "'a", "", " "):
        assert not is_condition(text), text
