"""A Java that is too small for a batch is reported, nothing of it is acked, and a larger one goes on."""

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

PIPELINE = """
import os
from pathlib import Path
from conduit_connectors import memory, spark
from conduit_py import Destination, Pipeline, Source

lake = spark.Destination(
    path=str(Path("lake").absolute()), columns="n INT, text STRING", rows_max=10**9, bytes_max=1 << 40, delay_seconds=1,
    master="local[1]",
    conf={
        "spark.driver.memory": os.environ["HEAP"], "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
        # Else Spark does not start with so little.
        "spark.testing.reservedMemory": "1",
    },
)
big = "x" * (4 << 20)
records = [{"n": n, "text": big} for n in range(30)]
pipeline = Pipeline(
    "big",
    sources=[Source("in", memory.Source(records=records))],
    destinations=[Destination("lake", lake)],
)
"""


@pytest.mark.slow
def test_a_batch_too_large_for_java_stops_the_run_and_a_larger_one_takes_it(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(PIPELINE)

    def run(heap: str) -> "subprocess.CompletedProcess[str]":
        command: list[str | Path] = [COMMAND, "run", "big.py", "--state", "state"]
        return run_warm(command, cwd=tmp_path, env=os.environ | {"HEAP": heap}, preloaded=DRIVER_MODULES)

    small = run("200m")
    between = list(tmp_path.glob("lake/batch=*"))
    large = run("2g")

    assert small.returncode == 1, small.stderr
    assert "Java is out of memory" in small.stderr
    assert "spark.driver.memory" in small.stderr
    assert between == []
    assert large.returncode == 0, large.stderr
    files = tmp_path.glob("lake/batch=*/*.parquet")
    assert sorted(n for file in files for n in pq.ParquetFile(file).read(["n"])["n"].to_pylist()) == list(range(30))
