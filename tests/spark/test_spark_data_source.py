"""Sources as a format of Spark's: every record a row, read by as many tasks as the source has parts."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conduit_py.errors import PipelineInvalid
from conduit_py.spark import DataSource
from conduit_py.spark.data_source import made


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


def test_wrong_options_are_all_told() -> None:
    with pytest.raises(PipelineInvalid) as unknown:
        made({"connector": "flie"})
    with pytest.raises(PipelineInvalid) as wrong:
        made({"connector": "file", "paht": "x"})

    assert [(each.path, each.message) for each in unknown.value.problems] == [
        ("connector", "there is no source plugin 'flie'")
    ]
    assert {each.path for each in wrong.value.problems} == {"path", "paht"}
