"""One real standalone Spark cluster for all tests of a run."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_cluster import SparkCluster


@contextmanager
def shared_cluster(folder: Path) -> Iterator[str]:
    """The address of one cluster for all workers of pytest-xdist: the first starts it, and stops it when all left."""
    folder.mkdir(parents=True, exist_ok=True)
    url, users = folder / "url", folder / "users"
    cluster = None
    with _locked(folder):
        if not url.exists():
            # Two cores each, so that two applications of two cores each can run side by side.
            cluster = SparkCluster(folder, cores=2)
            url.write_text(cluster.url)
        users.write_text(str(int(users.read_text() if users.exists() else "0") + 1))
    try:
        yield url.read_text()
    finally:
        with _locked(folder):
            users.write_text(str(int(users.read_text()) - 1))
        if cluster is not None:
            _wait_for_the_others(folder, users)
            cluster.stop()


def _wait_for_the_others(folder: Path, users: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with _locked(folder):
            if int(users.read_text()) == 0:
                (folder / "url").unlink()
                return
        time.sleep(0.2)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
