"""Pipelines with Spark at their ends: nothing lost, nothing twice, whatever is killed."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import memory
from conduit_connectors.spark import Destination, Sink, Source
from pyspark.sql import DataFrame, SparkSession
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

from conduit_py import pipeline as p
from conduit_py.config.python_file import load_pipelines
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.store import open_store
from conduit_py.testing import run_to_end

Options = dict[str, Any]
CAPTURED: Any = {"capture_stdout": True, "capture_stderr": True}

DOUBLING = """
from conduit_connectors import file, spark
from conduit_py import DeadLetters, Destination, Pipeline, Source, processor
from conduit_py.pipeline_settings import TransactionLimits

FOLDER, DELIVERY, OPTIONS = {folder!r}, {delivery!r}, {options!r}

@processor
def doubled(record):
    record.payload["double"] = 2 * record.payload["n"]
    return record

lake = spark.Destination(
    path=f"{{FOLDER}}/out", columns="n BIGINT, double BIGINT", rows_max=200, delay_seconds=1, **OPTIONS
)
pipeline = Pipeline(
    "numbers",
    sources=[Source("in", file.Source(path=f"{{FOLDER}}/in.jsonl", format="json"), window=400)],
    processors=[doubled],
    destinations=[Destination("out", lake)],
    dead_letters=DeadLetters(file.Destination(path=f"{{FOLDER}}/dead.jsonl")),
    delivery=DELIVERY,
    transaction=TransactionLimits(max_records=300) if DELIVERY == "exactly_once" else None,
)
"""


def stored(path: Path) -> list[dict[str, Any]]:
    """What a plain reader sees."""
    return [row for file in sorted(path.glob("batch=*/*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


async def test_rows_go_from_spark_to_spark_and_bad_ones_are_dead_letters(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    letters: list[Record] = []
    query = "SELECT id AS n, IF(id % 100 = 7, 'x', NULL) AS extra FROM range(0, 3000, 1, 2)"

    def without_nulls(record: Record) -> Record:
        record.payload.after = {name: value for name, value in record.payload.after.items() if value is not None}  # type: ignore[union-attr]
        return record

    pipeline = p.Pipeline(
        "copy",
        sources=[p.Source("in", Source(query=query, stage=tmp_path / "stage", **spark_options))],
        processors=[without_nulls],
        destinations=[
            p.Destination(
                "out", Destination(path=str(tmp_path / "out"), columns="n BIGINT", delay_seconds=1, **spark_options)
            )
        ],
        dead_letters=p.DeadLetters(memory.Destination(into=letters)),
    )

    outcome = await run_to_end(pipeline)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert sorted(row["n"] for row in stored(tmp_path / "out")) == [n for n in range(3000) if n % 100 != 7]
    assert len(letters) == 30
    assert not list((tmp_path / "stage").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("delivery", "point"),
    [("at_least_once", "settler.before_persist:2"), ("exactly_once", "transaction.after_commit:2")],
)
async def test_a_killed_driver_loses_nothing_and_repeats_nothing(
    delivery: str, point: str, tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Killed after Spark has committed and before the runtime has noted it: the next run must see that it has."""
    rows = [{"n": n} if n % 100 else {"n": n, "more": 1} for n in range(1, 1000)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    state, program = tmp_path / "state", tmp_path / "doubling.py"
    java = spark_options["conf"]["spark.driver.extraJavaOptions"]
    alone = {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": java}}

    program.write_text(DOUBLING.format(folder=str(tmp_path), delivery=delivery, options=alone))
    command: list[str | Path] = [COMMAND, "run", program, "--state", state]
    environment = os.environ | {"CONDUIT_KILL_AT": point}
    start = partial(run_warm, command, env=environment, preloaded=DRIVER_MODULES)
    killed = await trio.to_thread.run_sync(start)
    shown = [row["n"] for row in stored(tmp_path / "out")]
    program.write_text(DOUBLING.format(folder=str(tmp_path), delivery=delivery, options=spark_options))
    async with await open_store(state) as store:
        outcome = await run_to_end(load_pipelines(program)[0], store)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < len(shown) < 990
    assert outcome.status is Status.COMPLETED, outcome.error
    assert [row["n"] for row in stored(tmp_path / "out")] == [n for n in range(1, 1000) if n % 100]
    letters = [Record.from_json(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert {letter.payload["record"]["payload"]["after"]["n"] for letter in letters} == set(range(100, 1000, 100))


async def test_a_killed_executor_is_made_up_for(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    """Killed in the middle of a job, by the pid of a process of this very application."""
    killed: list[int] = []

    def write(frame: DataFrame) -> None:
        if not killed:
            killed.append(_executor_of(spark.sparkContext.applicationId))
            os.kill(killed[0], signal.SIGKILL)
        frame.repartition(4).write.mode("append").parquet(str(tmp_path / "out"))

    sink = Sink(function=write, rows_max=500, delay_seconds=1, **spark_options)
    numbers = [{"n": n} for n in range(2000)]
    pipeline = p.Pipeline(
        "copy",
        sources=[p.Source("in", memory.Source(records=numbers))],
        destinations=[p.Destination("out", sink)],
    )

    with trio.fail_after(300):
        outcome = await run_to_end(pipeline)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == list(range(2000))
    assert killed[0] != _executor_of(spark.sparkContext.applicationId)


def _executor_of(application: str) -> int:
    """The process id of an executor of this application, and of no other."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--app-id" in words and application.encode() in words and b"--executor-id" in words:
                return int(process.name)
    raise AssertionError(f"{application} has no executor on this machine")
