"""One real standalone Spark cluster for all tests of a run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from spark_cluster import SparkCluster

from conduit_py.testing.server_process import share


def shared_cluster(folder: Path) -> AbstractContextManager[str]:
    """The address of one cluster for all workers of pytest-xdist: the first starts it, and stops it when all left."""
    return share(folder, partial(_start, folder))


@contextmanager
def _start(folder: Path) -> Iterator[str]:
    # Two cores each, so that two applications of two cores each can run side by side.
    cluster = SparkCluster(folder, cores=2)
    try:
        yield cluster.url
    finally:
        cluster.stop()
