"""The MySQL source gives every change once, in the order of the log, with everything that the server logs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conduit_connectors import mysql as connector
from conduit_connectors.mysql.position import BinlogPosition
from mariadb_changes import database_of, open_reader, replica_of, run_sql, run_transaction

from conduit_py.sdk import FatalError, Operation, Record
from conduit_py.testing import source_acceptance
from conduit_py.testing.services import MariaDbServer


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[MariaDbServer]:
    """A server that no other test writes to: positions of rows, and chunks, have places in its log."""
    with MariaDbServer.started() as server:
        yield server


@pytest.fixture(scope="module")
def shared_database(mariadb_server: MariaDbServer) -> Iterator[str]:
    """One database for all rules of the acceptance suite."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


def changes_of_a_log(shared_database: str) -> Iterator[connector.Source]:
    run_sql(shared_database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    [[start]] = run_sql(shared_database, "SELECT @@gtid_binlog_pos")
    inserts = "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    run_transaction(shared_database, inserts, "UPDATE t SET id = 4 WHERE id = 3")
    run_sql(shared_database, "UPDATE t SET v = 'x' WHERE id = 1", "DELETE FROM t WHERE id = 2", "TRUNCATE t")
    yield connector.Source(
        url=shared_database, server_id=replica_of(shared_database), tables=["t"], snapshot="never", start=start
    )
    run_sql(shared_database, "DROP TABLE t")


def rows_of_a_table(shared_database: str) -> Iterator[connector.Source]:
    run_sql(shared_database, "CREATE TABLE t (a varchar(10), b int, v double, PRIMARY KEY (b, a))")
    run_sql(shared_database, "INSERT INTO t SELECT concat('k', seq % 3), seq, seq / 7 FROM seq_1_to_8")
    yield connector.Source(url=shared_database, server_id=replica_of(shared_database), tables=["t"], chunk_size=3)
    run_sql(shared_database, "DROP TABLE t")


TestChangesOfALog = source_acceptance(changes_of_a_log, records=8)
TestRowsOfATable = source_acceptance(rows_of_a_table, records=8)


@pytest.fixture
def changes(mariadb: str) -> connector.Source:
    """A source of the table t, and no snapshot."""
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    return connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["t"], snapshot="never")


def essence(record: Record) -> tuple[Any, ...]:
    return record.operation, record.key, record.payload.before, record.payload.after


async def test_changes_have_their_key_and_both_versions_of_the_row(mariadb: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "INSERT INTO t VALUES (1, 'a', NULL)", "UPDATE t SET v = 'b'", "DELETE FROM t")
        records = await reader.take(3)

    first, second = {"id": 1, "v": "a", "big": None}, {"id": 1, "v": "b", "big": None}
    assert [essence(record) for record in records] == [
        (Operation.CREATE, {"id": 1}, None, first),
        (Operation.UPDATE, {"id": 1}, first, second),
        (Operation.DELETE, {"id": 1}, second, None),
    ]
    assert {record.metadata["opencdc.collection"] for record in records} == {f"{database_of(mariadb)}.t"}


async def test_records_of_one_transaction_have_its_gtid_server_and_time(
    mariadb: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_transaction(mariadb, "INSERT INTO t (id) VALUES (1)", "INSERT INTO t (id) VALUES (2)")
        run_sql(mariadb, "INSERT INTO t (id) VALUES (3)")
        first, second, third = await reader.take(3)
    [[now]] = run_sql(mariadb, "SELECT UNIX_TIMESTAMP()")

    keys = ("mysql.gtid", "mysql.server_id", "opencdc.createdAt")
    assert [first.metadata[key] for key in keys] == [second.metadata[key] for key in keys]
    assert first.metadata["mysql.gtid"] != third.metadata["mysql.gtid"]
    assert first.metadata["mysql.server_id"] == "1"
    assert 0 < int(third.metadata["opencdc.createdAt"]) / 1e9 <= float(now)


async def test_a_reading_says_whether_its_transaction_goes_on(mariadb: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_transaction(mariadb, "INSERT INTO t (id) SELECT seq FROM seq_1_to_3")
        run_sql(mariadb, "INSERT INTO t (id) VALUES (4)")
        readings = [await reader.source.read(1) for _ in range(4)]

    assert [reading.continues for reading in readings] == [True, True, False, False]


async def test_a_change_of_the_key_is_a_delete_and_a_create(mariadb: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "INSERT INTO t VALUES (1, 'a', NULL)", "UPDATE t SET id = 2")
        _, gone, come = await reader.take(3)

    assert essence(gone) == (Operation.DELETE, {"id": 1}, {"id": 1, "v": "a", "big": None}, None)
    assert essence(come) == (Operation.CREATE, {"id": 2}, None, {"id": 2, "v": "a", "big": None})


async def test_truncated_dropped_and_replaced_tables_are_deletes_without_a_key(
    mariadb: str, changes: connector.Source
) -> None:
    name = database_of(mariadb)
    run_sql(mariadb, "CREATE TABLE u (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    source = connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["t", f"{name}.u"], snapshot="never")
    async with open_reader(source) as reader:
        run_sql(mariadb, "TRUNCATE TABLE other", "truncate /* hello */ t", f"DROP TABLE other, `{name}`.`u`, t")
        run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE OR REPLACE TABLE t (id int PRIMARY KEY)")
        records = await reader.take(4)

    assert [essence(record) for record in records] == [(Operation.DELETE, None, None, None)] * 4
    tables = [record.metadata["opencdc.collection"] for record in records]
    assert tables == [f"{name}.{table}" for table in ("t", "u", "t", "t")]
    assert {record.metadata["conduit.truncate"] for record in records} == {"true"}
    assert len({record.position for record in records}) == 4


async def test_what_is_rolled_back_is_not_there(mariadb: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "BEGIN", "INSERT INTO t (id) VALUES (1)", "ROLLBACK")
        inserts = [f"INSERT INTO t (id) VALUES ({number})" for number in (2, 3)]
        run_transaction(mariadb, inserts[0], "SAVEPOINT a", inserts[1], "ROLLBACK TO a")
        run_sql(mariadb, "INSERT INTO t (id) VALUES (4)")
        records = await reader.take(2)

    assert [record.key for record in records] == [{"id": 2}, {"id": 4}]


async def test_new_renamed_and_changed_columns_are_in_the_rows_that_follow(
    mariadb: str, changes: connector.Source
) -> None:
    """All of it is in the log before the first row is read: rows have the columns of their time."""
    async with open_reader(changes) as reader:
        run_sql(mariadb, "INSERT INTO t VALUES (1, '7', NULL)")
        run_sql(mariadb, "ALTER TABLE t RENAME COLUMN v TO w, ADD n decimal(5,2) DEFAULT 1.50 FIRST", "DELETE FROM t")
        run_sql(mariadb, "INSERT INTO t (id, w) VALUES (2, '8')")
        run_sql(mariadb, "ALTER TABLE t MODIFY w int, DROP big", "INSERT INTO t (id, w) VALUES (3, 9)")
        records = await reader.take(4)

    rows = [record.payload.after for record in records if record.operation is Operation.CREATE]
    assert [list(row) for row in rows if isinstance(row, dict)] == [
        ["id", "v", "big"],
        ["n", "id", "w", "big"],
        ["n", "id", "w"],
    ]
    assert (records[2].payload["w"], records[3].payload["w"]) == ("8", 9)


async def test_a_change_of_the_primary_key_of_a_table_changes_the_key_of_records(
    mariadb: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "ALTER TABLE t ADD code int NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (code, id)")
        run_sql(mariadb, "INSERT INTO t (id, code) VALUES (1, 2)")
        run_sql(mariadb, "ALTER TABLE t DROP PRIMARY KEY", "UPDATE t SET id = 5")
        created, updated = await reader.take(2)

    assert (created.key, updated.key) == ({"code": 2, "id": 1}, None)
    assert (updated.operation, updated.payload["id"]) == (Operation.UPDATE, 5)


async def test_generated_and_hidden_columns_are_in_changes_and_snapshots(mariadb: str) -> None:
    run_sql(
        mariadb,
        "CREATE TABLE g (id int PRIMARY KEY, a int AS (id * 2) VIRTUAL, b int AS (id * 3) STORED,"
        " c int INVISIBLE DEFAULT 4)",
        "INSERT INTO g (id) VALUES (1)",
    )
    async with open_reader(connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["g"])) as reader:
        records = await reader.take(1)
        run_sql(mariadb, "INSERT INTO g (id) VALUES (2)")
        records += await reader.take(1)

    assert [record.payload.after for record in records] == [
        {"id": 1, "a": 2, "b": 3, "c": 4},
        {"id": 2, "a": 4, "b": 6, "c": 4},
    ]


async def test_without_tables_all_of_the_database_are_read_and_later_ones_too(
    mariadb: str, mariadb_server: Any
) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)")
    elsewhere = mariadb_server.create_database()
    async with open_reader(connector.Source(url=mariadb, server_id=replica_of(mariadb), snapshot="never")) as reader:
        run_sql(elsewhere, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (9)")
        run_sql(mariadb, "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        run_sql(mariadb, "INSERT INTO t VALUES (2)")
        records = await reader.take(2)
    mariadb_server.drop_database(elsewhere)

    name = database_of(mariadb)
    assert [(each.metadata["opencdc.collection"], each.key) for each in records] == [
        (f"{name}.later", {"id": 1}),
        (f"{name}.t", {"id": 2}),
    ]


async def test_a_large_transaction_resumes_at_any_change_and_is_read_in_parts(
    mariadb: str, changes: connector.Source
) -> None:
    count = 20_000
    async with open_reader(changes) as reader:
        run_sql(mariadb, f"INSERT INTO t (id) SELECT seq FROM seq_1_to_{count}")
        first = await reader.take(7, n=7)
        # What waits here is one event, and what waits before it is bounded in bytes. It is not the transaction.
        assert len(reader.source._log.ready) < 2000
        assert reader.source._stream._size < 5_000_000
    async with open_reader(changes, first[-1].position) as reader:
        rest = await reader.take(count - 7, n=1000)

    assert [record.key for record in first + rest] == [{"id": number} for number in range(1, count + 1)]
    position = BinlogPosition.decode(first[-1].position)
    assert (position.transaction, position.place) == (first[0].metadata["mysql.gtid"], (0, 6, 0))
    assert BinlogPosition.decode(rest[-1].position).transaction is None


async def test_compressed_events_are_read(own_settings: Any, mariadb: str, changes: connector.Source) -> None:
    own_settings("log_bin_compress", "ON")
    async with open_reader(changes) as reader:
        run_sql(mariadb, "INSERT INTO t VALUES (1, repeat('a', 1000), 'x')", "UPDATE t SET big = repeat('b', 1000)")
        run_sql(mariadb, f"DELETE FROM t /* {'long ' * 100} */", f"TRUNCATE TABLE t /* {'long ' * 100} */")
        records = await reader.take(4)

    assert [record.operation.value for record in records] == ["create", "update", "delete", "delete"]
    assert records[1].payload["v"] == "a" * 1000
    assert records[1].payload["big"] == "b" * 1000


@pytest.fixture
def own_settings(mariadb: str) -> Iterator[Any]:
    """Changes settings of the server for one test."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        [[before[name]]] = run_sql(mariadb, f"SELECT @@global.{name}")
        run_sql(mariadb, f"SET GLOBAL {name} = {value}")

    yield change
    for name, value in before.items():
        run_sql(mariadb, f"SET GLOBAL {name} = '{value}'" if not value.isdigit() else f"SET GLOBAL {name} = {value}")


async def test_columns_that_an_update_does_not_log_are_named_and_never_null(
    mariadb: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "SET binlog_row_image = MINIMAL", "INSERT INTO t VALUES (1, 'a', 'x')", "UPDATE t SET v = 'b'")
        run_sql(mariadb, "SET binlog_row_image = NOBLOB", "DELETE FROM t")
        created, updated, deleted = await reader.take(3)

    assert essence(created) == (Operation.CREATE, {"id": 1}, None, {"id": 1, "v": "a", "big": "x"})
    assert essence(updated) == (Operation.UPDATE, {"id": 1}, {"id": 1}, {"id": 1, "v": "b"})
    assert json.loads(updated.metadata["conduit.unchanged"]) == ["big"]
    assert essence(deleted) == (Operation.DELETE, {"id": 1}, {"id": 1}, None)


async def test_a_new_row_without_all_of_its_columns_is_refused(mariadb: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(mariadb, "SET binlog_row_image = MINIMAL", "INSERT INTO t (id) VALUES (1)")
        with pytest.raises(FatalError, match="a new row without all of its columns") as refused:
            await reader.take(1)

    assert "binlog_row_image = FULL" in str(refused.value.suggestion)


async def test_many_changes_of_other_tables_do_not_hold_up_a_record(mariadb: str, changes: connector.Source) -> None:
    """The heartbeat is far away: a source that waits for the server while it has events would wait for it."""
    run_sql(mariadb, "CREATE TABLE other (id int PRIMARY KEY, pad text)")
    far = changes.with_options(changes.options.model_copy(update={"heartbeat_seconds": 1e6}))
    async with open_reader(far) as reader:
        fill = "INSERT INTO other SELECT seq, repeat('x', 1000) FROM seq_1_to_3500"
        run_transaction(mariadb, fill, "INSERT INTO t (id) VALUES (1)")
        [record] = await reader.take(1)

    assert record.key == {"id": 1}
    assert BinlogPosition.decode(record.position).transaction is None
