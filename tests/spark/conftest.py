"""One cluster and one Spark session for all tests of Spark, and what they read back with."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_world import PART_SIZE, TABLES, WAYS, Supervise, World
from quick_java import use_quick_java
from shared_cluster import shared_cluster
from spark_cluster import SMALL_CONF, SparkCluster
from waiting import until
from warm_workers import use_warm_workers

from conduit_py import pipeline as p
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions, shared
from conduit_py.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> None:
    """Most of these tests start Java, and Java starts Python."""
    use_quick_java()
    use_warm_workers()


@pytest.fixture(scope="session")
def spark_options(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, pytestconfig: pytest.Config
) -> Iterator[dict[str, Any]]:
    """The options with which every connector under test shares one session on the cluster."""
    temporary = tmp_path_factory.getbasetemp()
    folder = (temporary if worker_id == "master" else temporary.parent) / "spark-cluster"
    with shared_cluster(folder) as url:
        conf = {
            **SMALL_CONF,
            # Derby, which comes with Spark, would leave its log in the working directory.
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder}/derby.log",
            "spark.sql.shuffle.partitions": "2",
            "spark.jars": str(_postgres_driver(pytestconfig)),
            "spark.sql.warehouse.dir": str(folder / f"warehouse-{worker_id}"),
        }
        # On a machine that does much else at the same time, executors take minutes to start.
        yield {"master": url, "conf": conf, "start_seconds": 300}


@pytest.fixture(scope="session")
def second_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("second-cluster"), cores=2, memory="2g") as cluster:
        yield cluster


@pytest.fixture
def mortal_cluster(second_cluster: SparkCluster) -> SparkCluster:
    """A cluster whose workers and executors a test may kill. Who kills a worker starts another."""
    # Those of a test before would be killed in the place of its own.
    trio.run(until, lambda: not second_cluster.executors())
    return second_cluster


@pytest.fixture(scope="session")
def spark(spark_options: dict[str, Any]) -> Iterator["SparkSession"]:
    """The session itself, held so that it outlives each test."""
    session = shared.acquire(SparkOptions(**spark_options))
    yield session
    shared.release()


@pytest.fixture(scope="session")
def on_spark(spark: "SparkSession", spark_options: dict[str, Any]) -> Supervise:
    """Runs pipelines on the session of all tests, in small parts."""

    def supervised(pipeline: p.Pipeline, store: Store) -> Supervisor:
        return SparkSupervisor(pipeline, store, spark=SparkOptions(**spark_options), part_size=PART_SIZE)

    return supervised


@pytest.fixture(params=WAYS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each way to run a pipeline: what a test says of it is promised of all of them."""
    supervise = Supervisor if request.param == "trio" else request.getfixturevalue("on_spark")
    database = request.getfixturevalue("postgres") if request.param == TABLES else ""
    return World(request.param, tmp_path, supervise, database)


@pytest.fixture
def worlds(tmp_path: Path, on_spark: Supervise, postgres: str) -> list[World]:
    """All ways side by side, each with a folder of its own: for what must be the same in every one of them."""
    made = []
    for way in (*WAYS, TABLES):
        (tmp_path / way).mkdir()
        made.append(World(way, tmp_path / way, Supervisor if way == "trio" else on_spark, postgres))
    return made


def _postgres_driver(config: pytest.Config) -> Path:
    """The jar of PostgreSQL's JDBC driver: the installed one, else that of Debian's package, unpacked."""
    installed = Path("/usr/share/java/postgresql.jar")
    if installed.exists():
        return installed
    assert config.cache is not None
    folder = Path(config.cache.mkdir("postgresql-jdbc"))
    with (folder / "lock").open("w") as lock:
        # Several workers of pytest-xdist share the folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        jar = folder / "usr/share/java/postgresql.jar"
        if not jar.exists():
            _unpack("libpostgresql-jdbc-java", folder)
    return jar


def _unpack(package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.fail("PostgreSQL's JDBC driver is needed as /usr/share/java/postgresql.jar")
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=100)
    subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True, capture_output=True, timeout=100)
    [archive] = folder.glob(f"{package}_*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder)], check=True, timeout=300)
    archive.unlink()
