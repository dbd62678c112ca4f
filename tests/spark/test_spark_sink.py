"""spark.Sink passes the acceptance suite, and refuses only those records that a failed job is to blame on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
import trio
from builders import batch_of
from conduit_connectors.spark import Sink
from delivered import delivered
from pyspark.sql import DataFrame, SparkSession
from waiting import until

from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Record
from conduit_py.sdk import RecordRefused
from conduit_py.testing import destination_acceptance

Options = dict[str, Any]


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """A table of Spark's catalog, of the columns that numbered records have."""
    name = f"t{uuid4().hex}"
    spark.sql(f"CREATE TABLE {name} (n INT, `from` STRING) USING parquet")
    yield name
    spark.sql(f"DROP TABLE {name}")


def a_table(spark: SparkSession, spark_options: Options, table: str) -> tuple[Sink, Callable[[], list[Any]]]:
    def stored() -> list[Any]:
        rows = spark.sql(f"SELECT * FROM {table} ORDER BY n").toArrow().to_pylist()
        return [dict(row) for row in rows]

    return Sink(table=table, delay_seconds=0.01, **spark_options), stored


TestTable = destination_acceptance(a_table, refused=Record.of({"n": 2**31}))


def opened(spark_options: Options, **more: Any) -> Sink:
    sink = Sink(delay_seconds=0.01, **spark_options, **more)
    assert sink.problems == []
    sink = sink.fresh()
    sink.open()
    return sink


def test_a_bad_batch_is_halved_until_only_bad_records_are_left(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    def narrow(frame: DataFrame) -> None:
        frame.selectExpr("CAST(n AS TINYINT) AS n").write.mode("append").parquet(str(tmp_path / "out"))

    sink = opened(spark_options, function=narrow)
    refused = delivered(sink, batch_of(*({"n": n} for n in (1, 2, 300, 4, 5, 6, 700, 8))))
    trio.run(sink.teardown)

    assert sorted(refused) == [2, 6]
    assert "CAST_OVERFLOW" in refused[2]
    stored = pq.read_table(tmp_path / "out")["n"].to_pylist()
    assert set(stored) == {1, 2, 4, 5, 6, 8}


def test_a_function_may_refuse_records(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    def picky(frame: DataFrame) -> None:
        if 3 in frame.toArrow()["n"].to_pylist():
            raise RecordRefused("three is not taken")

    sink = opened(spark_options, function=picky)
    refused = delivered(sink, batch_of({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}))
    trio.run(sink.teardown)

    assert refused == {2: "three is not taken"}


def test_a_function_that_fails_is_no_fault_of_the_records(spark: SparkSession, spark_options: Options) -> None:
    def broken(frame: DataFrame) -> None:
        raise OSError("the network is down")

    sink = opened(spark_options, function=broken)
    sink.write(batch_of({"n": 1}))
    with pytest.raises(TransientError, match="a Spark job over 1 records failed: the network is down"):
        sink.answers()
    trio.run(sink.teardown)


def test_a_job_that_is_too_large_for_java_is_not_tried_again(spark: SparkSession, spark_options: Options) -> None:
    def large(frame: DataFrame) -> None:
        # As a task says it that did not end its executor.
        raise RuntimeError("Job aborted: java.lang.OutOfMemoryError: Java heap space")

    sink = opened(spark_options, function=large)
    sink.write(batch_of({"n": 1}))
    with pytest.raises(FatalError, match="Java is out of memory") as caught:
        sink.answers()
    trio.run(sink.teardown)

    assert "spark.driver.memory" in str(caught.value.suggestion)


def test_any_format_can_be_appended_to(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    sink = opened(spark_options, format="json", options={"path": str(tmp_path / "out")})
    refused = delivered(sink, batch_of({"n": 1}, {"n": 2}))
    trio.run(sink.teardown)

    assert refused == {}
    lines = [line for file in sorted((tmp_path / "out").glob("*.json")) for line in file.read_text().splitlines()]
    assert sorted(lines) == ['{"n":1}', '{"n":2}']


def test_a_table_that_is_missing_is_reported_at_once(spark: SparkSession, spark_options: Options) -> None:
    sink = Sink(table="no_such_table", **spark_options).fresh()
    with pytest.raises(FatalError, match="no_such_table"):
        sink.open()
    trio.run(sink.teardown)


def test_a_format_that_does_not_exist_is_fatal(spark: SparkSession, spark_options: Options) -> None:
    sink = opened(spark_options, format="no_such_format")
    sink.write(batch_of({"n": 1}))
    with pytest.raises(FatalError, match="no_such_format"):
        sink.answers()
    trio.run(sink.teardown)


def test_options_name_one_target() -> None:
    assert "give one of `table`, `format` and `function`" in Sink().problems[0].message
    assert "give one of" in Sink(table="t", format="json").problems[0].message


async def test_a_forceful_end_cancels_the_job_that_runs(spark: SparkSession, spark_options: Options) -> None:
    def endless(frame: DataFrame) -> None:
        spark.range(0, 10**11, 1, 2).selectExpr("sum(hash(sha2(CAST(id AS STRING), 256)))").collect()

    sink = opened(spark_options, function=endless)
    sink.write(batch_of({"n": 1}))
    ended = trio.Event()

    async def answer() -> None:
        with pytest.raises(TransientError, match="was cancelled"):
            await trio.to_thread.run_sync(sink.answers)
        ended.set()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            await until(spark.sparkContext.statusTracker().getActiveJobsIds)
            await sink.teardown()
            await ended.wait()

    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
