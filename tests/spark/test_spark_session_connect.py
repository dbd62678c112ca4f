"""With Spark Connect: what works through a real server does, and what cannot is refused before anything is written."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from conduit_connectors.spark import Jdbc, Source
from spark_cluster import DEEP_STACK
from warm_python import run_warm
from warm_workers import DRIVER_MODULES

from conduit_py.errors import TransientError

START_SECONDS = 180.0

PROGRAM = """
import json, sys, trio
from pathlib import Path
from conduit_connectors import memory, spark
from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_py.errors import ConduitError
from conduit_py.sdk import NothingYet
from conduit_py.testing import run_to_end

folder, at = Path(sys.argv[1]), {"remote": sys.argv[2]}
numbers = [{"n": n} if n % 100 else {"n": "none"} for n in range(1, 1001)]
said = {}

def run(name, source, destination, delivery="at_least_once"):
    out = [Destination("out", destination)]
    pipeline = Pipeline(name, sources=[Source("in", source)], destinations=out,
                        dead_letters=DeadLetters("drop"), delivery=delivery)
    outcome = trio.run(run_to_end, pipeline)
    said[name] = [outcome.status.value, outcome.progress.dead_letters, str(outcome.error)]

def lake(name, **more):
    return spark.Destination(path=str(folder / name), columns="n INT", delay_seconds=0.1, **more, **at)

run("files", memory.Source(records=numbers), lake("files"))
run("once", memory.Source(records=numbers), lake("once", rows_max=400), "exactly_once")
sink = spark.Sink(format="parquet", options={"path": str(folder / "sink")}, columns="n INT", delay_seconds=0.1, **at)
run("sink", memory.Source(records=numbers), sink)

got = []
query = "SELECT id AS n, TIMESTAMP'2026-01-01 00:00:00' AS at FROM range(1000)"
run("snapshot", spark.Source(query=query, stage=folder / "stage", **at), memory.Destination(into=got))
said["snapshot rows"] = [sorted(record.payload["n"] for record in got), str(got[0].payload["at"])]

source = spark.Source(mode="incremental", column="n", format="parquet", path=str(folder / "sink"), **at).fresh()
source.open(None)
first = source.read(700)
trio.run(source.teardown)
source = source.fresh()
source.open(first[-1].position)
rest = source.read(700)
try:
    source.read(1)
except NothingYet:
    said["incremental rows"] = [record.payload["n"] for record in first + rest]
trio.run(source.teardown)

for name, connector in {
    "elsewhere": spark.Destination(path="s3a://bucket/lake", **at),
    "no query": spark.Source(query="SELEKT", stage=folder / "stage", **at),
    "no table": spark.Sink(table="no_such_table", **at),
}.items():
    connector = connector.fresh()
    try:
        connector.open(*([None] if isinstance(connector, spark.Source) else []))
    except ConduitError as error:
        said[name] = [type(error).__name__, error.message]
    trio.run(connector.teardown)

print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server of our own, from the wheel."""
    folder = tmp_path_factory.mktemp("connect")
    options = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": DEEP_STACK,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(submit), *program, "--master", "local[2]", *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
    try:
        yield f"sc://127.0.0.1:{_port(process, folder / 'log')}"
    finally:
        process.kill()
        process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if found := re.search(r"SparkConnectService' on port (\d+)", text):
            return found.group(1)
        assert process.poll() is None, f"the server has ended by itself:\n{text}"
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{text}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def said(server: str, folder: Path) -> dict[str, Any]:
    """What a client says, in a process of its own: one that has a driver cannot have a server too."""
    command = [sys.executable, "-c", PROGRAM, str(folder), server]
    ran = run_warm(command, timeout=START_SECONDS, preloaded=DRIVER_MODULES)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


EXPECTED = [n for n in range(1, 1001) if n % 100]


@pytest.mark.parametrize("name", ["files", "once", "sink"])
def test_records_are_written_through_a_server(name: str, said: dict[str, Any], folder: Path) -> None:
    assert said[name] == ["completed", 10, "None"]
    files = (folder / name).glob("*.parquet" if name == "sink" else "batch=*/*.parquet")
    assert sorted(n for file in files for n in pq.ParquetFile(file).read()["n"].to_pylist()) == EXPECTED


def test_a_snapshot_is_taken_by_a_server(said: dict[str, Any]) -> None:
    assert said["snapshot"] == ["completed", 0, "None"]
    # Times are those of UTC, whatever the time zone of the server's session.
    assert said["snapshot rows"] == [list(range(1000)), "2026-01-01 00:00:00+00:00"]


def test_a_table_is_read_in_order_through_a_server(said: dict[str, Any]) -> None:
    assert said["incremental rows"] == EXPECTED


def test_what_is_wrong_is_reported_by_a_server_too(said: dict[str, Any]) -> None:
    assert said["elsewhere"][0] == "FatalError"
    assert "s3a://bucket/lake cannot be reached through Spark Connect" in said["elsewhere"][1]
    assert said["no query"][0] == "FatalError"
    assert "SELEKT" in said["no query"][1]
    assert said["no table"][0] == "FatalError"
    assert "no_such_table" in said["no table"][1]


def test_what_needs_a_driver_is_refused_before_it_runs() -> None:
    remote = "sc://127.0.0.1:15002"
    stream = Source(mode="stream", format="rate", stage="x", remote=remote)
    table = Jdbc(url="jdbc:postgresql://x/y", table="t", remote=remote)

    for connector in (stream, table):
        assert ["needs a Spark driver in this process" in problem.message for problem in connector.problems] == [True]


def test_a_server_that_does_not_answer_is_reported_at_once() -> None:
    program = """
import sys
from conduit_connectors.spark import Sink
try:
    Sink(format="noop", remote=sys.argv[1]).fresh().open()
except Exception as error:
    print(type(error).__name__, error)
"""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"sc://127.0.0.1:{bound.getsockname()[1]}"
        ran = run_warm([sys.executable, "-c", program, address], preloaded=DRIVER_MODULES)

    name = TransientError.__name__
    assert ran.stdout == f"{name} no Spark Connect server answers at {address}: Connection refused\n", ran.stderr
