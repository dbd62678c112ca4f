"""Staging tables of PostgreSQL: what tasks stage and the driver moves is what `write` would have written.

The tests m1 to m7 are the invariants of decision 59, with tables in place of files.
"""

import json
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from builders import batch_of
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.copy_in import CopyText
from conduit_connectors.sql.destination import StagedRows
from conduit_connectors.sql.row import TableRow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import PartId, PieceRefused, StageCleared, TransientError

WEEK = 7 * 24 * 3600
TEXTS = ["plain", "tab\tand\nline\r", "back\\slash \\N", "", "ünïcode ☃", "'quoted' \"twice\""]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.sampled_from(TEXTS),
)


class Driver:
    """A destination of a driver, and the tasks of its run. With a fence it is of the exactly-once pipeline `p`.

    With `intents` it stages for the commit of another destination, and has those to apply; else it is the home.
    """

    def __init__(
        self,
        url: str,
        table: str = "t",
        *,
        fence: int | None = None,
        intents: Sequence[bytes] | None = None,
        **more: Any,
    ) -> None:
        self.live = connector.Destination(url=url, table=table, **more).fresh()
        self.live.open()
        if fence is not None:
            self.changes = self.live.claim("p", fence)
        if fence is not None and intents is not None:
            self.live.begin("p", fence, intents)
        self._parts = 0

    def task(self, number: int) -> connector.Destination:
        task = self.live.fresh()
        task.open_part(self.live.grant(), PartId(0, number))
        return task

    def attempt(self, *rows: Any, number: int | None = None, refused: Iterable[int] = ()) -> bytes:
        """One attempt at a part, the next one unless it is named, with what it returns to the driver."""
        self._parts += number is None
        task = self.task(self._parts - 1 if number is None else number)
        try:
            assert list(task.prepare(batch_of(*rows))) == list(refused)
            return task.prepared()
        finally:
            task.discard_part()

    def commit_stage(self) -> bytes:
        intent = self.live.stage()
        assert intent is not None
        self.live.apply(intent)
        return intent


def n(*numbers: int) -> list[Record]:
    return [Record.of({"id": number}) for number in numbers]


def rows_of(url: str, table: str = "t") -> list[tuple[Any, ...]]:
    """In the order in which they were written."""
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
            return []
        return connection.execute(f"SELECT * FROM {table} ORDER BY ctid".encode()).fetchall()


def ids(url: str, table: str = "t") -> list[int]:
    return [row[0] for row in rows_of(url, table)]


def staging_tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^conduit_stage_' AND relkind = 'r'")
        return [name for (name,) in found]


def written_and_taken(url: str, records: list[Record], **options: Any) -> list[list[tuple[Any, ...]]]:
    tables = []
    for way in ("written", "taken"):
        driver = Driver(url, way, **options)
        if way == "written":
            assert not driver.live.write(batch_of(*records))
        else:
            driver.live.take([driver.attempt(*records)])
        driver.live.teardown()
        tables.append(sorted(rows_of(url, way)))
    return tables


def test_rows_are_the_same(postgres: str) -> None:
    values = {
        "flag": True,
        "many": 2**62,
        "ratio": 0.1 + 0.2,
        "exact": Decimal("12.340"),
        "raw": b"\x00\\x\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "tags": ["a\tb", {"c": "d\\"}],
        "uid": UUID(int=7),
    }
    nothing = dict.fromkeys(values)
    records = [Record.of({"id": n, "text": text, **(values if n % 2 else nothing)}) for n, text in enumerate(TEXTS)]
    records.insert(0, Record.of({"id": -1, "text": "first", **values}))
    # The first one decides about the types of the columns.
    written, taken = written_and_taken(postgres, records)
    assert len(written) == len(records)
    assert written == taken


def test_keys_are_replaced_and_deleted_in_order(postgres: str) -> None:
    records = [Record.of({"id": n % 3, "name": f"n{n}"}) for n in range(7)]
    gone = Record(operation=Operation.DELETE, key={"id": 1}, payload=Payload())
    records += [gone, Record.of({"id": 4, "name": "after"}), Record.of({"id": 2, "name": "last"})]
    written, taken = written_and_taken(postgres, records, mode="upsert", key=["id"])
    assert written == taken == [(0, "n6"), (2, "last"), (4, "after")]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_whatever_is_taken_is_what_would_have_been_written(postgres: str, values: list[Any]) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for table in ("written", "taken"):
            connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
    records = [Record.of({"id": n, "value": value}) for n, value in enumerate(values)]
    one_by_one, whole = Driver(postgres, "written"), Driver(postgres, "taken")
    refused = one_by_one.live.write(batch_of(*records))
    one_by_one.live.teardown()
    try:
        whole.live.take([whole.attempt(*records)])
    except PieceRefused:
        # Then they are written one by one after all.
        return
    finally:
        whole.live.teardown()
    assert not refused
    assert rows_of(postgres, "taken") == rows_of(postgres, "written")


@pytest.mark.parametrize("type", ["varchar(2)", "char(2)", "varchar(2)[]", "bit(2)", "varbit(2)"])
def test_what_is_too_long_is_refused_and_not_cut(postgres: str, type: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (id BIGINT, v {type})".encode())
    long, short = ("101", "10") if "bit" in type else ("{abc}", "{ab}") if "[]" in type else ("abc", "ab")
    driver = Driver(postgres)
    good, bad = (driver.attempt(Record.of({"id": at, "v": text})) for at, text in enumerate((short, long)))
    driver.live.take([good])

    with pytest.raises(PieceRefused, match="t refuses one of 1 rows"):
        driver.live.take([bad])
    driver.live.teardown()
    assert len(rows_of(postgres)) == 1


def test_records_of_many_shapes_are_moved_in_order_by_a_manifest_of_the_same_size(postgres: str) -> None:
    """Hostile records bring a column of their own each, and name tables."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        columns = ", ".join(f"\"100% of '{place}' \\\" BIGINT" for place in range(100))
        connection.execute(f"CREATE TABLE wide (id BIGINT, {columns})")
    records = [Record.of({"id": at, f"100% of '{at % 100}' \\": at}) for at in range(500)]
    driver = Driver(postgres, "wide")
    manifest, small = driver.attempt(*records), driver.attempt(Record.of({"id": 500}))
    driver.live.take([manifest, small])
    driver.live.teardown()

    assert ids(postgres, "wide") == list(range(501))
    assert max(len(manifest), len(small)) < 200
    assert all(row[1 + row[0] % 100] == row[0] for row in rows_of(postgres, "wide")[:-1])


def test_a_table_with_a_trigger_that_keeps_rows_elsewhere_is_written(postgres: str) -> None:
    """The number of inserted rows is then none, which says nothing of what was staged."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id BIGINT); CREATE TABLE elsewhere (id BIGINT)")
        connection.execute(
            "CREATE FUNCTION divert() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO elsewhere VALUES (NEW.id); RETURN NULL; END'"
        )
        connection.execute("CREATE TRIGGER diverts BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION divert()")
    driver = Driver(postgres)
    driver.live.take([driver.attempt(*n(1, 2, 3))])
    driver.live.teardown()

    assert ids(postgres, "elsewhere") == [1, 2, 3]


def test_a_refused_part_leaves_nothing_behind(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    driver = Driver(postgres)
    driver.live.take([driver.attempt(*n(0, 1, 2))])
    with pytest.raises(PieceRefused, match=r"t refuses one of 2 rows: .*duplicate key"):
        driver.live.take([driver.attempt(*n(7, 1))])
    driver.live.teardown()

    assert ids(postgres) == [0, 1, 2]


def test_half_a_surrogate_pair_is_refused_by_itself(postgres: str) -> None:
    records = [Record.of({"id": at, "text": text}) for at, text in enumerate(["a", json.loads('"\\ud800"'), "b"])]
    driver = Driver(postgres)
    driver.live.take([driver.attempt(*records, refused=[1])])
    driver.live.teardown()

    assert ids(postgres) == [0, 2]


def test_a_user_who_may_not_create_tables_writes_record_by_record(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        role = f"writer_{time.monotonic_ns()}"
        connection.execute(
            f"CREATE TABLE t (id BIGINT); CREATE ROLE {role} LOGIN; GRANT INSERT ON t TO {role}".encode()
        )
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        driver = Driver(postgres.replace("tester@", f"{role}@"))
        try:
            with pytest.raises(PieceRefused, match="executors cannot stage in tables of their own"):
                driver.live.grant()
            assert not driver.live.write(batch_of(*n(1)))
        finally:
            driver.live.teardown()
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert ids(postgres) == [1]


def test_m1_rows_and_progress_are_committed_together(postgres: str) -> None:
    for commits in (False, True):
        driver = Driver(postgres, fence=1 + commits)
        assert driver.changes is None
        driver.live.take([driver.attempt(*n(1, 2, 3))])
        assert ids(postgres) == []
        if commits:
            driver.live.commit(b"changes")
        driver.live.teardown()

    assert ids(postgres) == [1, 2, 3]
    assert staging_tables(postgres) == []


def test_m1_what_is_staged_for_the_commit_of_another_is_shown_once(postgres: str) -> None:
    driver = Driver(postgres, fence=1, intents=[])
    driver.live.take([driver.attempt(*n(1, 2, 3))])
    intent = driver.live.stage()
    assert intent is not None
    assert len(intent) < 250
    driver.live.teardown()
    assert ids(postgres) == []
    for fence in (2, 3):
        Driver(postgres, fence=fence, intents=[intent]).live.teardown()

    assert ids(postgres) == [1, 2, 3]


def test_m1_another_worker_applies_what_one_that_died_has_committed(postgres: str) -> None:
    driver = Driver(postgres, fence=1, intents=[])
    driver.live.take([driver.attempt(*n(1, 2))])
    intent = driver.live.stage()
    assert intent is not None
    driver.live.teardown()
    other = connector.Destination(url=postgres, table="t").fresh()
    for _ in range(2):
        assert other.apply_for("p", intent)

    assert ids(postgres) == [1, 2]
    assert len(staging_tables(postgres)) == 1  # the marker of the run that died


def test_m2_each_part_is_moved_once_whatever_the_attempts(postgres: str) -> None:
    driver = Driver(postgres, fence=1)
    lost = driver.attempt(*n(1, 2))
    won = driver.attempt(*n(1, 2), number=0)
    ahead = driver.attempt(*n(3))
    dead = driver.task(2)
    dead.prepare(batch_of(*n(4)))  # it is killed before it stages
    dead.discard_part()
    driver.live.take([won])
    driver.live.commit(b"1")
    assert ids(postgres) == [1, 2]
    assert len(staging_tables(postgres)) == 2, "the marker, and the part that is ahead"
    driver.live.take([ahead])
    driver.live.commit(b"2")
    driver.live.teardown()

    assert lost != won
    assert ids(postgres) == [1, 2, 3]
    assert staging_tables(postgres) == []


def test_m3_a_zombie_commits_no_table_after_the_next_run_began(postgres: str) -> None:
    old = Driver(postgres, fence=1)
    zombie, left = old.task(0), old.attempt(*n(1))
    zombie.prepare(batch_of(*n(2)))
    new = Driver(postgres, fence=2)
    new.live.grant()

    with pytest.raises(PieceRefused, match="conduit_stage_"):
        zombie.prepared()
    with pytest.raises(PieceRefused, match="does not reach the place"):
        old.task(1)
    with pytest.raises(TransientError, match="is not what a task has staged there"):
        old.live.take([left])
    assert len(staging_tables(postgres)) == 1
    for each in (old, new):
        each.live.teardown()
    zombie.discard_part()
    assert (ids(postgres), staging_tables(postgres)) == ([], [])


def test_m4_a_crash_of_the_server_empties_what_no_intent_names(own_postgres: Any) -> None:
    url = own_postgres.create_database()
    home, other = Driver(url, fence=1), Driver(url, "other", fence=1, intents=[])
    home_part, other_part = home.attempt(*n(1, 2)), other.attempt(*n(1, 2))
    other.live.take([other_part])
    intent = other.live.stage()
    assert intent is not None
    own_postgres.kill()
    own_postgres.start()
    for each in (home, other):
        each.live.teardown()
    with pytest.raises(TransientError, match="is not what a task has staged there"):
        move(url, home_part)
    Driver(url, "other", fence=2, intents=[intent]).live.teardown()

    assert ids(url) == []
    assert ids(url, "other") == [1, 2]


def move(url: str, part: bytes) -> None:
    """As the transaction would that was under way when the server crashed."""
    live = Driver(url).live
    try:
        live.write_pieces([part])
    finally:
        live.teardown()


def test_m5_a_run_without_an_owner_leaves_nothing(postgres: str) -> None:
    driver = Driver(postgres)
    driver.attempt(*n(9))
    driver.live.take([driver.attempt(*n(1))])
    driver.live.teardown()

    assert ids(postgres) == [1]
    assert staging_tables(postgres) == []


def test_m5_a_command_clears_by_age_and_by_owner_and_leaves_what_may_be_needed(postgres: str) -> None:
    killed = [Driver(postgres), Driver(postgres, fence=1), Driver(postgres, "other", fence=1)]
    for each in killed:
        each.attempt(*n(1))
    command = connector.Destination(url=postgres, table="t")

    assert command.clear_staged(WEEK, None) == StageCleared(0, 4)
    assert command.clear_staged(0, None) == StageCleared(2, 2)
    assert command.clear_staged(WEEK, "p") == StageCleared(0, 2)
    assert command.clear_staged(0, "p") == StageCleared(2, 0)
    assert len(staging_tables(postgres)) == 2, "those of another place"
    for each in killed:
        each.live.teardown()


def test_m5_a_task_that_hangs_before_its_commit_does_not_stop_the_next_run(postgres: str) -> None:
    old = Driver(postgres, fence=1)
    old.live.grant()
    [marker] = staging_tables(postgres)
    with psycopg.connect(postgres) as hanging:
        hanging.execute(f"LOCK TABLE {marker} IN ACCESS SHARE MODE".encode())
        new = Driver(postgres, fence=2)
        new.live.take([new.attempt(*n(1))])
        new.live.commit(b"1")
    new.live.teardown()

    assert ids(postgres) == [1]
    assert staging_tables(postgres) == [marker]
    Driver(postgres, fence=3).live.grant()
    assert marker not in staging_tables(postgres)


def test_m6_parts_are_moved_in_the_order_of_the_source(postgres: str) -> None:
    driver = Driver(postgres)
    parts = [driver.attempt(*n(*range(at, at + 5)), number=at // 5) for at in reversed(range(0, 50, 5))]
    driver.live.take(parts[::-1])
    driver.live.teardown()

    assert ids(postgres) == list(range(50))


def test_rows_and_parts_of_one_stage_are_tried_together(postgres: str) -> None:
    """Dead letters that are sent again come as rows between parts, and what is committed must fit."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    driver = Driver(postgres, fence=1, intents=[])
    parts = [driver.attempt(*n(at)) for at in range(3)]
    driver.live.take([parts[0]])
    refused = driver.live.write(batch_of(*n(0, 1)))
    with pytest.raises(PieceRefused, match=r"t refuses one of 1 rows: .*duplicate key"):
        driver.live.take([parts[1]])
    driver.live.take([parts[2]])
    driver.commit_stage()
    driver.live.teardown()

    assert list(refused) == [0]
    assert sorted(ids(postgres)) == [0, 1, 2]


def test_an_intent_of_an_earlier_version_is_applied(postgres: str) -> None:
    """It has the text of the rows themselves."""
    shape = TableRow("t", ("id", "name"), (), kinds=("integer", "text"))
    keyed = msgspec.structs.replace(shape, table="keyed", keys=("id",))
    texts = [CopyText(each, [["integer"], ["text"]], 2, b"1\ta\\tb\n2\tc\n") for each in (shape, keyed)]
    intent = msgspec.msgpack.encode(StagedRows(1, 1, [], [msgspec.msgpack.encode(texts)]))
    for fence in (2, 3):
        Driver(postgres, fence=fence, intents=[intent]).live.teardown()

    assert rows_of(postgres) == rows_of(postgres, "keyed") == [(1, "a\tb"), (2, "c")]
