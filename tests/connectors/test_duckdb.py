"""DuckDB as source and destination: values exact or refused, refusals inside of a transaction, and one process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors.duckdb import Destination, Source
from conduit_connectors.duckdb.database import DuckDbDatabase
from lake_tables import read_until_end
from sql_world import World, duckdb_world

from conduit_py import Operation, Payload, Record
from conduit_py.batch import Batch
from conduit_py.errors import FatalError, TransientError
from conduit_py.payloads import Payloads
from conduit_py.testing import destination_acceptance, source_acceptance


@pytest.fixture
def world(tmp_path: Path) -> World:
    return duckdb_world(tmp_path / "data.duckdb")


def a_file(tmp_path: Path) -> Iterator[tuple[Destination, Callable[[], list[Any]]]]:
    path = tmp_path / "data.duckdb"
    yield Destination(path=path, table="t"), lambda: [{"n": n} for (n,) in duckdb_world(path).rows_of("t")]


TestDuckDbDestination = destination_acceptance(
    a_file, sample=lambda number: Record.of({"n": number}, position=b"%d" % number), refused=Record.of(b"raw")
)


def some_rows(tmp_path: Path) -> Source:
    path = tmp_path / "rows.duckdb"
    with closing(duckdb.connect(str(path))) as connection:
        connection.execute("CREATE TABLE t AS SELECT i // 3 AS a, i AS b, 'row ' || i AS name FROM range(12) r(i)")
    return Source(path=path, table="t", key=["a", "b"])


TestDuckDbSource = source_acceptance(some_rows)

_LOCAL = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC).replace(tzinfo=None)
ROW: dict[str, Any] = {
    "n": 1,
    "x": float("inf"),
    "ok": True,
    "d": Decimal("1.5"),
    "wide": 2**100,
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "local": _LOCAL,
    "day": date(2026, 1, 2),
    "clock": time(1, 2, 3, 4),
    "span": timedelta(days=1, microseconds=5),
    "b": b"\0\xff",
    "u": UUID(int=7),
    "text": "é\n'\";--",
}


def test_values_come_back_as_they_went_in(world: World, tmp_path: Path) -> None:
    destination = world.opened(table="t")
    assert destination.write(batch_of(ROW, ROW | {"n": 2, "o": None})) == {}
    destination.teardown()
    first, second = read_until_end(Source(path=tmp_path / "data.duckdb", table="t", key=["n"]))

    assert first.payload.after == ROW
    assert second.payload.after == ROW | {"n": 2}


class TestExactness:
    """A value that DuckDB would round, cut or convert is refused, whichever way rows take."""

    UNFIT: tuple[tuple[str, Any], ...] = (
        ("n", 1.5), ("n", "1.5"), ("n", Decimal("1.5")), ("n", True), ("n", 2**31), ("d", Decimal("1.005")),
        ("d", 0.001), ("d", Decimal("NaN")), ("d", 10**9), ("f", 2**60 + 1), ("day", _LOCAL),
        ("day", "2026-02-30"), ("at", _LOCAL), ("at", "2026-01-01T00:00:00"), ("local", "2026-01-01"),
        ("local", datetime(2026, 1, 1, tzinfo=UTC)), ("local", "2026-01-01T00:00:00+02:00"), ("u", "x"),
        ("local", "2026-01-01T00:00:00.1234567"), ("b", "text"), ("ok", 1), ("ok", "t"), ("j", "{x"), ("l", [1]),
        ("clock", time(1, tzinfo=UTC)), ("text", b"raw"), ("text", 5), ("ns", _LOCAL),
    )  # fmt: skip
    FIT: tuple[tuple[str, Any, Any], ...] = (
        ("n", 2.0, 2), ("n", "7", 7), ("d", 0.25, Decimal("0.25")), ("d", "1.5", Decimal("1.50")),
        ("d", 3, Decimal("3.00")), ("f", 2, 2.0), ("f", float("nan"), float("nan")), ("ok", "true", True),
        ("at", "2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC)), ("j", {"a": 1}, '{"a":1}'),
        ("local", "2026-01-02T03:04:05.000006", _LOCAL), ("day", "2026-01-01", date(2026, 1, 1)),
    )  # fmt: skip
    TABLE: str = (
        "CREATE TABLE t (id BIGINT, n INTEGER, d DECIMAL(10,2), f DOUBLE, day DATE, at TIMESTAMPTZ, local TIMESTAMP, "
        "u UUID, b BLOB, ok BOOLEAN, j JSON, l INTEGER[], clock TIME, text VARCHAR, ns TIMESTAMP_NS)"
    ).replace(" at ", ' "at" ')

    @pytest.mark.parametrize("columns", ["all", "plain"])
    def test_of_values(self, world: World, columns: str) -> None:
        names = {"id", "n", "f", "day", "at", "local", "b", "ok", "text"}
        world.run(self.TABLE)
        if columns == "plain":
            # Then every column has a type of Arrow, and batches are not looked at row by row.
            world.run(*(f"ALTER TABLE t DROP COLUMN {name}" for name in ("d", "u", "j", "l", "clock", "ns")))
        destination = world.opened(table="t")
        unfit = [(name, value) for name, value in self.UNFIT if columns == "all" or name in names]
        fit = [(name, value, held) for name, value, held in self.FIT if columns == "all" or name in names]
        for name, value in unfit:
            assert set(destination.write(batch_of({"id": 0, name: value}))) == {0}, (name, value)
        rows = [{"id": 1, name: value} for name, value, _ in fit]
        assert destination.write(batch_of(*rows)) == {}
        destination.teardown()

        for (name, value, held), row in zip(fit, world.dicts("t"), strict=True):
            assert row[name] == held or (held != held and row[name] != row[name]), value

    def test_of_columns_that_are_widened_or_become_text(self, world: World) -> None:
        world.run("CREATE TABLE t (id BIGINT, n INTEGER, d DATE)")
        destination = world.opened(table="t", on_type="text")
        rows = [{"id": 1, "n": 1, "d": "2026-01-01"}, {"id": 2, "n": 2**40}, {"id": 3, "n": 0.1}, {"id": 4, "d": "x"}]
        assert destination.write(batch_of(*rows)) == {}
        destination.teardown()

        assert [row["n"] for row in world.dicts("t")] == ["1", str(2**40), "0.1", None]
        assert [row["d"] for row in world.dicts("t")] == ["2026-01-01", None, None, "x"]
        assert world.types()["n"] == "varchar"


class TestOneTransaction:
    """DuckDB ends a transaction at the first error: what was written before it must be there again."""

    def test_goes_on_after_refusals_without_losing_rows(self, world: World) -> None:
        world.run("CREATE TABLE t (n BIGINT UNIQUE CHECK (n < 100), v VARCHAR NOT NULL)")
        destination = world.opened(table="t")
        destination.claim("p", 1)
        refused = [
            destination.write(batch_of({"n": 1, "v": "a"}, {"n": 2, "v": "b"})),
            destination.write(
                batch_of({"n": 3, "v": "c"}, {"n": 1, "v": "x"}, {"n": 4, "v": None}, {"n": 5, "v": "d"})
            ),
            destination.write(batch_of({"n": 100, "v": "x"})),
            destination.write(batch_of({"n": 6, "v": "e"})),
        ]
        before = world.rows_of("t")
        destination.commit(b"one")
        destination.teardown()

        assert [sorted(each) for each in refused] == [[], [1, 2], [0], []]
        assert before == []
        assert world.rows_of("t") == [(1, "a"), (2, "b"), (3, "c"), (5, "d"), (6, "e")]

    def test_keeps_the_last_of_rows_with_one_key_in_one_statement(self, world: World) -> None:
        destination = world.opened(table="t", mode="upsert", key=["at"])
        early, same = "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+02:00"
        world.run('CREATE TABLE t ("at" TIMESTAMPTZ PRIMARY KEY, v VARCHAR)')
        destination.write(batch_of(*({"at": at, "v": v} for at, v in [(early, "a"), (same, "b"), (early, "c")])))
        gone = [Record(operation=Operation.DELETE, key={"at": at}, payload=Payload()) for at in (early, same)]
        kept = world.dicts("t")
        destination.write(batch_of(*gone))

        assert [row["v"] for row in kept] == ["c"]
        assert world.rows_of("t") == []

    def test_leaves_a_default_to_the_database(self, world: World) -> None:
        world.run("CREATE TABLE t (n BIGINT, v VARCHAR DEFAULT 'mine')")
        destination = world.opened(table="t")
        destination.write(batch_of({"n": 1}, {"n": 2, "v": None}))

        assert world.rows_of("t") == [(1, "mine"), (2, None)]


def test_tables_of_arrow_are_appended_without_making_rows(world: World) -> None:
    destination = world.opened(table="t")
    table = pa.table({"n": range(5), "s": list("abcde")})
    destination.write(batch_of({"n": -1, "s": "z"}))
    rows = batch_of(*({} for _ in range(5)))
    batch = Batch.whole(rows.span, Payloads.of_table(table, [b"%d" % n for n in range(5)]))
    assert destination.write(batch) == {}

    assert batch.table is not None
    assert world.rows_of("t") == [(-1, "z"), *zip(range(5), "abcde", strict=True)]


def test_a_file_that_another_process_has_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "data.duckdb"
    code = f"import duckdb\nc = duckdb.connect({str(path)!r})\nprint('open', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(TransientError, match="another process has"):
            duckdb_world(path).opened(table="t")
        other.communicate("\n")

    duckdb_world(path).opened(table="t").teardown()


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data.duckdb").write_bytes(b"no database" * 1000)
    with pytest.raises(FatalError, match="cannot be used"):
        duckdb_world(tmp_path / "data.duckdb").opened(table="t")


_INEXACT = {
    "DATE": ["'9999-12-31'", "'infinity'", "'-infinity'", "'12000-01-01'", "'0001-01-01 (BC)'", "NULL"],
    "TIMESTAMP": ["'0001-01-01'", "'infinity'", "'12000-01-01'", "'9999-12-31 23:59:59.999999'"],
    "TIMESTAMPTZ": ["'0001-01-01 00:00:00+00'", "'infinity'", "'-infinity'", "'9999-12-31 23:59:59.999999+00'"],
    "TIMESTAMP_MS": ["'2026-01-01'", "'infinity'", "'2026-01-01'"],
    "TIME": ["'23:59:59.999999'", "'24:00:00'", "'00:00:00'"],
    "INTERVAL": ["'45 days 3 hours'", "'1 month'", "'-1 year'", "'2000000000 days'", "'-1 day -1 microsecond'"],
    "DATE[]": ["['2026-01-01']", "['2026-01-01', 'infinity']", "[]"],
    'STRUCT(a VARCHAR, "b\'" INTERVAL[])': [
        "{'a': 'infinity', 'b''': NULL}",
        "{'a': '', 'b''': [INTERVAL 1 MONTH]}",
        "NULL",
    ],
    "MAP(VARCHAR, DATE)": ["MAP {'a': '2026-01-01'}", "MAP {'a': 'infinity'}", "MAP {}"],
}
"""Values of each type: the first and the last are those that Python holds."""


class TestSource:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"table": "t", "key": ["x"]}, "no column 'x'"),
            ({"table": "nope", "key": ["a"]}, "refuses to read"),
            ({"table": "t", "key": ["a"]}, "several rows have a = 0"),
            ({"query": "SELECT NULL AS a", "key": ["a"]}, "has no a"),
            ({"query": "SELECT 1.5::DOUBLE AS a", "key": ["a"]}, "no exact order"),
            ({"query": "SELECT 1 AS a, now()::TIMESTAMP_NS AS b", "key": ["a"]}, "would cut digits"),
            ({"query": "SELECT 1 AS a, [MAP {[1]: 2}] AS b", "key": ["a"]}, "keys no mapping"),
            ({"query": "SELECT 1 AS a, union_value(n := 1) AS b", "key": ["a"]}, "which member"),
            ({"query": "SELECT DATE 'infinity' AS a", "key": ["a"]}, "a value of 'a' is none that Python has"),
        ],
    )
    def test_refuses_what_it_cannot_read_exactly(self, tmp_path: Path, options: dict[str, Any], why: str) -> None:
        some_rows(tmp_path)
        with pytest.raises(FatalError, match=why):
            read_until_end(Source(path=tmp_path / "rows.duckdb", **options))

    @pytest.mark.parametrize("kind", _INEXACT)
    def test_refuses_a_row_with_a_value_that_python_would_change(self, tmp_path: Path, kind: str) -> None:
        some_rows(tmp_path)
        values = [f"({number}, {value}::{kind})" for number, value in enumerate(_INEXACT[kind])]
        query = f'SELECT n, v AS "v\'" FROM (VALUES {", ".join(values)}) r(n, v)'
        source = Source(path=tmp_path / "rows.duckdb", query=query, key=["n"])
        source.open(None)
        reading, rest = source.read(len(values) - 1), source.read(9)
        source.teardown()

        assert [*reading.refused] == [*range(1, len(values) - 1)]
        assert '"v\'"' in reading.refused[1]
        assert [reading.records[1].key, reading.records[1].payload.after] == [{"n": 1}, None]
        assert len(rest.records) == 1
        assert rest.refused == {}

    def test_reads_a_query(self, tmp_path: Path) -> None:
        some_rows(tmp_path)
        source = Source(path=tmp_path / "rows.duckdb", query="SELECT b, b * 2 AS twice FROM t WHERE a > 1", key=["b"])

        assert [record.payload.after for record in read_until_end(source, n=2)] == [
            {"b": b, "twice": 2 * b} for b in range(6, 12)
        ]


def test_the_steps_of_a_transaction_are_taken_again_up_to_a_savepoint(tmp_path: Path) -> None:
    with closing(
        DuckDbDatabase(
            tmp_path / "a.duckdb",
        )
    ) as database:
        with database.transaction():
            database.run("CREATE TABLE t (n INTEGER)")
            database.set_savepoint("outer")
            database.run("INSERT INTO t VALUES (?)", [1])
            database.set_savepoint("inner")
            database.run("INSERT INTO t VALUES (?)", [2])
            database.roll_back_to("inner")
            database.release_savepoint("inner")
            database.run("INSERT INTO t VALUES (?)", [3])
            database.release_savepoint("outer")
        assert database.rows("SELECT n FROM t") == [(1,), (3,)]


def test_a_row_without_a_key_is_reported_when_the_source_goes_on_too(tmp_path: Path) -> None:
    path = tmp_path / "keys.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n, 1 AS m")
    source = Source(path=path, table="t", key=["n"])
    [record] = read_until_end(source)
    with duckdb.connect(path) as connection:
        connection.execute("INSERT INTO t VALUES (NULL, 1), (2, 1)")

    with pytest.raises(FatalError, match="a row has no"):
        read_until_end(source, record.position)
