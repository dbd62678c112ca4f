"""The demo on a Spark cluster of this machine: start a master and two workers, run the same file there, stop them.

A second pipeline, parallel.py, shows that executors write side by side, which needs a Spark that asks for a secret.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

HERE = Path(__file__).parent
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / ".demo-spark"
COMMAND = str(Path(sys.executable).parent / "conduit-py")
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
START_SECONDS = 120.0


def main() -> int:
    logs = FOLDER / "cluster"
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_CONF_DIR"] = str(make_conf(FOLDER / "conf"))
    with ExitStack() as running:
        print("starting a Spark master and two workers, which takes some seconds", flush=True)
        start(running, logs / "master.log", "master.Master", "--port", "0")
        url = said(logs / "master.log", r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            start(running, logs / f"worker-{number}.log", "worker.Worker", "--cores", "1", "--memory", "1g", url)
        demo = [sys.executable, str(HERE / "run.py"), str(FOLDER / "demo"), "--engine", "spark", "--master", url]
        return subprocess.run(demo).returncode or write_side_by_side(url)


def make_conf(folder: Path) -> Path:
    """The settings of all processes of the cluster. Its secret is in a file that only this user can read."""
    folder.mkdir(exist_ok=True)
    file = folder / "spark-defaults.conf"
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(f"spark.authenticate true\nspark.authenticate.secret {secrets.token_urlsafe(32)}\n")
    return folder


def write_side_by_side(url: str) -> int:
    """Run the pipeline whose destination executors write, and show which process has written which file."""
    folder = FOLDER / "parallel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(HERE / "parallel.py", folder)
    options = ["parallel.py", "--engine", "spark", "--master", url]
    print("\n── Executors that write (conduit-py check, then run) ".ljust(100, "─"), flush=True)
    subprocess.run([COMMAND, "check", *options], cwd=folder, check=True)
    ran = subprocess.run([COMMAND, "run", *options], cwd=folder)
    for path in sorted((folder / "orders").glob("part-*.parquet")):
        written = pq.ParquetFile(path).read(["process"]).column("process")
        print(f"{path.name}: {len(written)} rows, written by process {' and '.join(map(str, written.unique()))}")
    return ran.returncode


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
