"""spark.Source passes the acceptance suite in every mode, and resumes exactly whatever happened to its tables."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors.spark import Source
from pyspark.sql import DataFrame, SparkSession
from waiting import until

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet
from conduit_py.testing import source_acceptance

Options = dict[str, Any]
ROWS = 17


def numbers(path: Path, start: int = 0, stop: int = ROWS) -> Path:
    """A folder of parquet files with `n` unordered in it, to which each call adds one."""
    path.mkdir(exist_ok=True)
    values = sorted(range(start, stop), key=lambda n: (n % 5, n))
    table = pa.table({"n": values, "text": [f"#{n}" for n in values], "half": [n // 2 for n in values]})
    pq.write_table(table, path / f"{start}.parquet")
    return path


def a_snapshot(tmp_path: Path, spark: SparkSession, spark_options: Options) -> Source:
    path = numbers(tmp_path / "numbers")
    return Source(format="parquet", path=str(path), stage=tmp_path / "stage", key=["n"], **spark_options)


def a_keyed_table(tmp_path: Path, spark: SparkSession, spark_options: Options) -> Source:
    path = numbers(tmp_path / "numbers")
    return Source(mode="keyed", key=["half", "n"], chunk_rows=9, format="parquet", path=str(path), **spark_options)


def a_growing_table(tmp_path: Path, spark: SparkSession, spark_options: Options) -> Source:
    path = numbers(tmp_path / "numbers", stop=5)
    return Source(mode="incremental", column="n", format="parquet", path=str(path), **spark_options)


TestSnapshot = source_acceptance(a_snapshot)
TestKeyed = source_acceptance(a_keyed_table)
TestIncremental = source_acceptance(a_growing_table, records=5)


def read(source: Source, position: bytes | None = None, limit: int = 1000) -> list[Record]:
    """What a source gives until it ends or has nothing more for now, at most `limit`."""
    source = source.fresh()
    records: list[Record] = []
    try:
        source.open(position)
        while len(records) < limit:
            records += source.read(min(7, limit - len(records)))
    except (EndOfSource, NothingYet):
        pass
    finally:
        trio.run(source.teardown)
    return records


def payloads(records: list[Record], column: str = "n") -> list[Any]:
    return [record.payload[column] for record in records]


def test_a_snapshot_stays_as_it_was_taken(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    source = a_snapshot(tmp_path, spark, spark_options)
    first = read(source, limit=4)
    numbers(tmp_path / "numbers", 100, 110)
    (tmp_path / "numbers" / "0.parquet").unlink()

    rest = read(source, first[-1].position)

    assert sorted(payloads(first + rest)) == list(range(ROWS))
    assert first[0].key == {"n": first[0].payload["n"]}
    assert first[0].operation == "snapshot"


def test_a_snapshot_has_the_values_of_the_query(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    query = """
        SELECT id AS n, IF(id = 1, NULL, named_struct(
            'at', TIMESTAMP'1900-01-01 00:00:00.000001Z', 'wall', TIMESTAMP_NTZ'2026-01-01 00:00:00.000001',
            'day', DATE'1600-02-29', 'sum', CAST('-1.50' AS DECIMAL(20,2)), 'text', 'ä', 'half', -0.0D)) AS all
        FROM range(0, 3, 1, 1)
    """
    query = f"SELECT n, all.* FROM ({query})"
    records = read(Source(query=query, stage=tmp_path, **spark_options))

    whole = {
        "at": datetime(1900, 1, 1, microsecond=1, tzinfo=UTC),
        "wall": datetime(2026, 1, 1, microsecond=1),  # noqa: DTZ001 - it has none
        "day": date(1600, 2, 29),
        "sum": Decimal("-1.50"),
        "text": "ä",
        "half": -0.0,
    }
    rows = [{"n": 0} | whole, {"n": 1} | dict.fromkeys(whole), {"n": 2} | whole]
    assert [record.payload.after for record in records] == rows
    assert str(records[0].payload["sum"]) == "-1.50"
    assert list(records[1].payload) == ["n", *whole]


def test_a_snapshot_that_is_acked_is_let_go_and_the_next_one_is_new(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    source = a_snapshot(tmp_path, spark, spark_options).fresh()
    source.open(None)
    records = source.read(100)
    source.ack([record.position for record in records[:-1]])
    kept = list((tmp_path / "stage").rglob("*.parquet"))
    source.ack([records[-1].position])
    gone = list((tmp_path / "stage").rglob("*.parquet"))
    trio.run(source.teardown)
    numbers(tmp_path / "numbers", 100, 103)

    assert kept
    assert gone == []
    assert read(source, records[-1].position) == []
    assert len(read(source)) == ROWS + 3


def test_a_snapshot_that_is_missing_is_reported(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    source = a_snapshot(tmp_path, spark, spark_options)
    position = read(source, limit=1)[0].position
    trio.run(source.fresh().teardown)
    source.fresh().on_deleted()

    with pytest.raises(FatalError, match="is no longer in"):
        read(source, position)


def test_a_big_snapshot_has_every_row_once(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    query = "SELECT id AS n FROM range(0, 250000, 1, 2)"
    source = Source(query=query, stage=tmp_path, **spark_options).fresh()
    source.open(None)
    found: list[int] = []
    while len(found) < 250_000:
        found += payloads(source.read(50_000))
    trio.run(source.teardown)

    assert sorted(found) == list(range(250_000))


def test_an_incremental_source_finds_what_is_added(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    source = a_growing_table(tmp_path, spark, spark_options)
    first = read(source)
    numbers(tmp_path / "numbers", 5, 8)

    rest = read(source, first[-1].position)

    assert payloads(first) == [0, 1, 2, 3, 4]
    assert payloads(rest) == [5, 6, 7]


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(id AS DECIMAL(20,5)) / 8",
        "concat('ä`\"', lpad(id, 3, '0'))",
        "DATE'2026-01-01' + CAST(id AS INT)",
        "TIMESTAMP'2026-01-01 00:00:00.000001' + make_interval(0,0,0,0,0,0,id)",
        "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001' + make_interval(0,0,0,0,0,0,id)",
    ],
)
def test_keys_of_every_type_resume_exactly(expression: str, spark: SparkSession, spark_options: Options) -> None:
    query = f"SELECT id AS n, {expression} AS `the key` FROM range(4)"
    source = Source(mode="keyed", key=["the key"], chunk_rows=2, query=query, **spark_options)
    first = read(source, limit=1)

    rest = read(source, first[-1].position)

    assert payloads(first) + payloads(rest) == list(range(4))


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id DIV 4 AS k FROM range(9)", "several rows have k = 0"),
        ("SELECT id DIV 4 AS k FROM range(3, 5)", None),
        ("SELECT nullif(id, 3) AS k FROM range(5)", "a row has no k"),
        ("SELECT CAST(id AS DOUBLE) AS k FROM range(5)", "gives no exact order"),
        ("SELECT id AS other FROM range(5)", "there is no column 'k'"),
        ("SELECT k FROM no_such_table", "no_such_table"),
        ("SELEKT 1", "SELEKT"),
    ],
)
def test_what_cannot_be_read_in_order_is_reported(
    query: str, why: str | None, spark: SparkSession, spark_options: Options
) -> None:
    source = Source(mode="keyed", key=["k"], chunk_rows=1, query=query, **spark_options)

    if why is None:
        assert payloads(read(source), "k") == [0, 1]
    else:
        with pytest.raises(FatalError, match=why):
            read(source)


def test_a_wrong_path_is_reported_at_once(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    source = Source(format="parquet", path=str(tmp_path / "nowhere"), stage=tmp_path, **spark_options)

    with pytest.raises(FatalError, match=r"nowhere.*cannot be read"):
        read(source)


def test_a_function_can_make_the_rows(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    def rows(session: SparkSession) -> DataFrame:
        return session.range(3).selectExpr("id AS n", "TIMESTAMP'2026-01-01 00:00:00' AS at")

    records = read(Source(function=rows, stage=tmp_path, **spark_options))

    assert sorted(payloads(records)) == [0, 1, 2]
    assert isinstance(records[0].payload["at"], datetime)


def test_text_of_a_database_is_no_order(spark: SparkSession, spark_options: Options, derby: dict[str, str]) -> None:
    options = derby | {"dbtable": "(VALUES ('a'), ('b')) AS t(k)"}
    source = Source(mode="keyed", key=["K"], format="jdbc", options=options, **spark_options)

    with pytest.raises(FatalError, match="may order text differently"):
        read(source)


@pytest.fixture
def derby() -> dict[str, str]:
    """The database that comes with Spark, in the driver's memory."""
    return {"url": "jdbc:derby:memory:t;create=true", "driver": "org.apache.derby.jdbc.EmbeddedDriver"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "give one of `query`, `table`, `format` and `function`"),
        ({"query": "SELECT 1", "table": "t"}, "give one of"),
        ({"query": "SELECT 1", "path": "x"}, "go with a `format`"),
        ({"query": "SELECT 1"}, "needs `stage`"),
        ({"query": "SELECT 1", "mode": "keyed"}, "needs `key`"),
        ({"query": "SELECT 1", "mode": "incremental"}, "go together"),
        ({"query": "SELECT 1", "mode": "keyed", "key": ["a"], "column": "a"}, "go together"),
        ({"query": "SELECT 1", "stage": "x", "master": "local", "remote": "sc://x"}, "not both"),
    ],
)
def test_options_that_do_not_go_together_are_reported(options: dict[str, Any], why: str) -> None:
    assert [why in problem.message for problem in Source(**options).problems] == [True]


async def test_stopping_ends_a_query_that_runs(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    slow = "SELECT id AS k FROM range(0, 100000000000, 1, 2) WHERE sha2(CAST(id AS STRING), 256) = 'none'"
    source = Source(mode="keyed", key=["k"], query=slow, **spark_options).fresh()
    await trio.to_thread.run_sync(source.open, None)
    ended = trio.Event()

    async def read_until_stopped() -> None:
        with pytest.raises(EndOfSource):
            await trio.to_thread.run_sync(source.read, 1)
        ended.set()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_until_stopped)
            await until(spark.sparkContext.statusTracker().getActiveJobsIds)
            await trio.to_thread.run_sync(source.stop)
            await ended.wait()
    await source.teardown()

    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
