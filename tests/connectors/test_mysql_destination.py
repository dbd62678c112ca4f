"""Rows into MariaDB: what is peculiar to it. What all SQL destinations promise is in `test_sql_destinations`."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from builders import batch_of
from conduit_connectors import mysql as connector
from mariadb_changes import database_of, run_sql

from conduit_py import Operation, Record, sdk
from conduit_py.errors import FatalError
from conduit_py.sdk import registry
from conduit_py.testing import destination_acceptance


def appended(mariadb: str) -> Iterator[tuple[sdk.DestinationConnector[Any], Callable[[], list[Any]]]]:
    def stored() -> list[Any]:
        found = run_sql(mariadb, "SHOW TABLES LIKE 't'")
        return [{"n": int(n)} for [n] in run_sql(mariadb, "SELECT n FROM t")] if found else []

    destination = registry.find("destination", "mysql")(url=mariadb, table="t")
    assert isinstance(destination, sdk.DestinationConnector)
    yield destination, stored


def row(number: int) -> Record:
    return Record.of({"n": number}, position=b"%d" % number)


TestMySqlDestination = destination_acceptance(appended, sample=row, refused=Record.of(b"raw"))


@pytest.fixture
def opened(mariadb: str) -> Iterator[Callable[..., connector.Destination]]:
    """Opens destinations of the table t."""
    open_ones: list[connector.Destination] = []

    def open_destination(**options: Any) -> connector.Destination:
        destination = connector.Destination(url=mariadb, **{"table": "t"} | options)
        destination.open()
        open_ones.append(destination)
        return destination

    yield open_destination
    for destination in open_ones:
        destination.teardown()


def test_values_arrive_exactly_in_the_types_of_a_table(mariadb: str, opened: Any) -> None:
    columns = {
        "b": ("bigint unsigned", 2**64 - 1, "18446744073709551615"),
        "bits": ("bit(10)", 513, "513"),
        "d": ("decimal(65,30)", Decimal("-1.5e-30") * 2, "-0.000000000000000000000000000003"),
        "at": (
            "datetime(6)",
            datetime(2020, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))),
            "2020-01-02 01:00:00.000000",
        ),
        "ts": ("timestamp(6) null", datetime(2020, 1, 2, 3, tzinfo=UTC), "2020-01-02 03:00:00.000000"),
        "day": ("date", date(2020, 2, 29), "2020-02-29"),
        "zero": ("date", "0000-00-00", "0000-00-00"),
        "t": ("time(6)", time(1, 2, 3, 4), "01:02:03.000004"),
        "long_ago": ("time(6)", -timedelta(hours=838, microseconds=1), "-838:00:00.000001"),
        "text": ("varchar(20)", "😀 %s `'\"\\ ", "😀 %s `'\"\\ "),
        "raw": ("varbinary(10)", b"\0%s'\xff", b"\0%s'\xff"),
        "e": ("enum('a','b')", "b", "b"),
        "s": ("set('a','b')", "a,b", "a,b"),
        "u": ("uuid", UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        "x": ("double", 0.1, "0.1"),
        "j": ("json", {"a": ["%s"]}, '{"a":["%s"]}'),
    }
    run_sql(mariadb, f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, (kind, _, _) in columns.items())})")

    refused = opened().write(batch_of({name: value for name, (_, value, _) in columns.items()}))

    assert refused == {}
    shown = ", ".join(f"{name} + 0" if name == "bits" else name for name in columns)
    [found] = run_sql(mariadb, f"SELECT {shown} FROM t")
    assert list(found) == [text for _, _, text in columns.values()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(5,2)", Decimal("1.234")),
        ("varchar(2)", "abc"),
        ("varchar(2)", "ab "),
        ("int unsigned", -1),
        ("tinyint", 128),
        ("int", "12x"),
        ("enum('a')", "b"),
        ("set('a')", "a,b"),
        ("date", "2020-02-30"),
        ("time", timedelta(hours=900)),
        ("varchar(9) character set latin1", "漢"),
        ("binary(2)", b"abc"),
        ("binary(2)", b"a"),
        ("char(9)", "a "),
        ("int", 1.5),
        ("int", Decimal("1.5")),
        ("bigint unsigned", 2**64),
        ("enum('a','b')", 1),
        ("varchar(9)", 5),
        ("date", 20200101),
        ("date", datetime(2020, 1, 1, 3, tzinfo=UTC)),
        ("datetime", datetime(2020, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
        ("time(3)", time(1, 2, 3, 4)),
        ("blob", "text"),
    ],
)
def test_a_value_that_mariadb_would_change_is_refused_alone(mariadb: str, opened: Any, kind: str, value: Any) -> None:
    run_sql(mariadb, f"CREATE TABLE t (id int auto_increment PRIMARY KEY, v {kind})")

    refused = opened().write(batch_of({"id": 0, "v": None}, {"id": 7, "v": value}, {"id": 8, "v": None}))

    assert set(refused) == {1}
    assert run_sql(mariadb, "SELECT id FROM t ORDER BY id") == [("0",), ("8",)]


def test_a_row_that_another_unique_index_finds_is_not_overwritten(mariadb: str, opened: Any) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, mail varchar(20) NOT NULL UNIQUE, v int)")
    destination = opened(mode="upsert", key=["id"])
    rows = [{"id": 1, "mail": "a", "v": 1}, {"id": 2, "mail": "b", "v": 1}, {"id": 2, "mail": "c", "v": 2}]

    assert destination.write(batch_of(*rows)) == {}
    refused = destination.write(batch_of({"id": 3, "mail": "a", "v": 3}, {"id": 1, "mail": "d", "v": 4}))

    assert refused == {0: "another row has the same value in another unique index"}
    assert run_sql(mariadb, "SELECT * FROM t ORDER BY id") == [("1", "d", "4"), ("2", "c", "2")]


@pytest.mark.parametrize("shape", ["id int, v int", "id int NULL UNIQUE, v int", "id int, v int, PRIMARY KEY (id, v)"])
def test_upsert_needs_an_index_over_the_key(mariadb: str, opened: Any, shape: str) -> None:
    run_sql(mariadb, f"CREATE TABLE t ({shape})")

    with pytest.raises(FatalError, match="no primary key or unique index over id"):
        opened(mode="upsert", key=["id"]).write(batch_of({"id": 1, "v": 1}))


def test_keys_of_tables_that_it_creates_are_distinguished_exactly(mariadb: str, opened: Any) -> None:
    keys: list[Any] = ["a", "A", "a ", "ä", "😀", "x" * 300]
    destination = opened(mode="upsert", key=["id"])
    assert destination.write(batch_of(*({"id": key, "n": 1} for key in keys))) == {}
    assert destination.write(batch_of({"id": "a", "n": 2})) == {}

    assert dict(run_sql(mariadb, "SELECT id, n FROM t")) == dict.fromkeys(keys, "1") | {"a": "2"}


def test_a_table_without_transactions_is_refused(mariadb: str, opened: Any) -> None:
    run_sql(mariadb, "CREATE TABLE t (n int) ENGINE = MyISAM")

    with pytest.raises(FatalError, match="engine MyISAM, which has no transactions"):
        opened().write(batch_of({"n": 1}))


def test_a_table_that_is_created_does_not_commit_what_is_under_way(mariadb: str, opened: Any) -> None:
    run_sql(mariadb, "CREATE TABLE t (n int)")
    destination = opened(table=None)
    destination.claim("p", 1)
    records = [Record.of({"n": number}) for number in range(2)]
    for record, name in zip(records, ("t", "created"), strict=True):
        record.metadata["opencdc.collection"] = name
    destination.write(batch_of(*records))

    assert run_sql(mariadb, "SELECT * FROM t UNION ALL SELECT * FROM created") == []
    destination.commit(b"done")
    assert run_sql(mariadb, "SELECT * FROM t UNION ALL SELECT * FROM created") == [("0",), ("1",)]


@pytest.mark.parametrize(
    "table",
    [
        *("mysql.user", "MySQL.user", "sys.x", "information_schema.tables", "performance_schema.x"),
        *("conduit_checkpoint", "nowhere.orders", "a.b.c", "n" * 65, "a ", "", "a\0b", "a\ud800", "😀", "a_view"),
    ],
)
def test_a_table_that_no_record_may_name_refuses_the_record_alone(mariadb: str, opened: Any, table: str) -> None:
    run_sql(mariadb, "CREATE VIEW a_view AS SELECT 1 AS n UNION SELECT 2", "CREATE TABLE t (n int)")
    records = [Record.of({"n": number}) for number in range(3)]
    for record, name in zip(records, ("t", table, "t"), strict=True):
        record.metadata["opencdc.collection"] = name

    assert set(opened(table=None).write(batch_of(*records))) == {1}
    assert run_sql(mariadb, "SELECT n FROM t ORDER BY n") == [("0",), ("2",)]


@pytest.mark.parametrize(
    "fields", [{"a" * 65: 1}, {"a": 1, "A": 2}, {"a ": 1}, {"😀": 1}, {f"c{n}": n for n in range(1100)}]
)
def test_a_field_that_no_column_can_be_refuses_the_record_alone(
    mariadb: str, opened: Any, fields: dict[str, Any]
) -> None:
    assert set(opened().write(batch_of(fields, {"n": 1}))) == {0}
    assert run_sql(mariadb, "SELECT n FROM t") == [("1",)]


def test_a_delete_and_a_database_in_the_name_of_the_table(mariadb: str, opened: Any) -> None:
    destination = opened(table=f"{database_of(mariadb)}.we`ird %s", mode="upsert")
    destination.write(batch_of(*(Record.of({"v": 1}, key={"id %s`": number}) for number in range(2))))
    destination.write(batch_of(Record(operation=Operation.DELETE, key={"id %s`": 0})))

    assert run_sql(mariadb, "SELECT * FROM `we``ird %s`") == [("1", "1")]


def test_a_server_that_is_not_there_is_transient() -> None:
    with pytest.raises(sdk.TransientError, match="cannot connect to MariaDB"):
        connector.Destination(url="mysql://x:geheim@127.0.0.1:1/y", table="t").open()
