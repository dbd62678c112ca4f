"""Snapshots of a PostgreSQL source: rows and changes together are the table, whatever changes while they are read."""

import random
from typing import Any

import psycopg
import pytest
import trio
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.pgoutput import LogicalMessage
from conduit_connectors.postgres.position import TableProgress
from conduit_connectors.postgres.schemas import TypeCatalog
from conduit_connectors.postgres.session import DatabaseSession
from conduit_connectors.postgres.snapshot import PREFIX, Snapshot, sees_transactions
from hypothesis import given
from hypothesis import strategies as st
from postgres_changes import PATIENCE_SECONDS, ChangeReader, open_reader, run_sql, slot_of

from conduit_py.sdk import FatalError, Operation, Record


def apply(table: dict[Any, Any], records: list[Record]) -> None:
    """Do with each record what a destination with a row for each key does."""
    for record in records:
        if record.metadata.get("postgres.truncate"):
            table.clear()
            continue
        assert isinstance(record.key, dict)
        key = tuple(record.key.values())
        if record.operation is Operation.DELETE:
            table.pop(key, None)
        else:
            assert isinstance(record.payload.after, dict)
            table[key] = tuple(record.payload.after.values())


async def test_a_row_that_changes_before_its_chunk_is_given_once_as_its_change(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    run_sql(postgres, "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 6) g")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])

    async with open_reader(source) as reader:
        # After the slot was created, and before the first chunk is selected.
        run_sql(
            postgres, "UPDATE t SET v = 'new' WHERE id = 2", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (7)"
        )
        run_sql(postgres, "UPDATE t SET id = 8 WHERE id = 4")
        records = await reader.take(8)

    changes, rows = records[:5], records[5:]
    assert [(record.operation, record.key) for record in changes] == [
        (Operation.UPDATE, {"id": 2}),
        (Operation.DELETE, {"id": 3}),
        (Operation.CREATE, {"id": 7}),
        (Operation.DELETE, {"id": 4}),
        (Operation.CREATE, {"id": 8}),
    ]
    assert [(record.operation, record.key) for record in rows] == [
        (Operation.SNAPSHOT, {"id": number}) for number in (1, 5, 6)
    ]


async def test_rows_that_come_behind_the_end_of_a_snapshot_are_given_as_changes_alone(postgres: str) -> None:
    """Else the snapshot of a table that grows as fast as it is read would never end."""
    run_sql(postgres, "CREATE TABLE t (a text, b int, PRIMARY KEY (a, b))")
    run_sql(postgres, "INSERT INTO t SELECT 'k', g FROM generate_series(1, 5) g")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"], chunk_size=2)

    async with open_reader(source) as reader:
        first = await reader.take(2)
        run_sql(postgres, "INSERT INTO t SELECT 'k', g FROM generate_series(6, 9) g", "DELETE FROM t WHERE b = 4")
        others = await reader.take_until_quiet()
    async with open_reader(source, first[-1].position) as reader:
        again = await reader.take_until_quiet()

    for records in (others, again):
        rows = [record.payload["b"] for record in records if record.operation is Operation.SNAPSHOT]
        created = [record.payload["b"] for record in records if record.operation is Operation.CREATE]
        assert created == [6, 7, 8, 9]
        # The second chunk may have been selected before the row was deleted.
        assert rows in ([3, 5], [3, 4, 5])


async def test_a_change_without_a_large_value_leaves_the_row_of_the_chunk_with_it(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, big text, v text, other text)")
    run_sql(postgres, "ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL")
    run_sql(
        postgres, "INSERT INTO t SELECT g, repeat('b', 9000), 'old', repeat('o', 9000) FROM generate_series(1, 3) g"
    )
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])

    async with open_reader(source) as reader:
        run_sql(postgres, "UPDATE t SET v = 'new' WHERE id = 2", "UPDATE t SET other = 'short' WHERE id = 2")
        records = await reader.take(5)

    assert [(record.operation, record.key) for record in records] == [
        (Operation.UPDATE, {"id": 2}),
        (Operation.UPDATE, {"id": 2}),
        *((Operation.SNAPSHOT, {"id": number}) for number in (1, 2, 3)),
    ]
    assert records[0].metadata["postgres.unchanged"] == '["big","other"]'
    assert records[3].payload.after == {"id": 2, "big": "b" * 9000, "v": "new", "other": "short"}
    assert "postgres.unchanged" not in records[3].metadata


async def test_a_truncate_before_the_watermark_leaves_no_row_of_the_chunk(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3)")

    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (4)", "TRUNCATE t", "INSERT INTO t VALUES (5)")
        records = await reader.take(3)
        rest = await reader.take_until_quiet()

    assert [(record.operation, record.key) for record in records] == [
        (Operation.CREATE, {"id": 4}),
        (Operation.DELETE, None),
        (Operation.CREATE, {"id": 5}),
    ]
    assert rest == []


async def test_several_tables_are_read_in_chunks_and_resumed_at_any_row(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE a (x text, y int, PRIMARY KEY (y, x))", "CREATE TABLE b (id bigint PRIMARY KEY)")
    run_sql(postgres, "CREATE SCHEMA s", 'CREATE TABLE s."C d" ("Id " uuid PRIMARY KEY, empty text)')
    run_sql(postgres, "INSERT INTO a VALUES ('ä', 1), ('b', 1), ('', 2), ('\"', 2), ('c,d', 2)")
    run_sql(postgres, """INSERT INTO s."C d" SELECT gen_random_uuid() FROM generate_series(1, 4)""")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["a", "b", "s.C d"], chunk_size=2)

    async with open_reader(source) as reader:
        whole = await reader.take(9)
    for index in range(8):
        async with open_reader(source, whole[index].position) as reader:
            assert await reader.take(8 - index) == whole[index + 1 :]

    assert {record.operation for record in whole} == {Operation.SNAPSHOT}
    keys: list[Any] = [record.key for record in whole[:5]]
    assert keys == sorted(keys, key=lambda key: (key["y"], key["x"].encode()))
    assert [record.metadata["opencdc.collection"] for record in whole] == ["public.a"] * 5 + ["s.C d"] * 4


async def test_a_column_that_comes_during_the_snapshot_is_in_the_rows_that_follow(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 4)")

    async with open_reader(
        connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"], chunk_size=2)
    ) as reader:
        records = await reader.take(2)
        run_sql(postgres, "ALTER TABLE t ADD v int DEFAULT 7")
        records += await reader.take(2)

    assert [record.payload.after for record in records] == [{"id": 1}, {"id": 2}, {"id": 3, "v": 7}, {"id": 4, "v": 7}]


async def test_only_the_published_columns_and_rows_are_read(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, shown text, hidden text)")
    run_sql(postgres, "CREATE PUBLICATION part FOR TABLE t (id, shown) WHERE (id > 2)")
    run_sql(postgres, "INSERT INTO t SELECT g, 'a', 'b' FROM generate_series(1, 4) g")

    async with open_reader(
        connector.Source(url=postgres, slot=slot_of(postgres), publication="part", chunk_size=1)
    ) as reader:
        records = await reader.take(2)
        run_sql(postgres, "INSERT INTO t VALUES (0, 'c', 'd'), (5, 'e', 'f')")
        records += await reader.take(1)

    assert [record.payload.after for record in records] == [
        {"id": 3, "shown": "a"},
        {"id": 4, "shown": "a"},
        {"id": 5, "shown": "e"},
    ]


async def test_rows_of_a_table_that_inherits_are_not_read_as_those_of_its_parent(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE parent (id int PRIMARY KEY, v text)", "CREATE TABLE child () INHERITS (parent)")
    run_sql(postgres, "INSERT INTO parent VALUES (1, 'parent'), (2, 'parent')", "INSERT INTO child VALUES (1, 'child')")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["parent"])
    async with open_reader(source) as reader:
        rows = await reader.take(2)
        run_sql(postgres, "UPDATE child SET v = 'changed'", "INSERT INTO parent VALUES (3, 'parent')")
        rows += await reader.take(1)

    assert [row.payload.after for row in rows] == [{"id": number, "v": "parent"} for number in (1, 2, 3)]


async def test_a_table_without_a_key_is_refused_before_anything_is_read(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE log (line text)")

    with pytest.raises(FatalError, match=r"public\.log has no key that is published") as refused:
        async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["log"])):
            pass

    assert 'snapshot="never"' in str(refused.value.suggestion)


async def test_a_table_that_goes_before_it_was_read_is_refused_and_never_skipped_silently(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    run_sql(postgres, "INSERT INTO a SELECT generate_series(1, 3)", "INSERT INTO b VALUES (1)")
    run_sql(postgres, "CREATE PUBLICATION going FOR TABLE a, b")
    source = connector.Source(url=postgres, slot=slot_of(postgres), publication="going", chunk_size=1)
    async with open_reader(source) as reader:
        [first] = await reader.take(1)
    run_sql(postgres, "DROP TABLE b")

    with pytest.raises(FatalError, match=r"public\.b was not read to its end") as refused:
        async with open_reader(source, first.position):
            pass
    changes = source.with_options(source.options.model_copy(update={"snapshot": "never"}))
    async with open_reader(changes, first.position) as reader:
        run_sql(postgres, "INSERT INTO a VALUES (9)")
        [next_one] = await reader.take(1)

    assert 'snapshot="never"' in str(refused.value.suggestion)
    assert (next_one.operation, next_one.key) == (Operation.CREATE, {"id": 9})


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX by_code"])
async def test_rows_and_changes_together_are_the_table_under_load(postgres: str, identity: str) -> None:
    """Every row changes once, at some time during a snapshot in small chunks that is interrupted again and again."""
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL, v int)")
    run_sql(postgres, "CREATE UNIQUE INDEX by_code ON t (code)", f"ALTER TABLE t REPLICA IDENTITY {identity}")
    run_sql(postgres, f"INSERT INTO t SELECT g, g, 0 FROM generate_series(1, {LOAD_ROWS}) g")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"], chunk_size=40, heartbeat_seconds=0.1)
    rng = random.Random(7)
    table: dict[Any, Any] = {}
    position: bytes | None = None

    async def read_once(reader: ChangeReader) -> None:
        nonlocal position
        reading = await reader.source.read(rng.choice([1, 3, 50]))
        apply(table, list(reading.records))
        position = reading.position or reading.records[-1].position
        await reader.source.ack([position])

    def is_done() -> bool:
        return position is not None and b"snapshot" not in position and (-1,) in table

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_every_row, postgres, rng.randrange(1000))
            while not is_done():
                async with open_reader(source, position) as reader:
                    position = position or reader.source.start_position()
                    for _ in range(rng.randrange(1, 100)):
                        if not is_done():
                            await read_once(reader)

    column = 1 if identity.startswith("USING") else 0
    rows = run_sql(postgres, "SELECT id, code, v FROM t")
    assert table == {(row[column],): row for row in rows}


LOAD_ROWS = 2000


async def change_every_row(dsn: str, seed: int) -> None:
    """Change each row in one of four ways, then insert -1. A second change of a row would hide that it was wrong."""
    rng = random.Random(seed)
    ids = rng.sample(range(1, LOAD_ROWS + 1), LOAD_ROWS)

    def change(connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(min(rng.randrange(1, 5), len(ids))):
                one = ids.pop()
                statement = rng.choice(
                    [
                        f"UPDATE t SET v = 1 WHERE id = {one}",
                        f"DELETE FROM t WHERE id = {one}",
                        f"UPDATE t SET id = {one} + {LOAD_ROWS}, code = {one} + {LOAD_ROWS} WHERE id = {one}",
                        f"INSERT INTO t VALUES ({one} - 10000, {one} - 10000, 2)",
                    ]
                )
                connection.execute(statement.encode())

    with psycopg.connect(dsn, autocommit=True) as connection:
        while ids:
            await trio.to_thread.run_sync(change, connection)
        connection.execute("INSERT INTO t VALUES (-1, -1, -1)")


def test_a_snapshot_does_not_see_a_transaction_before_its_commit(postgres: str) -> None:
    with psycopg.connect(postgres) as writer, psycopg.connect(postgres, autocommit=True) as reader:
        [xid] = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or [0]
        before = reader.execute("SELECT pg_current_snapshot()::text").fetchone() or [""]
        # Another transaction ends later and began later, so that this one is in the list of running ones.
        reader.execute("SELECT pg_current_xact_id()")
        between = reader.execute("SELECT pg_current_snapshot()::text").fetchone() or [""]
        writer.commit()
        after = reader.execute("SELECT pg_current_snapshot()::text").fetchone() or [""]

    seen = [sees_transactions(each[0].encode(), [xid]) for each in (before, between, after)]
    assert seen == [False, False, True]


async def test_a_chunk_is_selected_again_until_it_sees_what_the_stream_has_given(postgres: str) -> None:
    """The stream has a commit a moment before others see it, and longer if a standby is slow."""
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    run_sql(postgres, "CREATE PUBLICATION p FOR TABLE t")
    [[oid]] = run_sql(postgres, "SELECT 't'::regclass::oid::int8")
    snapshot = Snapshot("p", {"public.t": oid}, (TableProgress("public.t"),), chunk_size=10)
    types, session = TypeCatalog(), await DatabaseSession.connect(postgres)
    with psycopg.connect(postgres) as writer:
        [xid] = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or [0]
        writer.execute("UPDATE t SET v = 'new'")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshot.select_chunk, session, types, [xid % 2**32])
            # Long enough for several selects. If the machine is slower than that, the test shows less.
            await trio.sleep(0.2)
            writer.commit()
    session.close()
    assert snapshot.chunk is not None
    [row] = snapshot.finish_chunk(LogicalMessage(True, 1, PREFIX, snapshot.chunk.watermark), "1", 1)

    assert row.after == {"id": 1, "v": "new"}


@given(st.integers(3, 2**64 - 1), st.integers(0, 2**20), st.integers(0, 2**20), st.data())
def test_visibility_holds_when_the_numbers_of_transactions_begin_again(
    low: int, width: int, distance: int, data: Any
) -> None:
    high = low + width
    running = data.draw(st.lists(st.integers(low, max(low, high - 1)), max_size=5)) if width else []
    text = b"%d:%d:%s" % (low, high, b",".join(b"%d" % each for each in running))

    assert not sees_transactions(text, [(low - 1) % 2**32, (high + distance) % 2**32])
    assert sees_transactions(text, [(low - 1 - distance) % 2**32])
    for each in running:
        assert not sees_transactions(text, [each % 2**32])
