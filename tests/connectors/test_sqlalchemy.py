"""SQLAlchemy: rows by a column that grows on real servers, and what an address or a database cannot give."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from builders import batch_of
from conduit_connectors.sql.checkpoint import CheckpointTable
from conduit_connectors.sqlalchemy import Destination, Source
from conduit_connectors.sqlalchemy.any_database import AnyDatabase
from lake_tables import read_until_end
from sql_world import alchemy_url, alchemy_world, postgres_world

from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet
from conduit_py.testing import destination_acceptance, source_acceptance

AT = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, changed_at TIMESTAMP NOT NULL, total NUMERIC(10, 2), name TEXT)"


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    return alchemy_url(request.getfixturevalue("mariadb" if request.param == "mysql" else "postgres"))


def run(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def insert(url: str, *rows: tuple[int, int]) -> None:
    """Add orders with an id and a second."""
    values = ", ".join(f"({id}, '2026-01-01 00:00:{second:02}', 1.50, 'order {id}')" for id, second in rows)
    run(url, f"INSERT INTO orders VALUES {values}")


def ids(records: list[Record]) -> list[int]:
    return [record.payload["id"] for record in records]


class TestSource:
    def test_reads_in_the_order_of_the_column_and_goes_on_after_any_row(self, url: str) -> None:
        run(url, TABLE)
        insert(url, (1, 5), (2, 3), (3, 3), (4, 9), (5, 3))
        source = Source(url=url, table="orders", column="changed_at")
        records = read_until_end(source, n=2)

        assert ids(records) == [2, 3, 5, 1, 4]
        for place, record in enumerate(records):
            assert ids(read_until_end(source, record.position, n=3)) == ids(records)[place + 1 :]
        insert(url, (6, 9), (7, 20))
        run(url, "UPDATE orders SET changed_at = '2026-01-01 00:00:30' WHERE id = 2")
        assert ids(read_until_end(source, records[-1].position)) == [6, 7, 2]
        assert records[0].key == {"id": 2}
        assert records[0].metadata["opencdc.collection"] == "orders"

    def test_values_are_those_of_the_driver(self, url: str) -> None:
        run(url, TABLE)
        insert(url, (1, 5))
        [record] = read_until_end(Source(url=url, table="orders", column="id"))

        at, total = record.payload["changed_at"], record.payload["total"]
        assert at == ("2026-01-01 00:00:05" if url.startswith("sqlite") else AT.replace(tzinfo=None))
        assert total == (1.5 if url.startswith("sqlite") else Decimal("1.50"))

    def test_waits_so_long_for_late_commits(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        now = [100.0]

        class Timed(Source):
            clock = staticmethod(lambda: now[0])

        run(url, TABLE)
        insert(url, (5, 1))
        source = Timed(url=url, table="orders", column="id", delay_seconds=30).fresh()
        source.open(None)
        with pytest.raises(NothingYet):
            source.read(10)
        insert(url, (4, 1), (6, 1))
        now[0] += 31

        assert ids(list(source.read(10).records)) == [4, 5]
        source.teardown()

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"table": "nope", "column": "id"}, "no table nope"),
            ({"table": "orders", "column": "nope"}, "no column 'nope'"),
            ({"table": "orders", "column": "x"}, "no exact order"),
            ({"table": "keyless", "column": "n"}, "no primary key"),
            ({"table": "keyless", "column": "n", "key": ["n"]}, "several rows have n = 1"),
            ({"table": "keyless", "column": "m", "key": ["n"]}, "has no m"),
        ],
    )
    def test_refuses_what_it_cannot_read_exactly(self, tmp_path: Path, options: dict[str, Any], why: str) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        run(url, "CREATE TABLE orders (id INTEGER PRIMARY KEY, x FLOAT)", "CREATE TABLE keyless (n INTEGER, m INTEGER)")
        run(url, "INSERT INTO keyless (n) VALUES (1), (1)")

        with pytest.raises(FatalError, match=why):
            read_until_end(Source(url=url, **options))

    def test_refuses_a_row_without_a_key_when_it_goes_on_too(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        source = Source(url=url, table="t", column="n", key=["m"])
        run(url, "CREATE TABLE t (n INTEGER, m INTEGER NOT NULL)", "INSERT INTO t VALUES (1, 1)")
        [record] = read_until_end(source)
        run(url, "INSERT INTO t VALUES (NULL, 2), (3, 1)")

        with pytest.raises(FatalError, match="a row has no n"):
            read_until_end(source, record.position)


class TestParts:
    """Ranges of keys that many processes read give what one process reads."""

    @pytest.mark.parametrize("size", [1, 100, 100_000])
    def test_the_parts_of_a_table_are_the_table(self, tmp_path: Path, size: int) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        run(url, TABLE)
        insert(url, *((id, id * 7 % 10) for id in range(20)))
        source = Source(url=url, table="orders", column="changed_at")
        whole = read_until_end(source)

        for position in (None, whole[0].position, whole[17].position, whole[-1].position):
            parts = split_all(source, position, size)
            rest = read_until_end(source, position)
            assert [record for part in parts for record in read_part(source, part)] == rest
            assert {1: len(parts) == len(rest), 100: len(parts) < max(2, len(rest)), 100_000: len(parts) < 2}[size]

    def test_servers_find_the_same_parts(self, url: str) -> None:
        run(url, TABLE)
        insert(url, *((id, id * 7 % 5) for id in range(10)))
        source = Source(url=url, table="orders", column="changed_at")
        whole = read_until_end(source)
        parts = split_all(source, whole[2].position, 100)

        assert len(parts) > 1
        assert [record for part in parts for record in read_part(source, part)] == whole[3:]

    def test_a_row_that_moves_or_goes_is_as_it_is_when_its_part_is_read(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        run(url, TABLE)
        insert(url, *((id, id) for id in range(6)))
        source = Source(url=url, table="orders", column="changed_at")
        parts = split_all(source, None, 1)
        run(url, "DELETE FROM orders WHERE id = 2", "UPDATE orders SET changed_at = '2026-01-01 00:00:59' WHERE id = 4")

        assert [ids(read_part(source, part)) for part in parts] == [[0], [1], [], [3], [], [5]]

    def test_a_row_with_the_key_of_another_is_found_at_the_end_of_a_part(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        run(url, "CREATE TABLE t (n INTEGER NOT NULL)", "INSERT INTO t VALUES (1), (2), (2), (3)")
        source = Source(url=url, table="t", column="n", key=["n"])
        first, second, *_ = split_all(source, None, 1)

        assert [record.payload["n"] for record in read_part(source, first)] == [1]
        with pytest.raises(FatalError, match="several rows have n = 2"):
            read_part(source, second)

    def test_waits_for_late_commits_before_it_splits(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/data.db"
        run(url, TABLE)
        insert(url, (1, 1))
        source = Source(url=url, table="orders", column="id", delay_seconds=3600).fresh()
        source.open(None)
        with pytest.raises(NothingYet):
            source.split(100)
        source.teardown()

    def test_a_file_of_sqlite_is_read_by_one_process(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"table": "t", "column": "n"}

        assert not Source(url=f"sqlite:///{tmp_path}/data.db", **options).splits()
        assert Source(url="postgresql+psycopg://host/name", **options).splits()


def split_all(source: Source, position: bytes | None, size: int) -> list[bytes]:
    source, parts = source.fresh(), list[bytes]()
    source.open(position)
    try:
        while True:
            parts.append(source.split(size))
    except EndOfSource:
        return parts
    finally:
        source.teardown()


def read_part(source: Source, part: bytes) -> list[Record]:
    source, records = source.fresh(), list[Record]()
    source.open_part(part)
    try:
        while True:
            records += source.read(3).records
    except EndOfSource:
        return records
    finally:
        source.teardown()


def some_orders(tmp_path: Path) -> Source:
    url = f"sqlite:///{tmp_path}/data.db"
    run(url, TABLE)
    insert(url, *((id, id // 3) for id in range(12)))
    return Source(url=url, table="orders", column="changed_at")


TestSqlAlchemySource = source_acceptance(some_orders)


def appended(tmp_path: Path) -> Iterator[tuple[Destination, Callable[[], list[Any]]]]:
    def stored() -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "data.db")) as connection:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchall()
            return [{"n": n} for (n,) in connection.execute("SELECT n FROM t ORDER BY rowid")] if there else []

    yield Destination(url=f"sqlite:///{tmp_path}/data.db", table="t"), stored


TestSqlAlchemyDestination = destination_acceptance(
    appended, sample=lambda number: Record.of({"n": number}, position=b"%d" % number), refused=Record.of(b"raw")
)


class TestAnyDatabase:
    """A database of which only the dialect is known."""

    def test_takes_hostile_names_and_refuses_rows_alone(self, postgres: str) -> None:
        world = alchemy_world(postgres_world(postgres), alchemy_url(postgres), known=False)
        destination = world.opened(table='we"ird')
        fields = ['a:b "c" %s ?', "x; DROP TABLE t", ":p0", "100%"]
        assert destination.write(batch_of(dict.fromkeys(fields, 1), dict.fromkeys(fields, 2))) == {}
        refused = destination.write(batch_of({fields[0]: "text"}, {fields[0]: 3}, {"new": 1}))
        destination.teardown()

        assert set(refused) == {0, 2}
        assert world.read('SELECT * FROM "we""ird" ORDER BY 1') == [(1,) * 4, (2,) * 4, (3, None, None, None)]

    def test_alters_no_tables(self, postgres: str) -> None:
        world = alchemy_world(postgres_world(postgres), alchemy_url(postgres), known=False)
        with pytest.raises(FatalError, match="cannot alter a table"):
            world.opened(table="t", on_new_field="add")


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("no address", "no address of a database"),
            ("nosuch://here/db", "no driver for 'nosuch'"),
            ("mysql+nosuch://here/db", "no driver for 'mysql\\+nosuch'"),
            ("sqlite://", "database in memory"),
            ("postgresql+psycopg://u:p@ss@w@rd@here/db", "no address"),
        ],
    )
    def test_that_are_none_are_reported(self, url: str, why: str) -> None:
        for connector in (Source(url=url, table="t", column="id"), Destination(url=url, table="t")):
            made: Any = connector.fresh()
            with pytest.raises(FatalError, match=why) as caught:
                made.open(None) if isinstance(made, Source) else made.open()
            assert "ss@w" not in str(caught.value)

    def test_with_a_password_are_never_shown(self, postgres: str) -> None:
        password = uuid4().hex
        with psycopg.connect(postgres, autocommit=True) as connection:
            role = f"r{password[:8]}"
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'".encode())
        address = sa.make_url(alchemy_url(postgres)).set(username="nobody", password=password)
        url = address.render_as_string(hide_password=False)
        for connector in (Source(url=url, table="t", column="id"), Destination(url=url, table="t")):
            made: Any = connector.fresh()
            assert password not in repr(made.options)
            with pytest.raises((FatalError, TransientError)) as caught:
                made.open(None) if isinstance(made, Source) else made.open()
            assert password not in str(caught.value)


@pytest.mark.parametrize("owner", ["other", "nobody"])
def test_an_intent_of_another_pipeline_leaves_no_transaction_open(tmp_path: Path, owner: str) -> None:
    database = AnyDatabase(sa.create_engine(f"sqlite:///{tmp_path}/data.db"))
    with closing(database):
        checkpoint = CheckpointTable(database, "t")
        checkpoint.claim("other", 1)

        assert checkpoint.switch_to(owner) is (owner == "other")
        checkpoint.claim("mine", 1)
        checkpoint.begin()
