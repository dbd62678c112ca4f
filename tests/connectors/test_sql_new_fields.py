"""A record that does not fit its table: `on_new_field` and `on_type`, the same at SQLite and PostgreSQL."""

import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from builders import batch_of
from conduit_connectors import sqlite
from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.sql.column_fit import ColumnType
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sqlite import SqliteDatabase
from sql_world import World, postgres_world, world

from conduit_py.errors import FatalError, TransientError

__all__ = ["world"]

OTHER_KINDS: dict[str, tuple[Any, Any]] = {
    "text": (1, "abc"),
    "a fraction": (1, 1.5),
    "a decimal fraction": (1, Decimal("1.5")),
    "an object": (1, {"a": 1}),
    "bytes": (1, b"\0"),
    "an integer in a text": ("abc", 1),
    "bytes in a text": ("abc", b"\0"),
    "text in a float": (1.5, "abc"),
    "an integer that no float holds": (1.5, 2**53 + 1),
}


def write(destination: SqlDestination[Any], *payloads: Any) -> dict[int, str]:
    return destination.write(batch_of(*payloads))


class TestNewFields:
    def test_are_refused_with_their_names(self, world: World) -> None:
        destination = world.opened(table="t")
        refused = write(destination, {"n": 1}, {"n": 2, "b": 1, "c": 2})

        assert refused == {1: "t has no column 'b', 'c' (on_new_field can add it, or ignore it)"}
        assert world.read("SELECT n FROM t") == [(1,)]

    def test_that_are_null_need_no_column(self, world: World) -> None:
        for policy in ("refuse", "add", "ignore"):
            destination = world.opened(table=policy, on_new_field=policy)

            assert write(destination, {"n": 1}) == {}
            assert write(destination, {"n": 2, "b": None}) == {}
            assert list(world.types(policy)) == ["n"]

    def test_get_columns_of_their_type(self, world: World) -> None:
        destination = world.opened(table="t", on_new_field="add")
        assert write(destination, {"n": 1}) == {}
        assert write(destination, {"n": 2, "b": None, "c": "x"}, {"n": 3, "b": 7, "c": "y"}) == {}

        assert world.read("SELECT n, b, c FROM t ORDER BY n") == [(1, None, None), (2, None, "x"), (3, 7, "y")]
        assert world.types()["b"] in ("bigint", "integer")

    def test_with_hostile_names_are_columns_or_refuse_the_record(self, world: World) -> None:
        destination = world.opened(table="t", on_new_field="add")
        write(destination, {"n": 1})
        names = ["%s", '"', "a b", "'; DROP TABLE t; --", "é" * 31, "n" * 64, "N", "ctid", "a\0b", "\ud800", ""]
        refused = write(destination, *({"n": 1, name: 1} for name in names))

        gone = {"sqlite": {6, 8, 9}, "postgres": {5, 7, 8, 9, 10}}[world.kind]
        assert set(refused) == gone
        assert set(world.types()) == {"n", *(name for index, name in enumerate(names) if index not in gone)}

    def test_beyond_the_number_that_a_table_can_have_refuse_the_record(self, world: World) -> None:
        destination = world.opened(table="t", on_new_field="add")
        write(destination, {f"c{n}": True for n in range(1600)})
        fields = {f"d{n}": True for n in range(401)}

        assert set(write(destination, {"c0": True}, fields, {"c0": False})) == {1}
        assert len(world.types()) == 1600
        assert len(world.read("SELECT c0 FROM t")) == 3

    def test_of_the_key_are_never_added_or_ignored(self, world: World) -> None:
        world.run("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        write(world.opened(table="t"), {"n": 1})
        for policy in ("add", "ignore"):
            destination = world.opened(table="t", mode="upsert", key=["id"], on_new_field=policy)
            assert "part of the key" in write(destination, {"id": 1, "n": 2})[0]

        assert world.read("SELECT n FROM t") == [(1,)]

    def test_that_are_ignored_are_named_once_and_counted(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        destination = world.opened(table="t", on_new_field="ignore")
        write(destination, {"n": 1})
        with caplog.at_level(logging.WARNING):
            assert write(destination, {"n": 2, "b": 1}, {"n": 3, "b": 2}) == {}
            assert write(destination, {"n": 4, "b": 3}) == {}
            destination.teardown()

        assert [record.getMessage() for record in caplog.records] == [
            "the table 't' has no column 'b': the field is ignored from now on",
            "ignored 3 values of fields that have no column",
        ]
        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,), (4,)]

    def test_that_another_process_added_meanwhile_are_found(self, world: World) -> None:
        one, other = (world.opened(table="t", on_new_field="add") for _ in range(2))
        write(one, {"n": 1})
        write(other, {"n": 2})
        write(one, {"n": 3, "b": "x"})

        assert write(other, {"n": 4, "b": "y"}) == {}
        assert world.read("SELECT n, b FROM t ORDER BY n") == [(1, None), (2, None), (3, "x"), (4, "y")]

    def test_that_two_processes_add_at_once_are_added_once(self, world: World) -> None:
        """Each has rows in its transaction when both want the column; a deadlock is for the database to end."""
        write(world.opened(table="t"), {"who": 0, "n": 0})
        both_have_rows = threading.Barrier(2, timeout=300)

        def run(who: int) -> None:
            for attempt in count(1):
                destination = world.opened(table="t", on_new_field="add")
                try:
                    destination.claim(f"p{who}", attempt)
                    write(destination, {"who": who, "n": 1})
                    # SQLite has one writer at a time, so the other one has no rows yet.
                    if world.kind == "postgres" and attempt == 1:
                        with suppress(threading.BrokenBarrierError):
                            both_have_rows.wait()
                    write(destination, {"who": who, "n": 2, "new": who}, {"who": who, "n": 3, f"own {who}": True})
                    destination.commit(b"done")
                    return
                except TransientError:
                    assert attempt < 10
                finally:
                    # The other one does not wait for one that failed.
                    both_have_rows.abort()
                    destination.teardown()

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, (1, 2)))

        assert set(world.types()) == {"who", "n", "new", "own 1", "own 2"}
        rows = world.read("SELECT who, n, new FROM t WHERE who > 0 ORDER BY who, n")
        assert rows == [(who, n, who if n == 2 else None) for who in (1, 2) for n in (1, 2, 3)]

    def test_do_not_wait_for_ever_behind_a_long_transaction(self, postgres: str) -> None:
        """While ALTER waits, everybody else would wait behind it, readers too."""
        world = postgres_world(postgres)
        write(world.opened(table="t"), {"n": 1})
        with psycopg.connect(postgres) as reader:
            reader.execute("SELECT * FROM t")
            blocked = world.opened(table="t", on_new_field="add")
            assert isinstance(blocked._db, PostgresDatabase)
            blocked._db.lock_seconds = 0.2
            with pytest.raises(TransientError, match="lock timeout") as raised:
                write(blocked, {"n": 2}, {"n": 3, "b": 1})
            blocked.teardown()
            assert world.read("SELECT * FROM t") == [(1,)]
        again = world.opened(table="t", on_new_field="add")

        assert raised.value.suggestion == "a long transaction holds the table: end it, or alter the table yourself"
        assert write(again, {"n": 2}, {"n": 3, "b": 1}) == {}
        assert world.read("SELECT n, b FROM t ORDER BY n") == [(1, None), (2, None), (3, 1)]

    def test_are_one_commit_with_the_rows(self, world: World) -> None:
        destination = world.opened(table="t", on_new_field="add")
        destination.claim("p", 1)
        write(destination, {"n": 1})
        destination.commit(b"one")
        write(destination, {"n": 2, "b": 1})
        destination.teardown()
        before = list(world.types())
        again = world.opened(table="t", on_new_field="add")
        assert again.claim("p", 2) == b"one"
        write(again, {"n": 2, "b": 1})
        again.commit(b"two")

        assert before == ["n"]
        assert world.read("SELECT n, b FROM t ORDER BY n") == [(1, None), (2, 1)]

    def test_of_a_stage_decide_what_is_refused_before_the_commit(self, world: World) -> None:
        destination = world.opened(table="t", on_new_field="add")
        destination.claim("p", 1)
        destination.begin("p", 1, [])
        assert write(destination, {"n": 1}, {"n": 2, "b": 1}) == {}
        assert set(write(destination, {"n": "x"}, {"n": 3, "b": "x"}, {"n": 4, "b": 2})) == {0, 1}
        intent = destination.stage()
        assert intent is not None
        before = world.rows_of("t")
        destination.apply(intent)

        assert before == []
        assert world.read("SELECT n, b FROM t ORDER BY n") == [(1, None), (2, 1), (4, 2)]


class TestTypes:
    def test_a_value_of_another_type_is_refused_with_its_field(self, world: World) -> None:
        for table, (name, (good, bad)) in enumerate(OTHER_KINDS.items()):
            destination = world.opened(table=f"t{table}")
            refused = write(destination, {"n": 1, "v": good}, {"n": 2, "v": bad}, {"n": 3, "v": good})

            assert set(refused) == {1}, name
            assert "'v'" in refused[1], name
            assert world.read(f"SELECT n FROM t{table} ORDER BY n") == [(1,), (3,)], name

    def test_numbers_are_widened_and_stay_exact(self, world: World) -> None:
        destination = world.opened(table="t", on_type="widen")
        assert write(destination, {"n": 1, "i": 2**62, "r": 0.1}) == {}
        assert write(destination, {"n": 2, "i": 0.30000000000000004, "r": 2**62 + 1}) == {}

        rows = world.read("SELECT i, r FROM t ORDER BY n")
        assert [str(value) for row in rows for value in row] == [
            str(2**62), "0.1", "0.30000000000000004", str(2**62 + 1)
        ]  # fmt: skip
        assert (world.types()["i"], world.types()["r"]) == ("numeric", "numeric")

    def test_what_no_wider_type_holds_is_refused(self, world: World) -> None:
        destination = world.opened(table="t", on_type="widen")
        write(destination, {"n": 1, "v": 1, "x": "abc"})
        refused = write(destination, {"n": 2, "v": "abc"}, {"n": 3, "v": True, "x": 1}, {"n": 4, "v": 4, "x": "d"})

        assert set(refused) == {0, 1}
        assert world.types()["v"] in ("bigint", "integer")

    def test_a_column_becomes_text_where_there_is_no_wider_type(self, world: World) -> None:
        destination = world.opened(table="t", on_type="text")
        write(destination, {"n": 1, "v": 0.1, "b": True}, {"n": 2, "v": 1e300, "b": False})
        assert write(destination, {"n": 3, "v": "abc", "b": {"a": 1}}, {"n": 4, "v": 5, "b": True}) == {}

        assert world.read("SELECT v, b FROM t ORDER BY n") == [
            ("0.1", "true"), ("1e+300", "false"), ("abc", '{"a":1}'), ("5", "true")
        ]  # fmt: skip

    def test_bytes_have_no_text(self, world: World) -> None:
        destination = world.opened(table="t", on_type="text")
        write(destination, {"n": 1, "v": "a"})

        assert set(write(destination, {"n": 2, "v": b"a"})) == {0}

    def test_a_row_that_is_refused_for_another_field_leaves_the_types(self, world: World) -> None:
        world.run("CREATE TABLE t (n INTEGER PRIMARY KEY, v REAL)")
        destination = world.opened(table="t", on_type="text")
        write(destination, {"n": 1, "v": 1.5})
        refused = write(destination, {"n": 1, "v": "abc"}, {"n": 2, "v": 2.5})

        assert set(refused) == {0}
        assert len(world.read("SELECT n FROM t")) == 2


class TestTypesOfPostgres:
    @pytest.fixture
    def world(self, request: pytest.FixtureRequest) -> World:
        return postgres_world(request.getfixturevalue("postgres"))

    def test_small_types_are_widened_one_by_one(self, world: World) -> None:
        world.run("CREATE TABLE t (a SMALLINT, b INT, c REAL, d NUMERIC(4, 2), e VARCHAR(2))")
        destination = world.opened(table="t", on_type="widen")
        for payload in ({"a": 40000}, {"b": 2**40}, {"c": 2**40 + 1}, {"d": Decimal("0.125")}, {"e": "abc"}):
            assert write(destination, payload) == {}
        assert write(destination, {"a": 2**70, "b": 1, "c": 1.5, "d": Decimal("1234.5"), "e": "abcd"}) == {}

        assert world.types() == {
            "a": "numeric", "b": "bigint", "c": "double precision", "d": "numeric", "e": "text"
        }  # fmt: skip
        assert world.read("SELECT c, d FROM t WHERE c IS NOT NULL OR d IS NOT NULL ORDER BY c") == [
            (1.5, Decimal("1234.5")), (2.0**40 + 1, None), (None, Decimal("0.125"))
        ]  # fmt: skip

    def test_digits_that_a_column_would_round_are_refused(self, world: World) -> None:
        world.run("CREATE TABLE t (d NUMERIC(4, 2), n INT)")
        destination = world.opened(table="t")
        values: list[dict[str, Any]] = [{"d": Decimal("0.125")}, {"d": 0.125}, {"n": 1.5}, {"n": 2**40}]
        refused = write(destination, *values, {"d": Decimal("12.50"), "n": 2.0})

        assert [refused[index].split()[0] for index in range(4)] == ["'d'", "'d'", "'n'", "'n'"]
        assert world.read("SELECT d, n FROM t") == [(Decimal("12.50"), 2)]

    def test_text_is_read_as_the_type_of_its_column(self, world: World) -> None:
        world.run("CREATE TABLE t (n BIGINT, day DATE, span INTERVAL)")
        destination = world.opened(table="t")
        refused = write(destination, {"n": "7", "day": "2026-02-01", "span": "1 day"}, {"n": 8, "day": "no"})

        assert refused == {1: "'day' has a value of the kind 'text', which its column, date, does not hold"}
        assert world.read("SELECT n, day::text FROM t") == [(7, "2026-02-01")]

    def test_a_column_of_any_type_becomes_text(self, world: World) -> None:
        world.run("CREATE TABLE t (day DATE, id UUID, n INT)")
        destination = world.opened(table="t", on_type="text")
        write(destination, {"day": "2026-02-01", "id": "00000000-0000-0000-0000-000000000007", "n": 1})
        assert write(destination, {"day": 5, "id": True, "n": 2}, {"day": "soon", "id": "no", "n": 3}) == {}

        assert world.read("SELECT day, id FROM t ORDER BY n") == [
            ("2026-02-01", "00000000-0000-0000-0000-000000000007"), ("5", "true"), ("soon", "no")
        ]  # fmt: skip

    def test_a_column_that_a_view_uses_refuses_the_record(self, world: World) -> None:
        world.run("CREATE TABLE t (n INT)", "CREATE VIEW seen AS SELECT n FROM t")
        destination = world.opened(table="t", on_type="widen")
        refused = write(destination, {"n": 1}, {"n": 2**40}, {"n": 3})

        assert set(refused) == {1}
        assert "used by a view" in refused[1]
        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (3,)]


class CountingDatabase(SqliteDatabase):
    reads = 0

    def column_types(self, table: str) -> dict[str, ColumnType]:
        self.reads += 1
        return super().column_types(table)


class CountingDestination(sqlite.Destination):
    def connect(self) -> CountingDatabase:
        return CountingDatabase(self.options.path, sqlite3.connect(self.options.path, isolation_level=None))


def test_fields_that_are_ignored_cost_one_look_at_the_table_for_each_write(tmp_path: Path) -> None:
    destination = CountingDestination(path=tmp_path / "data.db", table="t", on_new_field="ignore")
    destination.open()
    write(destination, {"n": 1})
    database = destination._db
    assert isinstance(database, CountingDatabase)
    before = database.reads
    write(destination, *({"n": n, f"x{n}": 1} for n in range(20)))
    write(destination, *({"n": n} for n in range(20)))

    assert database.reads - before == 1


class UnalterableDatabase(SqliteDatabase):
    alters = False


class UnalterableDestination(sqlite.Destination):
    def connect(self) -> UnalterableDatabase:
        return UnalterableDatabase(self.options.path, sqlite3.connect(self.options.path, isolation_level=None))


def test_a_database_that_cannot_alter_tables_in_a_transaction_says_so(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="cannot alter a table"):
        UnalterableDestination(path=tmp_path / "data.db", table="t", on_new_field="add").open()
