"""Changes of tables into SQLite and PostgreSQL: unchanged fields, deletes and truncates, in order with the rest."""

import json
import logging
from typing import Any

import pyarrow as pa
import pytest
import trio
from builders import batch_of
from conduit_connectors import postgres as connector
from conduit_connectors.policy_options import PolicyOptions
from conduit_connectors.spark.changes import ChangeRows
from conduit_connectors.spark.rows import Fields
from conduit_connectors.sql.destination import SqlDestination
from postgres_changes import open_reader, run_sql, slot_of
from sql_world import World, postgres_world, world
from waiting import until

from conduit_py import Destination, Operation, Payload, Pipeline, Record, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import PartId, PieceRefused, metadata
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

__all__ = ["world"]


def change(after: dict[str, Any] | None, *unchanged: str, operation: Operation = Operation.UPDATE) -> Record:
    record = Record(operation=operation, key={"id": (after or {}).get("id")}, payload=Payload(after=after))
    record.metadata = {metadata.UNCHANGED_FIELDS: json.dumps(unchanged)} if unchanged else {}
    return record


def deleted(id: int) -> Record:
    return Record(operation=Operation.DELETE, key={"id": id}, payload=Payload(before={"id": id}))


def truncated(name: str = metadata.TRUNCATE) -> Record:
    return Record(operation=Operation.DELETE, metadata={name: "true"})


def write(destination: SqlDestination[Any], *records: Record) -> dict[int, str]:
    return destination.write(batch_of(*records))


@pytest.fixture(params=["each write", "home", "staged"])
def destination(world: World, request: pytest.FixtureRequest) -> SqlDestination[Any]:
    """A destination in each of its three ways to write. The large column must not be null."""
    world.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT, big TEXT NOT NULL)")
    made = world.opened(table="t", mode="upsert")
    if request.param != "each write":
        made.claim("p", 1)
    if request.param == "staged":
        made.begin("p", 1, [])
    return made


def rows(destination: SqlDestination[Any], sql: str = "SELECT id, v, big FROM t ORDER BY id") -> list[tuple[Any, ...]]:
    if intent := destination.stage():
        destination.apply(intent)
    return destination._db.rows(sql)


class TestUnchanged:
    def test_fields_keep_the_values_that_they_have(self, destination: SqlDestination[Any]) -> None:
        write(destination, change({"id": 1, "v": "a", "big": "x" * 9}), change({"id": 2, "v": "b", "big": "y"}))
        assert write(destination, change({"id": 1, "v": "c"}, "big"), change({"id": 2}, "v", "big")) == {}
        older = change({"id": 2, "v": "d"})
        older.metadata = {"postgres.unchanged": '["big"]'}
        assert write(destination, older) == {}

        assert rows(destination) == [(1, "c", "x" * 9), (2, "d", "y")]

    def test_a_field_that_has_a_value_all_the_same_is_written(self, destination: SqlDestination[Any]) -> None:
        write(destination, change({"id": 1, "v": "a", "big": "x"}))
        write(destination, change({"id": 1, "v": "b", "big": "made by a processor"}, "big"))

        assert rows(destination) == [(1, "b", "made by a processor")]

    def test_an_update_of_no_row_is_skipped_and_named_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        destination = world.opened(table="t", mode="upsert")
        write(destination, change({"id": 1, "v": "a", "big": "x"}))
        with caplog.at_level(logging.WARNING):
            assert write(destination, change({"id": 2, "v": "b"}, "big"), change({"id": 3, "v": "b"}, "big")) == {}

        assert world.read("SELECT id FROM t") == [(1,)]
        assert len(caplog.records) == 1

    def test_a_row_that_can_not_be_completed_is_refused(self, destination: SqlDestination[Any]) -> None:
        write(destination, change({"id": 1, "v": "a", "big": "x"}))
        refused = write(destination, deleted(1), change({"id": 2, "v": "b"}, "big", operation=Operation.CREATE))

        assert refused == {1: "t has no row with its key, from which 'big' could stay unchanged"}
        assert rows(destination) == []

    def test_without_a_table_there_is_no_row(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert")
        records = [change({"id": 1}, "big"), deleted(2), truncated()]
        refused = write(destination, *records, change({"id": 1}, "big", operation=Operation.CREATE))

        assert set(refused) == {3}
        assert world.rows_of("t") == []
        assert world.types() == {}

    def test_metadata_that_is_no_list_refuses_the_record_alone(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert")
        texts = ["", "big", '{"big": 1}', "[1]", "\ud800"]
        bad = [change({"id": 2, "v": "b"}) for _ in texts]
        for record, text in zip(bad, texts, strict=True):
            record.metadata = {metadata.UNCHANGED_FIELDS: text}

        assert set(write(destination, change({"id": 1, "v": "a"}), *bad)) == set(range(1, 6))
        assert world.read("SELECT id FROM t") == [(1,)]


class TestTruncates:
    def test_are_in_order_with_the_rest(self, destination: SqlDestination[Any]) -> None:
        whole = [change({"id": n, "v": "a", "big": "x"}) for n in range(4)]
        older = truncated("postgres.truncate")
        assert write(destination, whole[0], truncated(), whole[1]) == {}
        assert write(destination, whole[2], older, whole[3], change({"id": 3, "v": "b"}, "big")) == {}

        assert rows(destination) == [(3, "b", "x")]

    def test_are_refused_where_every_record_is_a_row(self, world: World) -> None:
        destination = world.opened(table="t")
        refused = destination.write(batch_of({"n": 1}, truncated()))

        assert set(refused) == {1}
        assert world.read("SELECT n FROM t") == [(1,)]

    def test_of_whole_records_as_json(self, world: World) -> None:
        destination = world.opened(table="t", layout="json", mode="upsert")
        write(destination, change({"id": 1}), truncated(), change({"id": 2}))

        assert world.read("SELECT key FROM t") == [('{"id":2}',)]

    def test_a_delete_without_a_key_and_without_the_mark_is_refused(self, destination: SqlDestination[Any]) -> None:
        write(destination, change({"id": 1, "v": "a", "big": "x"}))

        assert set(write(destination, Record(operation=Operation.DELETE))) == {0}
        assert len(rows(destination)) == 1


class TestStagedParts:
    """The same through staging tables."""

    def staged(self, live: connector.Destination, number: int, *records: Record) -> bytes:
        task = live.fresh()
        task.open_part(live.grant(), PartId(0, number))
        assert task.prepare(batch_of(*records)) == {}
        manifest = task.prepared()
        task.discard_part()
        return manifest

    def test_truncates_are_in_order(self, postgres: str) -> None:
        world = postgres_world(postgres)
        whole = [change({"id": n, "v": "a"}) for n in range(4)]
        destination = world.opened(table="t", mode="upsert")
        assert isinstance(destination, connector.Destination)
        first = self.staged(destination, 0, deleted(1), whole[0], whole[1])
        destination.take([first, self.staged(destination, 1, truncated(), whole[3])])

        assert world.read("SELECT id FROM t") == [(3,)]

    def test_unchanged_fields_need_the_rows_one_by_one(self, postgres: str) -> None:
        world = postgres_world(postgres)
        destination = world.opened(table="t", mode="upsert")
        assert isinstance(destination, connector.Destination)
        write(destination, change({"id": 1, "v": "a", "big": "x"}))

        with pytest.raises(PieceRefused):
            destination.take([self.staged(destination, 0, change({"id": 1, "v": "b"}, "big"))])
        assert world.read("SELECT v, big FROM t") == [("a", "x")]


def test_spark_jdbc_refuses_what_it_would_write_as_null() -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("big", pa.string())])
    maker = ChangeRows(Fields(schema, PolicyOptions()), ["id"])
    whole, bad = change({"id": 1, "v": "a", "big": "x"}, "big"), change({"id": 1, "v": "a"})
    bad.metadata = {metadata.UNCHANGED_FIELDS: "no list"}
    made = maker.rows([whole, change({"id": 1, "v": "b"}, "big"), bad, deleted(1), truncated()], "s")

    assert made.kept == [0, 3]
    assert "'big'" in made.refused[1]
    assert set(made.refused) == {1, 2, 4}


BIG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)"
"""A value that the server stores beside its row, and does not send again unless it changes."""


async def test_a_large_value_that_an_update_leaves_alone_before_its_row_is_read_arrives(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    run_sql(postgres, f"INSERT INTO t SELECT g, 'a', {BIG} FROM generate_series(1, 3) g")
    destination = postgres_world(postgres).opened(table="copy", mode="upsert")

    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])) as reader:
        # After the slot was created, and before the first chunk is selected.
        run_sql(postgres, "UPDATE t SET v = 'b' WHERE id = 2")
        records = await reader.take(4)

    assert [record.operation for record in records] == [Operation.UPDATE, *[Operation.SNAPSHOT] * 3]
    assert write(destination, *records) == {}
    assert run_sql(postgres, "SELECT * FROM t EXCEPT SELECT id, v, big FROM copy") == []


async def test_a_table_with_large_values_is_the_same_at_both_ends(postgres: str) -> None:
    for table in ("t", "copy"):
        run_sql(postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, v text, big text NOT NULL)")
    run_sql(postgres, f"INSERT INTO t SELECT g, 'a', {BIG} FROM generate_series(1, 3) g")
    pipeline = Pipeline(
        "p",
        sources=[Source("s", connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"]), atomic=True)],
        destinations=[Destination("d", connector.Destination(url=postgres, table="copy", mode="upsert"))],
        delivery="exactly_once",
    )
    supervisor = Supervisor(pipeline, MemoryStore())

    async def see(sql: str) -> None:
        await until(lambda: run_sql(postgres, f"SELECT count(*) = 1 FROM copy WHERE {sql}") == [(True,)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await see("id = 3")
        # The large value of 2 stays, that of 3 is another one. A truncate comes between changes.
        run_sql(postgres, "UPDATE t SET v = 'b' WHERE id > 1", "UPDATE t SET big = 'short' WHERE id = 3")
        run_sql(postgres, "DELETE FROM t WHERE id = 1")
        await see("id = 3 AND big = 'short'")
        await until(lambda: run_sql(postgres, "SELECT * FROM t EXCEPT SELECT * FROM copy") == [])
        changed = run_sql(postgres, "SELECT id, v, length(big) FROM copy ORDER BY id")
        run_sql(postgres, "TRUNCATE t", f"INSERT INTO t VALUES (9, 'a', {BIG})", "UPDATE t SET v = 'z'")
        await see("id = 9 AND v = 'z'")
        supervisor.stop()

    assert changed == [(2, "b", 400 * 32), (3, "b", 5)]
    assert run_sql(postgres, "SELECT id, v, length(big) FROM copy") == [(9, "z", 400 * 32)]
    assert supervisor.state.status is Status.STOPPED
