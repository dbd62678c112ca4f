"""One cluster and one Spark session for all tests of Spark, and what they read back with."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conduit_connectors.spark.options import SparkOptions
from conduit_connectors.spark.session import shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark_options(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[dict[str, Any]]:
    """The options with which every connector under test shares one session on the cluster."""
    temporary = tmp_path_factory.getbasetemp()
    folder = (temporary if worker_id == "master" else temporary.parent) / "spark-cluster"
    with _cluster().shared_cluster(folder) as url:
        conf = {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / f"warehouse-{worker_id}"),
        }
        yield {"master": url, "conf": conf}


@pytest.fixture(scope="session")
def spark(spark_options: dict[str, Any]) -> Iterator["SparkSession"]:
    """The session itself, held so that it outlives each test."""
    session = shared.acquire(SparkOptions(**spark_options))
    yield session
    shared.release()


def _cluster() -> Any:
    """The module beside this one: tests are no package, so it cannot be imported by name."""
    spec = importlib.util.spec_from_file_location("spark_cluster", Path(__file__).with_name("cluster.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
