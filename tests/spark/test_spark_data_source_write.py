"""Destinations as a format of Spark's: all rows of a job or none, whichever tasks fail, on a real cluster."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from conduit_py.spark import DataSource


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(DataSource)
    return spark


def read(spark: SparkSession, connector: str, **options: Any) -> DataFrame:
    return spark.read.format("conduit").options(connector=connector, **options).load()


def save(frame: DataFrame, connector: str, **options: Any) -> None:
    frame.write.format("conduit").options(connector=connector, **options).mode("append").save()


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_records_go_through_every_kind_of_destination_and_back(
    tmp_path: Path, registered: SparkSession, postgres: str
) -> None:
    file, database, journal, back = (str(tmp_path / name) for name in ("in.jsonl", "out.db", "journal", "back.jsonl"))
    frame = registered.range(3000).selectExpr("id AS n", "concat('x', id) AS name").repartition(3).sort("n")

    save(frame, "file", path=file, format="json")
    save(read(registered, "file", path=file, format="json"), "sqlite", path=database, table="numbers")
    save(read(registered, "sqlite", path=database, table="numbers"), "journal", path=journal)
    save(read(registered, "journal", path=journal), "postgres", url=postgres, table="numbers")
    save(read(registered, "journal", path=journal), "file", path=back, format="json")

    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "in.jsonl").read_bytes()
    assert numbers(tmp_path / "back.jsonl") == list(range(3000))
    with psycopg.connect(postgres) as connection:
        [row] = connection.execute("SELECT count(*), sum(n), max(name) FROM numbers").fetchall()
    assert row == (3000, sum(range(3000)), "x999")


def test_a_key_makes_rows_that_come_again_replace_those_before(tmp_path: Path, registered: SparkSession) -> None:
    options = {"path": str(tmp_path / "out.db"), "table": "numbers", "mode": "upsert", "key_columns": "n"}
    for factor in (1, 10):
        save(registered.range(5).selectExpr("id AS n", f"id * {factor} AS value"), "sqlite", **options)

    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert connection.execute("SELECT n, value FROM numbers ORDER BY n").fetchall() == [
            (n, 10 * n) for n in range(5)
        ]


def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(tmp_path: Path, registered: SparkSession) -> None:
    def failing_once(n: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if n == 990 and context.attemptNumber() == 0:
            raise ValueError("the first attempt")
        return n

    frame = registered.range(0, 1000, 1, 2).select(udf(failing_once, "long", useArrow=False)("id").alias("n"))
    stage = tmp_path / "stage"

    save(frame, "file", path=str(tmp_path / "out.jsonl"), format="json", stage=str(stage))

    assert numbers(tmp_path / "out.jsonl") == list(range(1000))
    # What both attempts left there is gone.
    assert list(stage.iterdir()) == []


@pytest.mark.parametrize("where", ["on an executor", "by the destination"])
def test_a_row_that_is_refused_fails_the_job_and_nothing_is_written(
    where: str, tmp_path: Path, registered: SparkSession
) -> None:
    good = registered.range(0, 100, 1, 2)
    if where == "on an executor":
        frame = good.selectExpr("'create' AS operation", "IF(id = 99, '[]', to_json(struct(id AS n))) AS after")
        reason = r"row 49 of partition 1 is refused: after is JSON but not an object"
    else:
        frame = good.selectExpr("IF(id = 99, double('NaN'), id) AS n")
        reason = r"row 49 of partition 1 is refused: cannot be written as JSON: n is nan"

    with pytest.raises(PySparkException, match=reason):
        save(frame, "file", path=str(tmp_path / "out.jsonl"), format="json")

    assert not (tmp_path / "out.jsonl").exists() or numbers(tmp_path / "out.jsonl") == []


def test_tasks_write_by_themselves_when_at_least_once_is_enough(registered: SparkSession, postgres: str) -> None:
    frame = registered.range(0, 4000, 1, 4).selectExpr("id AS n")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (n BIGINT)")

        save(frame, "postgres", url=postgres, table="numbers", delivery="at_least_once")

        assert connection.execute("SELECT count(*), sum(n) FROM numbers").fetchall() == [(4000, sum(range(4000)))]
        # No checkpoint: nobody has published anything.
        assert connection.execute("SELECT to_regclass('conduit_checkpoint')").fetchall() == [(None,)]


def test_what_is_wrong_with_a_write_is_reported_through_spark(tmp_path: Path, registered: SparkSession) -> None:
    frame = registered.range(1)

    with pytest.raises(PySparkException, match=r"connector: there is no destination plugin 'postgre' \(did you mean"):
        save(frame, "postgre")
    with pytest.raises(PySparkException, match="key_columns: there is no column 'key'"):
        save(frame, "file", path=str(tmp_path / "out"), key_columns="key")
    with pytest.raises(PySparkException, match="not overwritten"):
        frame.write.format("conduit").options(connector="file", path=str(tmp_path / "out")).mode("overwrite").save()
