"""`conduit_py.run` and `run_async` of a pipeline on Spark, in a process of its own, as a user's script."""

import json
import sys
from pathlib import Path

from warm_python import run_warm
from warm_workers import DRIVER_MODULES

SCRIPT = """
import asyncio
import conduit_py
from conduit_connectors import file
from conduit_py import DeadLetters, Pipeline, RecordRefused, Spark, processor

@processor
def double(record):
    if record.payload["n"] == 3:
        raise RecordRefused("not three")
    record.payload["n"] *= 2
    return record

def copy(name):
    return Pipeline(
        name,
        sources={"in": file.Source(path="in.jsonl", format="json")},
        processors=[double],
        destinations={"out": file.Destination(path=f"{name}.jsonl", format="json")},
        dead_letters=DeadLetters.keep(),
        engine=Spark(master="local[1]", conf={"spark.ui.enabled": "false"}, start_seconds=300),
    )

def report(outcome):
    assert outcome.ok, outcome.error
    kept = [letter.record.payload["n"] for letter in outcome.dead_letters]
    print(outcome.status, outcome.counts.read, outcome.counts.acked, kept)

report(conduit_py.run(copy("script"), state="state"))
# As in a notebook: the loop of asyncio runs in the main thread.
report(asyncio.run(conduit_py.run_async(copy("loop"), state="state")))
"""


def test_run_on_spark_in_a_script_and_in_a_running_loop(tmp_path: Path) -> None:
    """One after the other: the second has a Java that runs, and begins again there."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = run_warm([sys.executable, tmp_path / "script.py"], cwd=tmp_path, timeout=600, preloaded=DRIVER_MODULES)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "completed 5 5 [3]\n" * 2
    for name in ("script", "loop"):
        assert [json.loads(line)["n"] for line in (tmp_path / f"{name}.jsonl").open()] == [0, 2, 4, 8]
