"""The demo on a Spark cluster of this machine: start a master and two workers, run the same file there, stop them."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyspark

HERE = Path(__file__).parent
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / ".demo-spark"
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
START_SECONDS = 120.0


def main() -> int:
    logs = FOLDER / "cluster"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        print("starting a Spark master and two workers, which takes some seconds", flush=True)
        start(running, logs / "master.log", "master.Master", "--port", "0")
        url = said(logs / "master.log", r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            start(running, logs / f"worker-{number}.log", "worker.Worker", "--cores", "1", "--memory", "1g", url)
        demo = [sys.executable, str(HERE / "run.py"), str(FOLDER / "demo"), "--engine", "spark", "--master", url]
        return subprocess.run(demo).returncode


def start(running: ExitStack, log: Path, program: str, *options: str) -> None:
    """A process of the cluster, which ends when this program does."""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(log.with_suffix("")),
    }
    command = [SPARK_CLASS, f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1", "--webui-port", "0", *options]
    process = subprocess.Popen(
        command, env=environment, stdout=running.enter_context(log.open("wb")), stderr=subprocess.STDOUT
    )
    running.callback(process.wait)
    running.callback(process.terminate)


def said(log: Path, pattern: str) -> str:
    """Wait until a process has written this."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found.group(1)
        time.sleep(0.1)
    raise SystemExit(f"Spark did not start; see {log}")


if __name__ == "__main__":
    sys.exit(main())
