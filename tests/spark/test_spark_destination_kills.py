"""Executors and a worker are killed under the connectors, and every record is there once all the same."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow.parquet as pq
import pytest
from spark_cluster import PEER_CONF, SparkCluster
from warm_python import COMMAND, WarmPython
from warm_workers import DRIVER_MODULES

RECORDS = 3000
SECONDS_MAX = 900.0

PIPELINE = """
import json, os, signal
from pathlib import Path
from conduit_connectors import spark
from conduit_py import Destination, Pipeline, Source, TransactionLimits

folder = Path(os.environ["FOLDER"])
at = dict(master=os.environ["MASTER"], start_seconds=200, conf={
    "spark.cores.max": "2", "spark.executor.cores": "1", "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.jars": os.environ["JAR"],
    **json.loads(os.environ["PEER_CONF"]),
})

def numbers(session):
    marker = str(folder / "executor-killed")

    def fatal(batches):
        for batch in batches:
            yield batch
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            # The parent of a Python worker is a daemon, whose parent is the executor.
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    return session.range(0, RECORDS, 1, 4).withColumnRenamed("id", "n").mapInArrow(fatal, "n BIGINT")

files = spark.Destination(path=str(folder / "lake"), columns="n BIGINT", **at)
table = spark.Jdbc(url=os.environ["URL"], table="numbers", options={"user": os.environ["DATABASE_USER"]}, **at)
pipeline = Pipeline(
    "killed",
    sources=[Source("in", spark.Source(function=numbers, stage=folder / "stage", **at), batch_size=200)],
    destinations=[Destination("files", files), Destination("table", table)],
    delivery="exactly_once",
    transaction=TransactionLimits(max_records=400),
)
"""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_every_record_is_there_once(
    tmp_path: Path, postgres: str, spark_options: dict[str, Any], mortal_cluster: SparkCluster
) -> None:
    """An executor is killed by a task of the snapshot, a worker and another executor while batches are written."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (n BIGINT NOT NULL)")
    (tmp_path / "killed.py").write_text(PIPELINE.replace("RECORDS", str(RECORDS)))
    cluster = mortal_cluster
    process = _started(tmp_path, cluster.url, postgres, spark_options["conf"]["spark.jars"])
    try:
        _wait_for(process, lambda: _batches(tmp_path) >= 1)
        cluster.kill_worker(next(iter(cluster.workers)))
        cluster.start_worker()
        _wait_for(process, lambda: _batches(tmp_path) >= 3 and bool(cluster.executors()))
        os.kill(cluster.executors()[0].pid, signal.SIGKILL)
        batches = _batches(tmp_path)
        _, said = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0, said.decode()
    assert (tmp_path / "executor-killed").exists()
    assert batches < RECORDS / 400, "everything was written before the last kill"
    files = sorted((tmp_path / "lake").glob("batch=*/*.parquet"))
    assert sorted(n for file in files for n in pq.ParquetFile(file).read()["n"].to_pylist()) == list(range(RECORDS))
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT n FROM numbers ORDER BY n").fetchall() == [(n,) for n in range(RECORDS)]


def _started(folder: Path, master: str, postgres: str, driver: str) -> "subprocess.Popen[bytes]":
    at = urlsplit(postgres)
    url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}"
    environment = {"FOLDER": str(folder), "MASTER": master, "URL": url, "JAR": driver}
    environment["PEER_CONF"] = json.dumps(PEER_CONF)
    return WarmPython(
        [COMMAND, "run", "killed.py", "--state", folder / "state"],
        preloaded=DRIVER_MODULES,
        cwd=folder,
        env=os.environ | environment | {"DATABASE_USER": str(at.username)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _batches(folder: Path) -> int:
    return len(list((folder / "lake").glob("batch=*")))


def _wait_for(process: "subprocess.Popen[bytes]", happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "nothing more was written"
        time.sleep(0.05)
