"""Sources as a format of Spark's: every record a row, read by as many tasks as the source has parts."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conduit_py.spark import DataSource


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(DataSource)
    return spark


def test_a_file_is_read_as_a_table(tmp_path: Path, registered: SparkSession) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(500)) + "torn\n")

    frame = registered.read.format("conduit").options(connector="file", path=str(tmp_path / "in.jsonl"), format="json")
    rows = frame.load().selectExpr("CAST(after AS STRING) AS text", "refused", "operation").collect()

    assert [json.loads(row.text) for row in rows[:-1]] == [{"n": n} for n in range(500)]
    assert {row.operation for row in rows} == {"create"}
    assert rows[-1].text == "torn"
    assert rows[-1].refused is not None
    assert all(row.refused is None for row in rows[:-1])


def test_an_async_source_that_cannot_be_split_is_one_partition(registered: SparkSession) -> None:
    frame = registered.read.format("conduit").options(connector="generator", count="3000", rate="1e6").load()

    keys = [bytes(row.key).decode() for row in frame.select("key").collect()]

    assert keys == [str(n) for n in range(3000)]


def test_what_is_wrong_is_reported_through_spark(tmp_path: Path, registered: SparkSession) -> None:
    reading = registered.read.format("conduit").options(connector="file", path=str(tmp_path / "missing"))

    with pytest.raises(PySparkException, match=r"paht: there is no such option \(did you mean 'path'\?\)"):
        registered.read.format("conduit").options(connector="file", paht="x").load()
    with pytest.raises(PySparkException, match="leave the schema out, and take fields with from_json"):
        reading.schema("n INT").load().count()
    with pytest.raises(PySparkException, match=r"there is no file .*missing") as missing:
        registered.read.format("conduit").options(connector="file", path=str(tmp_path / "missing")).load().count()
    assert "What to do: create it, correct the path" in str(missing.value)
