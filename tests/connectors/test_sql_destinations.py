"""Rows into SQLite and PostgreSQL: what is in the tables, whatever the delivery and the process that was killed."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from builders import batch_of
from conduit_connectors import memory, sqlite
from conduit_connectors.sql.destination import SqlDestination
from sql_world import (
    World,
    alchemy_url,
    alchemy_world,
    duckdb_world,
    mysql_world,
    postgres_world,
    sqlite_world,
)

from conduit_py import Destination, Operation, Payload, Pipeline, Record, Source, State, processor, sdk
from conduit_py.errors import FatalError, Fenced
from conduit_py.sdk import registry
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import destination_acceptance, run_to_end, source_acceptance

KINDS = ["sqlite", "postgres", "mysql", "duckdb", "sqlalchemy-sqlite", "sqlalchemy-postgres", "sqlalchemy-mysql"]


@pytest.fixture(params=[*KINDS, "any-postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A world of each kind, with an empty database."""
    way, dash, kind = request.param.rpartition("-")
    if kind == "duckdb":
        return duckdb_world(tmp_path / "data.duckdb")
    if kind == "sqlite":
        found, url = sqlite_world(tmp_path / "data.db"), f"sqlite:///{tmp_path}/data.db"
    elif kind == "mysql":
        url = request.getfixturevalue("mariadb")
        found = mysql_world(url)
    else:
        url = request.getfixturevalue("postgres")
        found = postgres_world(url)
    return alchemy_world(found, alchemy_url(url), known=way == "sqlalchemy") if dash else found


def write(destination: SqlDestination[Any], *payloads: Any) -> dict[int, str]:
    return destination.write(batch_of(*payloads))


class TestRows:
    def test_values_arrive_as_the_types_of_their_columns(self, world: World) -> None:
        at = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
        fields = {"n": 1, "x": 1.5, "ok": True, "name": "é", "raw": b"\0\1", "none": None, "at": at}
        assert write(world.opened(table="t"), fields) == {}

        [row] = world.read('SELECT n, x, ok, name, raw, none, "at" FROM "t"')
        assert [row[0], row[1], bool(row[2]), row[3], bytes(row[4]), row[5]] == [1, 1.5, True, "é", b"\0\1", None]
        assert row[6] in (at, at.isoformat(), at.replace(tzinfo=None))

    def test_objects_are_json_and_decimals_are_exact(self, world: World) -> None:
        write(world.opened(table="t"), {"o": {"a": [1]}, "d": Decimal("0.10")})

        [(o, d)] = world.read("SELECT o, d FROM t")
        assert o in ({"a": [1]}, '{"a":[1]}')
        # All decimals of a column of DuckDB have the same number of digits.
        assert str(d) == ("0.100000000000" if world.kind == "duckdb" else "0.10")

    def test_one_row_per_key(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert", key=["id"])
        write(destination, {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"})
        gone = Record(operation=Operation.DELETE, key={"id": 2}, payload=Payload(before={"id": 2, "v": "b"}))
        assert write(destination, gone) == {}

        assert world.read("SELECT id, v FROM t") == [(1, "c")]

    def test_the_key_of_the_record_names_the_columns(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert")
        write(destination, *(Record.of({"v": v}, key={"id": 1}) for v in "ab"))

        assert world.read("SELECT id, v FROM t") == [(1, "b")]

    def test_a_table_for_each_collection(self, world: World) -> None:
        records = [Record.of({"n": n}) for n in range(4)]
        for record, name in zip(records, "xyxy", strict=True):
            record.metadata = {"opencdc.collection": name}
        write(world.opened(), *records)

        assert world.read("SELECT n FROM x ORDER BY n") == [(0,), (2,)]
        assert world.read("SELECT n FROM y ORDER BY n") == [(1,), (3,)]

    def test_whole_records_as_json(self, world: World) -> None:
        write(world.opened(table="t", layout="json"), Record.of(b'{"n":1}', key={"id": 7}))

        assert world.read('SELECT "key", operation, metadata, payload FROM t') == [
            ('{"id":7}', "create", "{}", '{"n":1}')
        ]

    def test_names_are_taken_literally(self, world: World) -> None:
        write(world.opened(table='we"ird'), {'a "b" %s ?': 1})

        assert world.read('SELECT * FROM "we""ird"') == [(1,)]


def test_two_pipelines_may_claim_a_new_database_at_once(world: World) -> None:
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: world.opened(table="t"), ("p", "q")))
        claims = list(threads.map(lambda destination, owner: destination.claim(owner, 1), both, ("p", "q")))

    assert claims == [None, None]
    for destination in both:
        destination.teardown()


class TestRefusals:
    def test_a_row_that_the_table_refuses_is_refused_alone(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert", key=["id"])
        write(destination, {"id": 0, "v": 1})

        refused = write(destination, {"id": 1, "v": 1}, {"id": None, "v": 1}, {"id": 2, "w": 1}, {"id": 3, "v": 1})

        assert set(refused) == {1, 2}
        assert "no value for 'id'" in refused[1]
        assert "no column 'w'" in refused[2]
        assert world.read("SELECT id FROM t ORDER BY id") == [(0,), (1,), (3,)]

    def test_a_repeated_key_in_append_mode_is_refused_by_the_database(self, world: World) -> None:
        write(world.opened(table="t", mode="upsert", key=["id"]), {"id": 1})
        refused = write(world.opened(table="t"), {"id": 2}, {"id": 1}, {"id": 3})

        assert set(refused) == {1}
        assert world.read("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]

    def test_raw_bytes_have_no_columns(self, world: World) -> None:
        assert "json.decode" in write(world.opened(table="t"), b"raw")[0]

    def test_a_missing_table_is_an_error_when_none_is_to_be_created(self, world: World) -> None:
        with pytest.raises(FatalError, match="no table 't'"):
            write(world.opened(table="t", create=False), {"n": 1})


class TestHome:
    """I6, I7: rows and changes are one commit, which only the newest claim can make."""

    def test_rows_and_changes_are_committed_together(self, world: World) -> None:
        destination = world.opened(table="t")
        assert destination.claim("p", 1) is None
        write(destination, {"n": 1})
        before = world.rows_of("t")
        destination.commit(b"one")
        write(destination, {"n": 2})
        destination.teardown()

        assert before == []
        assert world.read("SELECT n FROM t") == [(1,)]
        assert world.opened(table="t").claim("p", 2) == b"one"

    def test_gz_f1_an_older_claim_commits_nothing(self, world: World) -> None:
        zombie = world.opened(table="t")
        zombie.claim("p", 1)
        newer = world.opened(table="t")
        newer.claim("p", 2)
        write(zombie, {"n": 1})

        with pytest.raises(Fenced):
            zombie.commit(b"of the past")
        zombie.teardown()
        write(newer, {"n": 2})
        newer.commit(b"newer")

        assert world.read("SELECT n FROM t") == [(2,)]

    def test_a_lower_fence_cannot_claim(self, world: World) -> None:
        world.opened(table="t").claim("p", 5)

        with pytest.raises(Fenced, match="state directory"):
            world.opened(table="t").claim("p", 4)

    def test_a_commit_without_rows_keeps_the_changes(self, world: World) -> None:
        destination = world.opened(table="t")
        destination.claim("p", 1)
        destination.commit(b"only changes")
        destination.teardown()

        assert world.opened(table="t").claim("p", 2) == b"only changes"


class TestStaged:
    """I4, I8: nothing is seen before it is applied, and it is applied once."""

    def staged(self, world: World, fence: int = 1) -> tuple[SqlDestination[Any], bytes]:
        destination = world.opened(table="t")
        destination.claim("p", fence)
        destination.begin("p", fence, [])
        write(destination, {"n": 1}, {"n": 2})
        write(destination, {"n": 3})
        intent = destination.stage()
        assert intent is not None
        return destination, intent

    def test_seen_after_apply_and_not_before(self, world: World) -> None:
        destination, intent = self.staged(world)
        before = world.rows_of("t")
        destination.apply(intent)
        destination.apply(intent)

        assert before == []
        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]

    def test_recovered_intents_are_applied_once(self, world: World) -> None:
        destination, intent = self.staged(world)
        destination.teardown()
        for fence in (2, 3):
            successor = world.opened(table="t")
            successor.claim("p", fence)
            successor.begin("p", fence, [intent])
            successor.teardown()

        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]

    def test_a_zombie_that_applies_late_changes_nothing(self, world: World) -> None:
        zombie, intent = self.staged(world)
        successor = world.opened(table="t")
        successor.claim("p", 2)
        successor.begin("p", 2, [intent])
        write(successor, {"n": 4})
        later = successor.stage()
        assert later is not None
        successor.apply(later)

        zombie.apply(intent)
        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,), (4,)]

    def test_what_the_table_would_refuse_is_refused_before_it_is_committed(self, world: World) -> None:
        write(world.opened(table="t", mode="upsert", key=["n"]), {"n": 2})
        destination = world.opened(table="t")
        destination.claim("p", 1)
        destination.begin("p", 1, [])

        assert set(write(destination, {"n": 1}, {"n": 2})) == {1}
        assert set(write(destination, {"n": 1}, {"n": 3})) == {0}
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)
        assert world.read("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]

    def test_nothing_written_is_nothing_to_apply(self, world: World) -> None:
        destination = world.opened(table="t")
        destination.claim("p", 1)
        destination.begin("p", 1, [])

        assert destination.stage() is None

    def test_two_destinations_of_a_pipeline_cannot_share_a_table(self, world: World) -> None:
        for attempt in range(2):
            destination = world.opened(table="t")
            destination.claim("p", 1)
            if attempt == 0:
                destination.begin("p", 1, [])
        with pytest.raises(FatalError, match="two destinations"):
            destination.begin("p", 1, [])


@processor(state=True)
def running_sum(record: Record, state: State) -> Record:
    total = state.get("sum", 0) + record.payload["n"]
    state.put("sum", total)
    record.payload["sum"] = total
    return record


class TestPipelines:
    async def test_a_pipeline_goes_on_where_it_was(self, world: World) -> None:
        store, items = MemoryStore(), list[dict[str, int]]()
        for count in (10, 20):
            items += [{"n": n} for n in range(len(items), count)]
            pipeline = Pipeline(
                "p",
                sources=[Source("s", memory.Source(records=items))],
                processors=[running_sum],
                destinations=[Destination("home", world.make(table="t"))],
                delivery="exactly_once",
            )
            outcome = await run_to_end(pipeline, store)
            assert outcome.status is Status.COMPLETED, outcome.error

        rows = world.read("SELECT n, sum FROM t ORDER BY n")
        assert rows == [(n, sum(range(n + 1))) for n in range(20)]

    async def test_a_state_directory_that_is_behind_is_not_believed(self, world: World) -> None:
        def pipeline() -> Pipeline:
            return Pipeline(
                "p",
                sources=[Source("s", memory.Source(records=[{"n": 1}]))],
                destinations=[Destination("home", world.make(table="t"))],
                delivery="exactly_once",
            )

        store = MemoryStore()
        for _ in range(2):
            await store.claim("p")
        await run_to_end(pipeline(), store)
        outcome = await run_to_end(pipeline(), MemoryStore())

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert "state directory" in (outcome.error.message + str(outcome.error.suggestion))
        assert world.read("SELECT n FROM t") == [(1,)]


def appended(tmp_path: Path) -> Iterator[tuple[sqlite.Destination, Callable[[], list[Any]]]]:
    path = tmp_path / "data.db"

    def stored() -> list[Any]:
        with sqlite3.connect(path) as connection:
            cursor = connection.execute("SELECT n FROM t ORDER BY rowid") if _has_table(connection) else []
            return [{"n": n} for (n,) in cursor]

    yield sqlite.Destination(path=path, table="t"), stored


def _has_table(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchall())


def row(number: int) -> Record:
    return Record.of({"n": number}, position=b"%d" % number)


TestSqliteDestination = destination_acceptance(appended, sample=row, refused=Record.of(b"raw"))


def appended_in_postgres(postgres: str) -> Iterator[tuple[sdk.DestinationConnector[Any], Callable[[], list[Any]]]]:
    def stored() -> list[Any]:
        with psycopg.connect(postgres) as connection:
            found = connection.execute("SELECT to_regclass('t')").fetchone()
            if not found or not found[0]:
                return []
            return [{"n": n} for (n,) in connection.execute("SELECT n FROM t ORDER BY ctid")]

    destination = registry.find("destination", "postgres")(url=postgres, table="t")
    assert isinstance(destination, sdk.DestinationConnector)
    yield destination, stored


TestPostgresDestination = destination_acceptance(appended_in_postgres, sample=row, refused=Record.of(b"raw"))


def added_rows(tmp_path: Path) -> sqlite.Source:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (n INTEGER, name TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"row {n}") for n in range(12)])
    return sqlite.Source(path=path, table="t")


TestSqliteSource = source_acceptance(added_rows)
