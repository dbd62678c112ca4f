"""SparkCluster: a real standalone Spark on loopback, a master and its workers as processes of their own."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from process_tree import Process, processes

DEEP_STACK = "-Xss4m"
"""Without the later tiers of compilation, plans of Spark need a deeper stack."""
PEER_CONF = {"spark.authenticate": "true", "spark.authenticate.secret": "the secret that all nodes of the tests share"}
"""With which a driver may speak to the cluster."""
SMALL_CONF = {
    **PEER_CONF,
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For a driver on loopback, and executors that fit on a small machine."""
START_SECONDS = 180.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master at `url` and its workers, which end when this process does, however it ends.

    Workers and executors are distinguished by their process ids, so that one can be killed and no other.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 2, memory: str = "2g") -> None:
        """Each worker offers so many cores and so much memory to executors."""
        self.folder = folder
        self._worker_options = ("--cores", str(cores), "--memory", memory)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._workers_started = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "daemon.properties"
        # Not on the command lines of its processes, where every user of the machine could read it.
        self._properties.touch(mode=0o600)
        self._properties.write_text("".join(f"{name} {value}\n" for name, value in PEER_CONF.items()))
        self._start("master", "master.Master", "--port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for _ in range(workers):
            self.start_worker()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def workers(self) -> dict[str, int]:
        """The process ids of the workers that were not killed."""
        return {name: process.pid for name, process in self._processes.items() if name != "master"}

    def executors(self) -> list[Process]:
        """The executors of all workers, of whatever application."""
        return [each for each in processes(*self.workers.values()) if _EXECUTOR in each.command]

    def start_worker(self, host: str = "127.0.0.1") -> None:
        """Add a worker, with a name that none had before. Another address of loopback is another machine to Spark."""
        self._workers_started += 1
        name = f"worker-{self._workers_started}"
        options = (*self._worker_options, "--work-dir", str(self.folder / name), self.url)
        self._start(name, "worker.Worker", *options, host=host)

    def kill_worker(self, name: str) -> None:
        """End a worker as a crash does. Its executors notice and end by themselves."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, program: str, *options: str, host: str = "127.0.0.1") -> None:
        import pyspark

        environment = os.environ | {
            "SPARK_DAEMON_JAVA_OPTS": DEEP_STACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*command, "--properties-file", self._properties, "--host", host, "--webui-port", "0", *options],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )

    def _said(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, log):
                return found.group(1)
            assert self._processes[name].poll() is None, f"{name} has ended by itself:\n{log}"
            time.sleep(0.05)
        raise AssertionError(f"{name} did not start:\n{log}")


def die_with_parent() -> None:
    """A killed process must not leave Java processes behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
