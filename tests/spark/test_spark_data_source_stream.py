"""Streams from sources and into destinations: from checkpoint to checkpoint every record arrives once."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from warm_python import WarmPython
from warm_workers import DRIVER_MODULES

from conduit_py.spark import DataSource

Options = dict[str, Any]

START_SECONDS = 300
"""On a machine that does much else at the same time a driver and its executors take minutes to start."""


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(DataSource)
    return spark


def append(path: Path, start: int, stop: int) -> None:
    with path.open("a") as stream:
        stream.writelines(json.dumps({"n": number}) + "\n" for number in range(start, stop))


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def stream(spark: SparkSession, source: Options, destination: Options, checkpoint: Path) -> list[int]:
    """Everything that is there now; how many rows each batch had."""
    frame = spark.readStream.format("conduit").options(**source).load()
    return run(frame.writeStream.format("conduit").options(**destination, checkpointLocation=str(checkpoint)))


def run(writing: DataStreamWriter) -> list[int]:
    """Run a query to its end, again while its Python came too late for Spark, which waits only ten seconds for it."""
    rows: list[int] = []
    while True:
        query = writing.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        rows += [progress.numInputRows for progress in query.recentProgress]
        if query.exception() is None:
            return rows


def test_executors_read_the_parts_of_a_file_into_a_table(tmp_path: Path, registered: SparkSession) -> None:
    append(tmp_path / "in.jsonl", 0, 20_000)
    source = {"connector": "file", "path": tmp_path / "in.jsonl", "format": "json", "bytes_per_batch": 130_000}
    destination = {"connector": "sqlite", "path": tmp_path / "out.db", "table": "numbers"}

    first = stream(registered, source, destination, tmp_path / "checkpoint")
    append(tmp_path / "in.jsonl", 20_000, 20_100)
    second = stream(registered, source, destination, tmp_path / "checkpoint")

    assert len(first) > 1
    assert (sum(first), second) == (20_000, [100])
    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert [n for (n,) in connection.execute("SELECT n FROM numbers")] == list(range(20_100))


def test_the_driver_reads_a_journal_into_a_file(tmp_path: Path, registered: SparkSession) -> None:
    journal: Options = {"connector": "journal", "path": tmp_path / "journal"}
    writing = registered.range(2500).coalesce(1).selectExpr("id AS n").write.format("conduit")
    writing.options(**journal).mode("append").save()
    destination = {"connector": "file", "path": tmp_path / "out.jsonl", "format": "json", "stage": tmp_path / "stage"}

    batches = stream(registered, journal | {"rows_per_batch": 1000}, destination, tmp_path / "checkpoint")
    again = stream(registered, journal | {"rows_per_batch": 1000}, destination, tmp_path / "checkpoint")

    assert (batches, sum(again)) == ([1000, 1000, 500], 0)
    assert numbers(tmp_path / "out.jsonl") == list(range(2500))
    assert [list(query.iterdir()) for query in (tmp_path / "stage").iterdir()] == [[]]


def test_what_is_wrong_with_a_stream_is_reported_through_spark(tmp_path: Path, registered: SparkSession) -> None:
    reading = registered.readStream.format("conduit").options(connector="stdio").load()

    with pytest.raises(StreamingQueryException, match="'stdio' cannot go on from a checkpoint"):
        run(reading.writeStream.format("noop"))


DRIVER = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from conduit_py.spark import DataSource

master, folder, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
# The driver has what is there, and so has its Java; executors have not.
sys.path.insert(0, str(folder / "site"))
os.environ["PYTHONPATH"] = str(folder / "site")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
building = SparkSession.builder.master(master).appName("killed").config("spark.task.maxFailures", "1")
for each in sys.argv[4:]:
    building = building.config(*each.split("=", 1))
spark = building.getOrCreate()
spark.sparkContext.setLogLevel("FATAL")
spark.dataSource.register(DataSource)
if how == "once":
    try:
        spark.read.format("conduit").option("connector", "elsewhere").load().count()
    except Exception as error:
        (folder / "error").write_text(str(error))
source = {"connector": "file", "path": folder / "in.jsonl", "format": "json", "tail": True}
# A batch that is run again has as many rows as before, whatever the limit is by then.
source["rows_per_batch"] = 20_000 if how == "once" else 300
destination = {"connector": "file", "path": folder / "out.jsonl", "format": "json"}
writing = spark.readStream.format("conduit").options(**source).load().writeStream.format("conduit")
writing = writing.options(**destination, checkpointLocation=str(folder / "checkpoint"))
query = (writing.trigger(availableNow=True) if how == "once" else writing).start()
query.awaitTermination()
"""

ELSEWHERE = "[conduit_py.sources]\nelsewhere = elsewhere:Source\n"
"""A connector that only the driver has."""


def driver(folder: Path, how: str, spark_options: Options) -> "subprocess.Popen[bytes]":
    plugin = folder / "site"
    (plugin / "elsewhere-1.dist-info").mkdir(parents=True, exist_ok=True)
    (plugin / "elsewhere-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (plugin / "elsewhere-1.dist-info" / "entry_points.txt").write_text(ELSEWHERE)
    (plugin / "elsewhere.py").write_text("from conduit_connectors.stdio import Source\n")
    # One executor is enough.
    conf = [f"{name}={value}" for name, value in (spark_options["conf"] | {"spark.cores.max": "1"}).items()]
    command = [sys.executable, "-c", DRIVER, spark_options["master"], str(folder), how, *conf]
    with (folder / f"{how}.log").open("wb") as log:
        return WarmPython(
            command,
            preloaded=DRIVER_MODULES,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.mark.timeout(3 * START_SECONDS)
def test_a_driver_that_is_killed_loses_and_repeats_nothing(tmp_path: Path, spark_options: Options) -> None:
    append(tmp_path / "in.jsonl", 0, 30_000)
    out = tmp_path / "out.jsonl"
    first = driver(tmp_path, "on and on", spark_options)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not out.exists() or len(numbers(out)) < 900:
            assert first.poll() is None, (tmp_path / "on and on.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "on and on.log").read_text()
            time.sleep(0.02)
    finally:
        # The group: the driver, its Java, and the Python processes that it has started.
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    written = len(numbers(out))
    assert 900 <= written < 30_000

    second = driver(tmp_path, "once", spark_options)
    try:
        assert second.wait(START_SECONDS) == 0, (tmp_path / "once.log").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(second.pid, signal.SIGKILL)
        second.wait()

    assert numbers(out) == list(range(30_000))
    error = (tmp_path / "error").read_text()
    assert "the connector cannot be built on executor" in error
    assert "there is no source plugin 'elsewhere'" in error
    assert "What to do: install there what is installed on the driver" in error
