"""A record names its table and columns. A name that no table can have refuses that record, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import batch_of
from conduit_connectors import memory, sqlite
from conduit_connectors.postgres import Destination as PostgresDestination
from conduit_connectors.sql.destination import SqlDestination

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source
from conduit_py.errors import FatalError
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end

Make = Callable[..., SqlDestination[Any]]

TABLES = {
    "our checkpoint": "conduit_checkpoint",
    "our checkpoint in other letters": "Conduit_CHECKPOINT",
    "our checkpoint with its schema": "public.conduit_checkpoint",
    "our outbox": "conduit_outbox",
    "our state": "conduit_py.claims",
    "a NUL": "a\0b",
    "half of a surrogate pair": "a\ud800",
}
POSTGRES_TABLES = {
    "the catalogue": "pg_class",
    "the catalogue with its schema": "pg_catalog.pg_class",
    "the standard's catalogue": "information_schema.sql_features",
    "no such schema": "nowhere.orders",
    "an empty part": "public..orders",
    "too many parts": "a.b.c.d",
    "longer than a name may be": "n" * 64,
    "an index": "orders_by_n",
    "a sequence": "counter",
    "a view": "all_orders",
}
SQLITE_TABLES = {
    "the catalogue": "sqlite_master",
    "the counters": "sqlite_sequence",
    "a new table that SQLite keeps for itself": "SQLITE_x",
    "a function": "pragma_table_list",
    "an index": "orders_by_n",
    "a view": "all_orders",
}
COLUMNS: dict[str, dict[Any, Any]] = {
    "a NUL": {"a\0b": 1},
    "half of a surrogate pair": {"\udfff": 1},
    "too many": {f"c{n}": n for n in range(2500)},
    "half of a surrogate pair in a value": {"n": "\ud800"},
    "no text": {1: 1},
    "an integer that Python does not write in digits": {"n": 10**5000},
    "such an integer within a list": {"n": [10**5000]},
}


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if kind == "sqlite":
        return lambda **options: sqlite.Destination(path=tmp_path / "data.db", **options)
    url: str = request.getfixturevalue("postgres")
    return lambda **options: PostgresDestination(url=url, **options)


@pytest.fixture(params=["each write", "home", "staged"])
def destination(make: Make, kind: str, request: pytest.FixtureRequest) -> SqlDestination[Any]:
    """A destination in each of its three ways to write, with a few things in its database."""
    made = opened(make())
    made._db.run("CREATE TABLE orders (n BIGINT)")
    made._db.run("CREATE INDEX orders_by_n ON orders (n)")
    made._db.run("CREATE VIEW all_orders AS SELECT n FROM orders GROUP BY n")
    if kind == "postgres":
        made._db.run("CREATE SEQUENCE counter")
    if request.param != "each write":
        made.claim("p", 1)
    if request.param == "staged":
        made.begin("p", 1, [])
    return made


def opened(destination: SqlDestination[Any]) -> SqlDestination[Any]:
    destination.open()
    return destination


def record(table: str, fields: dict[str, Any] | None = None) -> Record:
    made = Record.of(fields or {"n": 1})
    made.metadata = {"opencdc.collection": table}
    return made


def rows(destination: SqlDestination[Any], sql: str) -> list[Any]:
    if intent := destination.stage():
        destination.apply(intent)
    return [n for (n,) in destination._db.rows(sql)]


def check_refused_alone(destination: SqlDestination[Any], hostile: Record) -> None:
    refused = destination.write(batch_of(record("orders", {"n": 1}), hostile, record("orders", {"n": 2})))

    assert set(refused) == {1}
    assert destination.write(batch_of(record("orders", {"n": 3}))) == {}
    assert rows(destination, "SELECT n FROM orders ORDER BY n") == [1, 2, 3]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_a_records_refuses_the_record_alone(destination: SqlDestination[Any], name: str) -> None:
    check_refused_alone(destination, record(TABLES[name]))


@pytest.mark.parametrize("name", sorted(POSTGRES_TABLES | SQLITE_TABLES))
def test_a_table_that_cannot_be_refuses_the_record_alone(
    destination: SqlDestination[Any], kind: str, name: str
) -> None:
    names = SQLITE_TABLES if kind == "sqlite" else POSTGRES_TABLES
    if name not in names:
        pytest.skip("this database can have it")
    check_refused_alone(destination, record(names[name]))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("table", ["orders", "fresh"])
def test_columns_that_cannot_be_refuse_the_record_alone(
    destination: SqlDestination[Any], table: str, name: str
) -> None:
    check_refused_alone(destination, record(table, COLUMNS[name]))


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_a_table_that_the_definition_names(make: Make, name: str) -> None:
    destination = opened(make(table="orders"))

    refused = destination.write(batch_of(COLUMNS[name], {"n": "1"}, COLUMNS[name]))

    assert set(refused) == {0, 2}


def test_columns_that_the_database_takes_for_one_refuse_the_record_alone(
    destination: SqlDestination[Any], kind: str
) -> None:
    fields = {"a": 1, "A": 2} if kind == "sqlite" else {"n" * 70 + "1": 1, "n" * 70 + "2": 2}
    check_refused_alone(destination, record("fresh", fields))


@pytest.mark.parametrize("fields", [{"": 1}, {"ctid": 1}], ids=["no name", "a column of the system"])
@pytest.mark.parametrize("table", ["orders", "fresh"])
def test_columns_that_postgresql_cannot_have(table: str, fields: dict[str, Any], postgres: str) -> None:
    destination = opened(PostgresDestination(url=postgres))
    destination._db.run("CREATE TABLE orders (n BIGINT)")

    check_refused_alone(destination, record(table, fields))
    assert set(opened(PostgresDestination(url=postgres, table="other")).write(batch_of(fields))) == {0}


def test_a_table_that_is_not_there_refuses_the_record_that_names_it(make: Make) -> None:
    destination = opened(make(create=False))
    destination._db.run("CREATE TABLE orders (n BIGINT)")

    assert destination.write(batch_of(record("orders"), record("other"))) == {1: "there is no table 'other'"}


def test_a_key_that_the_table_does_not_have_refuses_the_record_that_names_it(make: Make) -> None:
    destination = opened(make(mode="upsert"))
    destination._db.run("CREATE TABLE orders (id BIGINT PRIMARY KEY, n BIGINT)")
    hostile = record("orders", {"id": 2, "n": 2})
    hostile.key = {"n": 2}

    good = record("orders", {"n": 1})
    good.key = {"id": 1}
    assert set(destination.write(batch_of(good, hostile))) == {1}


def test_what_the_definition_alone_makes_impossible_stops_the_pipeline(make: Make) -> None:
    destination = opened(make(table="all_orders"))
    destination._db.run("CREATE TABLE orders (n BIGINT)")
    destination._db.run("CREATE VIEW all_orders AS SELECT n FROM orders GROUP BY n")

    with pytest.raises(FatalError):
        destination.write(batch_of({"n": 1}))


@pytest.mark.parametrize("table", ["conduit_checkpoint", "a\0b"])
def test_a_definition_that_names_such_a_table_is_a_problem(make: Make, table: str) -> None:
    (problem,) = make(table=table).problems

    assert problem.path == "table"


async def test_no_record_fences_a_pipeline(make: Make) -> None:
    attack = record(
        "conduit_checkpoint", {"owner": "p", "place": "", "fence": 2**62, "begun": 0, "applied_fence": 0, "applied": 0}
    )
    attack.key = {"owner": "p", "place": ""}
    good = record("orders", {"n": 1})
    good.key = {"n": 1}
    pipeline = Pipeline(
        "p",
        sources=[Source("in", memory.Source(records=[attack, good]))],
        destinations=[Destination("out", make(mode="upsert"))],
        delivery="exactly_once",
        dead_letters=DeadLetters.drop(),
    )
    store = MemoryStore()

    for _ in range(2):
        assert (await run_to_end(pipeline, store)).status is Status.COMPLETED
