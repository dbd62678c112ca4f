"""The examples on the pages of Spark's connectors run, on the session of all tests."""

import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from connector_examples import load_example
from postgres_changes import run_sql

import conduit_py
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

EXAMPLES = Path(__file__).parents[2] / "examples"

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


async def test_the_demo_of_parallel_writes_has_files_of_executors(
    folder: Path, spark: "SparkSession", spark_options: dict[str, Any]
) -> None:
    text = (EXAMPLES / "demo" / "parallel.py").read_text()
    assert "count=300_000" in text
    (folder / "parallel.py").write_text(text.replace("count=300_000", "count=20_000"))
    pipeline = runpy.run_path(str(folder / "parallel.py"))["pipeline"]
    options = SparkOptions(**spark_options)
    supervisor = SparkSupervisor(pipeline, MemoryStore(), spark=options, part_size=256 * 1024)
    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    written = [pq.ParquetFile(path).read() for path in sorted((folder / "orders").glob("part-*.parquet"))]
    assert sum(len(each) for each in written) == 20_000
    assert len(written) > 1
    # Each file is of one process, and none of them is the driver.
    processes = [set(each.column("process").to_pylist()) for each in written]
    assert all(len(each) == 1 and os.getpid() not in each for each in processes)
