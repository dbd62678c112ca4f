"""The PostgreSQL source gives every change once, in order of the commits, with everything that the server sends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.position import SourcePosition
from postgres_changes import DROP_SLOT, open_reader, run_sql, run_transaction, slot_of

from conduit_py.sdk import FatalError, Operation, Record
from conduit_py.testing import source_acceptance

BIG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)"


@pytest.fixture(scope="module")
def shared_database(postgres_server: Any) -> Iterator[str]:
    """One database for all rules of the acceptance suite: to create one takes longer than a rule."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


def changes_of_a_slot(shared_database: str) -> Iterator[connector.Source]:
    run_sql(
        shared_database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"CREATE PUBLICATION {slot_of(shared_database)} FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{slot_of(shared_database)}', 'pgoutput')",
    )
    inserts = "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    run_transaction(shared_database, inserts, "UPDATE t SET id = 4 WHERE id = 3")
    run_sql(shared_database, "UPDATE t SET v = 'x' WHERE id = 1", "DELETE FROM t WHERE id = 2", "TRUNCATE t")
    yield connector.Source(url=shared_database, slot=slot_of(shared_database), tables=["t"], snapshot="never")
    clean(shared_database)


def rows_of_a_table(shared_database: str) -> Iterator[connector.Source]:
    run_sql(shared_database, "CREATE TABLE t (a text, b int, v float8, PRIMARY KEY (b, a))")
    run_sql(shared_database, "INSERT INTO t SELECT 'k' || g % 3, g, g / 7.0 FROM generate_series(1, 8) g")
    yield connector.Source(url=shared_database, slot=slot_of(shared_database), tables=["t"], chunk_size=3)
    clean(shared_database)


def clean(dsn: str) -> None:
    run_sql(dsn, DROP_SLOT, f"DROP PUBLICATION IF EXISTS {slot_of(dsn)}", "DROP TABLE t")


TestChangesOfASlot = source_acceptance(changes_of_a_slot, records=8)
TestRowsOfATable = source_acceptance(rows_of_a_table, records=8)


@pytest.fixture
def changes(postgres: str) -> connector.Source:
    """A source of the table t, and no snapshot."""
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    return connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"], snapshot="never")


def essence(record: Record) -> tuple[Any, ...]:
    return record.operation, record.key, record.payload.before, record.payload.after


async def test_changes_have_their_key_and_row(postgres: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1, 'a', NULL)", "UPDATE t SET v = 'b'", "DELETE FROM t")
        records = await reader.take(3)

    assert [essence(record) for record in records] == [
        (Operation.CREATE, {"id": 1}, None, {"id": 1, "v": "a", "big": None}),
        (Operation.UPDATE, {"id": 1}, None, {"id": 1, "v": "b", "big": None}),
        (Operation.DELETE, {"id": 1}, {"id": 1}, None),
    ]
    assert {record.metadata["opencdc.collection"] for record in records} == {"public.t"}


async def test_records_of_one_transaction_have_its_number_place_and_time(
    postgres: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_transaction(postgres, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        run_sql(postgres, "INSERT INTO t VALUES (3)")
        first, second, third = await reader.take(3)
    [[xid, later, began]] = run_sql(
        postgres,
        "SELECT (SELECT xmin::text FROM t WHERE id = 1), (SELECT xmin::text FROM t WHERE id = 3),"
        " extract(epoch FROM now())",
    )

    keys = ("postgres.xid", "postgres.lsn", "opencdc.createdAt")
    assert [first.metadata[key] for key in keys] == [second.metadata[key] for key in keys]
    assert (first.metadata["postgres.xid"], third.metadata["postgres.xid"]) == (xid, later)
    assert first.metadata["postgres.lsn"] != third.metadata["postgres.lsn"]
    assert 0 < int(third.metadata["opencdc.createdAt"]) / 1e9 <= float(began)


async def test_a_reading_says_whether_its_transaction_goes_on(postgres: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_transaction(postgres, "INSERT INTO t SELECT generate_series(1, 3)")
        run_sql(postgres, "INSERT INTO t VALUES (4)")
        readings = [await reader.source.read(1) for _ in range(4)]

    assert [reading.continues for reading in readings] == [True, True, False, False]


async def test_a_change_of_the_key_is_a_delete_and_a_create(postgres: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET id = 2")
        _, gone, come = await reader.take(3)

    assert essence(gone) == (Operation.DELETE, {"id": 1}, {"id": 1}, None)
    assert essence(come) == (Operation.CREATE, {"id": 2}, None, {"id": 2, "v": "a", "big": None})


async def test_a_large_value_that_did_not_change_is_named_and_never_null(
    postgres: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, f"INSERT INTO t VALUES (1, 'a', {BIG})", "UPDATE t SET v = 'b'", "UPDATE t SET big = NULL")
        created, updated, emptied = await reader.take(3)

    assert len(created.payload["big"]) == 400 * 32
    assert updated.payload.after == {"id": 1, "v": "b"}
    assert json.loads(updated.metadata["postgres.unchanged"]) == ["big"]
    assert emptied.payload.after == {"id": 1, "v": "b", "big": None}
    assert "postgres.unchanged" not in emptied.metadata


async def test_the_whole_row_as_identity_gives_what_was_before_and_unchanged_values(
    postgres: str, changes: connector.Source
) -> None:
    run_sql(postgres, "ALTER TABLE t REPLICA IDENTITY FULL")
    async with open_reader(changes) as reader:
        run_sql(postgres, f"INSERT INTO t VALUES (1, 'a', {BIG})", "UPDATE t SET v = 'b'", "UPDATE t SET id = 2")
        run_sql(postgres, "DELETE FROM t")
        created, updated, gone, come, deleted = await reader.take(5)

    first: Any = created.payload.after
    assert essence(updated) == (Operation.UPDATE, {"id": 1}, first, first | {"v": "b"})
    assert essence(gone) == (Operation.DELETE, {"id": 1}, first | {"v": "b"}, None)
    assert essence(come) == (Operation.CREATE, {"id": 2}, None, first | {"v": "b", "id": 2})
    assert essence(deleted) == (Operation.DELETE, {"id": 2}, first | {"v": "b", "id": 2}, None)
    assert "postgres.unchanged" not in updated.metadata


async def test_an_index_as_identity_is_the_key(postgres: str, changes: connector.Source) -> None:
    run_sql(postgres, "ALTER TABLE t ALTER v SET NOT NULL", "CREATE UNIQUE INDEX by_v ON t (v)")
    run_sql(postgres, "ALTER TABLE t REPLICA IDENTITY USING INDEX by_v")
    async with open_reader(changes) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET id = 2", "DELETE FROM t")
        created, updated, deleted = await reader.take(3)

    assert [record.key for record in (created, updated, deleted)] == [{"v": "a"}] * 3
    assert (updated.operation, deleted.payload.before) == (Operation.UPDATE, {"v": "a"})


async def test_a_table_without_a_key_gives_inserts(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE log (line text)")
    async with open_reader(
        connector.Source(url=postgres, slot=slot_of(postgres), tables=["log"], snapshot="never")
    ) as reader:
        run_sql(postgres, "INSERT INTO log VALUES ('a')")
        [record] = await reader.take(1)

    assert essence(record) == (Operation.CREATE, None, None, {"line": "a"})


async def test_a_truncate_is_a_delete_without_a_key_for_each_table(postgres: str, changes: connector.Source) -> None:
    run_sql(postgres, "CREATE TABLE u (id int PRIMARY KEY)")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t", "u"], snapshot="never")
    async with open_reader(source) as reader:
        run_sql(postgres, "TRUNCATE t, u")
        records = await reader.take(2)

    assert [essence(record) for record in records] == [(Operation.DELETE, None, None, None)] * 2
    assert {record.metadata["opencdc.collection"] for record in records} == {"public.t", "public.u"}
    assert {record.metadata["postgres.truncate"] for record in records} == {"true"}
    assert len({record.position for record in records}) == 2


async def test_what_is_rolled_back_is_not_there(postgres: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, "BEGIN; INSERT INTO t VALUES (1); ROLLBACK")
        run_transaction(
            postgres, "INSERT INTO t VALUES (2)", "SAVEPOINT a", "INSERT INTO t VALUES (3)", "ROLLBACK TO a"
        )
        run_sql(postgres, "INSERT INTO t VALUES (4)")
        records = await reader.take(2)

    assert [record.key for record in records] == [{"id": 2}, {"id": 4}]


async def test_new_renamed_and_changed_columns_are_in_the_rows_that_follow(
    postgres: str, changes: connector.Source
) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1, '7')")
        run_sql(postgres, "ALTER TABLE t RENAME v TO w", "ALTER TABLE t ADD n numeric DEFAULT 1.50", "DELETE FROM t")
        run_sql(postgres, "INSERT INTO t VALUES (2, '8')")
        run_sql(postgres, "ALTER TABLE t ALTER w TYPE int USING w::int", "ALTER TABLE t DROP big")
        run_sql(postgres, "INSERT INTO t VALUES (3, 9)")
        records = await reader.take(4)

    rows = [record.payload.after for record in records if record.operation is Operation.CREATE]
    assert [sorted(row) for row in rows if isinstance(row, dict)] == [
        ["big", "id", "v"],
        ["big", "id", "n", "w"],
        ["id", "n", "w"],
    ]
    assert records[-1].payload["w"] == 9


async def test_generated_columns_are_left_out_of_changes_and_snapshots(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    run_sql(postgres, "INSERT INTO g VALUES (1)")
    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["g"])) as reader:
        records = await reader.take(1)
        run_sql(postgres, "INSERT INTO g VALUES (2)")
        records += await reader.take(1)

    assert [record.payload.after for record in records] == [{"id": 1}, {"id": 2}]


async def test_partitions_are_given_as_their_table(postgres: str) -> None:
    run_sql(
        postgres,
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p VALUES (1, 'a')",
    )
    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["p"])) as reader:
        records = await reader.take(1)
        run_sql(
            postgres,
            "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
            "INSERT INTO p VALUES (11, 'b')",
            "UPDATE p SET id = 12 WHERE id = 1",
        )
        records += await reader.take(3)

    assert {record.metadata["opencdc.collection"] for record in records} == {"public.p"}
    operations = [(record.operation, record.key) for record in records]
    assert operations[:2] == [(Operation.SNAPSHOT, {"id": 1}), (Operation.CREATE, {"id": 11})]
    assert sorted(operations[2:]) == [(Operation.CREATE, {"id": 12}), (Operation.DELETE, {"id": 1})]


async def test_only_the_tables_asked_for_are_given_and_a_renamed_one_still_is(
    postgres: str, changes: connector.Source
) -> None:
    run_sql(postgres, "CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION all_of_them FOR TABLE t, other")
    source = connector.Source(
        url=postgres, slot=slot_of(postgres), publication="all_of_them", tables=["public.t"], snapshot="never"
    )
    async with open_reader(source) as reader:
        run_sql(postgres, "INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (1)")
        run_sql(postgres, "ALTER TABLE t RENAME TO r", "INSERT INTO r VALUES (2)")
        first, second = await reader.take(2)

    assert [(each.metadata["opencdc.collection"], each.key) for each in (first, second)] == [
        ("public.t", {"id": 1}),
        ("public.r", {"id": 2}),
    ]
    with pytest.raises(FatalError, match=r"does not have public\.t") as refused:
        async with open_reader(source, second.position):
            pass
    assert "renamed" in str(refused.value.suggestion)


async def test_a_table_that_is_added_to_the_publication_later_is_read_too(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION everything FOR ALL TABLES")
    source = connector.Source(url=postgres, slot=slot_of(postgres), publication="everything", snapshot="never")
    async with open_reader(source) as reader:
        run_sql(postgres, "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        run_sql(postgres, "INSERT INTO t VALUES (2)")
        records = await reader.take(1)
        records += await reader.take_until_quiet()

    assert [(each.metadata["opencdc.collection"], each.key) for each in records] == [
        ("public.later", {"id": 1}),
        ("public.t", {"id": 2}),
    ]


async def test_a_large_transaction_resumes_at_any_change_and_is_read_in_parts(
    postgres: str, changes: connector.Source
) -> None:
    count = 20_000
    async with open_reader(changes) as reader:
        run_sql(postgres, f"INSERT INTO t SELECT generate_series(1, {count})")
        first = await reader.take(7)
        # What waits in memory is what was asked for and the record that is held back, not the transaction.
        assert len(reader.source._log.ready) <= 1
    async with open_reader(changes, first[-1].position) as reader:
        rest = await reader.take(count - 7, n=1000)

    assert [record.key for record in first + rest] == [{"id": number} for number in range(1, count + 1)]
    assert SourcePosition.decode(first[-1].position).index == 6
    assert SourcePosition.decode(rest[-1].position).index is None


async def test_messages_of_others_in_the_log_are_ignored(postgres: str, changes: connector.Source) -> None:
    async with open_reader(changes) as reader:
        run_sql(postgres, "SELECT pg_logical_emit_message(true, 'other', 'x')")
        run_sql(postgres, "SELECT pg_logical_emit_message(false, 'conduit-py', 'x')", "INSERT INTO t VALUES (1)")
        records = await reader.take(1)

    assert [record.key for record in records] == [{"id": 1}]


async def test_many_changes_of_other_tables_do_not_hold_up_a_record(postgres: str, changes: connector.Source) -> None:
    """The heartbeat is far away: a source that waits for the server while it has messages would wait for it."""
    run_sql(postgres, "CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION two FOR TABLE t, other")
    update = {"publication": "two", "heartbeat_seconds": 1e6}
    async with open_reader(changes.with_options(changes.options.model_copy(update=update))) as reader:
        run_transaction(postgres, "INSERT INTO other SELECT generate_series(1, 3500)", "INSERT INTO t VALUES (1)")
        [record] = await reader.take(1)

    assert record.key == {"id": 1}
    assert SourcePosition.decode(record.position).index is None
