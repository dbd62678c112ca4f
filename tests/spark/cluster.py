"""A real standalone Spark cluster on loopback: a master and two workers, processes of their own."""

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

# Only the first tier of compilation and the serial collector: these processes live for seconds.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
START_SECONDS = 180.0


class Cluster:
    """A master and its workers, started together and ended by their process ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for name in ("worker-1", "worker-2"):
            # Each offers two cores, so that two applications of two cores each can run side by side.
            options = ("--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--work-dir", str(folder / name))
            self._start(name, "org.apache.spark.deploy.worker.Worker", *options, self.url)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, program: str, *options: str) -> None:
        environment = os.environ | {
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(spark_class), program, *options, "--webui-port", "0"]
                if name == "master"
                else [str(spark_class), program, "--webui-port", "0", *options],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )

    def _said(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, log):
                return found.group(1)
            assert self.processes[name].poll() is None, f"{name} has ended by itself:\n{log}"
            time.sleep(0.05)
        raise AssertionError(f"{name} did not start:\n{log}")


@contextmanager
def shared_cluster(folder: Path) -> Iterator[str]:
    """The address of one cluster for all workers of pytest-xdist: the first starts it, and stops it when all left."""
    folder.mkdir(parents=True, exist_ok=True)
    url, users = folder / "url", folder / "users"
    cluster = None
    with _locked(folder):
        if not url.exists():
            cluster = Cluster(folder)
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
    deadline = time.monotonic() + 120
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


def _die_with_parent() -> None:
    """A test run that is killed must not leave Java processes behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
