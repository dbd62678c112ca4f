"""Pipelines on a real YARN: they are exact and complete there, whatever dies, and what is wrong with it is reported.

It starts a ResourceManager, a NodeManager and an application for each test, and fetches YARN's jars first, so it is not
part of `make test`: `make test-yarn` runs it.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from quick_java import QUICK_JAVA
from yarn_cluster import SPARK_JARS, YarnCluster, server_jars

from conduit_py.testing.server_process import end_with_parent

pytestmark = [
    pytest.mark.skipif("CONDUIT_YARN" not in os.environ, reason="starts a YARN of its own: `make test-yarn`"),
    pytest.mark.slow,
]

RECORDS = 20_000
RUN_SECONDS = 300
CONF = {
    # Else all jars of Spark are uploaded for each application.
    "spark.yarn.jars": f"local:{SPARK_JARS}/*",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.yarn.am.extraJavaOptions": QUICK_JAVA,
}
ENGINE = """
import os, signal

from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Source, Spark, processor


@processor
def doubled(record):
    number = record.payload["id"]
    if number % 101 == 7:
        raise ValueError("not wanted")
    if number == 5000 and FATAL:
        kill_executor_once()
    record.payload["double"] = number * 2
    record.payload["container"] = os.environ.get("CONTAINER_ID", "")
    record.payload["python"] = os.environ.get("PYTHON_OF", "")
    return None if number % 10 == 0 else record


def kill_executor_once():
    try:
        (FOLDER / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    # Above this worker is a daemon, and above that is Java.
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    [parent] = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
    os.kill(int(parent), signal.SIGKILL)


pipeline = Pipeline(
    "doubles",
    sources=[Source("in", file.Source(path=FOLDER / "in.jsonl", format="json"))],
    processors=[doubled],
    destinations=[Destination("out", file.Destination(path=FOLDER / "out.jsonl", format="json"))],
    dead_letters=DeadLetters(file.Destination(path=FOLDER / "dead.jsonl", format="json")),
    delivery="exactly_once",
    engine=Spark(master="yarn", conf=CONF, start_seconds=START_SECONDS),
)
"""
LAKE = """
from conduit_connectors import file, spark
from conduit_py import Destination, Pipeline, Source

lake = spark.Destination(path=str(FOLDER / "lake"), columns="id BIGINT", master="yarn", conf=CONF)
pipeline = Pipeline(
    "lake",
    sources=[Source("in", file.Source(path=FOLDER / "in.jsonl", format="json"))],
    destinations=[Destination("lake", lake)],
    delivery="exactly_once",
)
"""


class Job:
    """A folder with a pipeline, its input and its output, and a command that runs it in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "in.jsonl").open("w") as file:
            file.writelines(json.dumps({"id": number}) + "\n" for number in range(RECORDS))

    def run(
        self, hadoop: Path, *, pipeline: str = ENGINE, fatal: bool = False, seconds: float = 240,
        conf: dict[str, str] | None = None, **environment: str,
    ) -> tuple[int, str]:  # fmt: skip
        """The exit code and what was said."""
        settings = CONF | {"spark.yarn.stagingDir": (self.folder / "staging").as_uri()} | (conf or {})
        head = [
            "from pathlib import Path",
            f"FOLDER = Path({str(self.folder)!r})",
            f"CONF = {settings!r}",
            f"FATAL = {fatal}",
            f"START_SECONDS = {seconds}",
        ]
        (self.folder / "job.py").write_text("\n".join(head) + pipeline)
        ran = subprocess.run(
            [sys.executable, "-m", "conduit_py.cli.main", "run", "job.py"],
            cwd=self.folder,
            env=os.environ | {"HADOOP_CONF_DIR": str(hadoop), "SPARK_LOCAL_IP": "127.0.0.1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
            preexec_fn=end_with_parent(),
        )
        return ran.returncode, ran.stdout

    def delivered(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]

    def refused(self) -> list[int]:
        letters = [json.loads(line) for line in (self.folder / "dead.jsonl").read_text().splitlines()]
        return [letter["record"]["payload"]["after"]["id"] for letter in letters]

    def assert_exact(self) -> None:
        """Every record is there once, in the order of the input, and those that were refused are dead letters."""
        wanted = [number for number in range(RECORDS) if number % 10 != 0 and number % 101 != 7]
        assert [(row["id"], row["double"]) for row in self.delivered()] == [(each, each * 2) for each in wanted]
        assert self.refused() == [number for number in range(RECORDS) if number % 101 == 7]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[YarnCluster]:
    with YarnCluster(tmp_path_factory.mktemp("yarn"), server_jars(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_file_goes_through_containers_of_yarn_exactly_once(yarn: YarnCluster, job: Job) -> None:
    code, said = job.run(yarn.conf)

    assert code == 0, said + yarn.logs()
    job.assert_exact()
    application = yarn.applications()[-1]
    assert application["finalStatus"] == "SUCCEEDED"
    containers = {row["container"] for row in job.delivered()}
    of_application = application["id"].removeprefix("application_")
    assert all(each.startswith("container_") and of_application in each for each in containers)


def test_an_executor_that_dies_is_replaced_and_nothing_is_doubled(yarn: YarnCluster, job: Job) -> None:
    code, said = job.run(yarn.conf, fatal=True, conf={"spark.executor.instances": "1"})

    assert code == 0, said + yarn.logs()
    job.assert_exact()
    assert (job.folder / "killed").exists()
    # The first container is Spark's own, the second was the executor that died.
    assert {row["container"].rpartition("_")[2] for row in job.delivered()} == {"000003"}


@pytest.mark.parametrize("moment", ["transaction.before_commit", "transaction.after_commit"])
def test_a_driver_that_was_killed_is_followed_by_one_that_goes_on(yarn: YarnCluster, job: Job, moment: str) -> None:
    code, said = job.run(yarn.conf, CONDUIT_KILL_AT=moment)
    assert code == -signal.SIGKILL, said + yarn.logs()

    code, said = job.run(yarn.conf)

    assert code == 0, said + yarn.logs()
    job.assert_exact()


def test_files_are_written_by_containers_of_yarn(yarn: YarnCluster, job: Job) -> None:
    code, said = job.run(yarn.conf, pipeline=LAKE)

    assert code == 0, said + yarn.logs()
    rows = [number for path in (job.folder / "lake").glob("batch=*/*.parquet") for number in ids(path)]
    assert sorted(rows) == list(range(RECORDS))
    assert yarn.applications()[-1]["finalStatus"] == "SUCCEEDED"


def test_executors_run_the_python_of_an_archive(yarn: YarnCluster, job: Job) -> None:
    """As where nothing is installed on the nodes; here what is packed only leads to the Python of this machine."""
    python = job.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHON_OF=archive exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(job.folder / "packed.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    python.unlink()

    code, said = job.run(
        yarn.conf,
        conf={"spark.archives": f"{job.folder}/packed.tar.gz#environment"},
        PYSPARK_PYTHON="./environment/bin/python",
    )

    assert code == 0, said + yarn.logs()
    job.assert_exact()
    assert {row["python"] for row in job.delivered()} == {"archive"}


def test_without_room_the_application_is_taken_back_and_that_is_reported(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, job: Job
) -> None:
    with YarnCluster(tmp_path_factory.mktemp("no-node"), server_jars(pytestconfig), node=False) as empty:
        code, said = job.run(empty.conf, seconds=3)

        assert code == 1
        assert "YARN did not run the application within 3 s" in said
        assert [each["state"] for each in empty.applications()] == ["KILLED"]


def ids(path: Path) -> list[int]:
    numbers: list[int] = pq.ParquetFile(path).read()["id"].to_pylist()
    return numbers
