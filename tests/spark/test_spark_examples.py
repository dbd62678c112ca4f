"""The examples on the pages of Spark's connectors run, on the session of all tests."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from connector_examples import load_example
from postgres_changes import run_sql

import conduit_py

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples name files in the folder in which they run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def run(name: str, folder: Path, replaced: dict[str, str], **names: Any) -> None:
    [pipeline] = load_example(name, folder, replaced, **names)
    outcome = await conduit_py.run_async(pipeline, state=folder / "state")
    assert outcome.error is None, outcome


async def test_spark(folder: Path, spark: "SparkSession", spark_options: dict[str, Any]) -> None:
    replaced = {
        'stage="stage"': 'stage=f"{here}/stage", **spark_options',
        'path="lake/orders"': 'path=f"{here}/lake/orders", **spark_options',
    }
    await run("spark", folder, replaced, here=folder, spark_options=spark_options)

    assert spark.read.parquet(f"{folder}/lake/orders").count() == 100


async def test_jdbc(folder: Path, postgres: str, spark_options: dict[str, Any]) -> None:
    run_sql(postgres, "CREATE TABLE orders (id bigint, amount double precision)")
    at = urlsplit(postgres)
    url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}?user={at.username}"
    replaced = {
        '"jdbc:postgresql://localhost/shop?user=conduit"': "url",
        'table="orders"': 'table="orders", **spark_options',
    }
    await run("spark_jdbc", folder, replaced, url=url, spark_options=spark_options)

    assert run_sql(postgres, "SELECT count(*) FROM orders") == [(100,)]


async def test_sink(folder: Path, spark: "SparkSession", spark_options: dict[str, Any]) -> None:
    spark.sql("CREATE TABLE orders_of_the_page (id BIGINT, amount DOUBLE) USING parquet")
    replaced = {'table="orders"': 'table="orders_of_the_page", **spark_options'}
    await run("spark_sink", folder, replaced, spark_options=spark_options)

    assert spark.table("orders_of_the_page").count() == 100
