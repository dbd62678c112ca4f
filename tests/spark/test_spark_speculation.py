"""A speculative copy: Spark runs a slow task a second time, and both attempts stage the same part."""

import json
import os
from pathlib import Path

from spark_cluster import SMALL_CONF, SparkCluster
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

COUNT = 1000
FILE = """
import os, time
from pathlib import Path
from conduit_connectors import file, objects
from conduit_py import Destination, Pipeline, Source, Spark
from conduit_py.sdk import PartId

HERE = Path({folder!r})

class Slow(objects.Destination):
    def open_part(self, grant, part):
        self.number = part.number
        super().open_part(grant, part)

    def prepared(self):
        manifest = super().prepared()
        if self.number == 1:
            is_first = not list(HERE.glob("attempt-*"))
            (HERE / f"attempt-{{os.getpid()}}").touch()
            # It hangs when its file is complete, until Spark ends its process.
            while is_first:
                time.sleep(0.05)
        return manifest

pipeline = Pipeline(
    "speculative",
    sources=[Source("in", file.Source(path=HERE / "in.jsonl", format="json"))],
    processors=[],
    destinations=[Destination("out", Slow(url=str(HERE / "out")))],
    delivery="exactly_once",
    engine=Spark(master={master!r}, conf={conf!r}, start_seconds=300),
)
"""
CONF = SMALL_CONF | {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
}


def test_of_two_attempts_that_staged_one_is_committed_and_nothing_of_the_other_is_left(tmp_path: Path) -> None:
    rows = ({"n": n, "long": "x" * 9000} for n in range(COUNT))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with SparkCluster(tmp_path / "cluster", workers=1, cores=1, memory="1g") as cluster:
        # Spark puts no copy of a task on the machine that has it already.
        cluster.start_worker("127.0.0.2")
        file = tmp_path / "speculative.py"
        file.write_text(FILE.format(folder=str(tmp_path), master=cluster.url, conf=CONF))
        command: list[str | Path] = [COMMAND, "run", file, "--state", tmp_path / "state"]
        ended = run_warm(command, env=os.environ, preloaded=DRIVER_MODULES)

    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("attempt-*"))) == 2
    files = sorted((tmp_path / "out").glob("part-*"))
    assert len(files) == 2
    assert [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()] == list(range(COUNT))
    assert list((tmp_path / "out").glob("_conduit/*/*")) == []
