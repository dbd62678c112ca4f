"""What goes wrong around a pipeline on Spark: a clear error or dead letters, and nothing lost."""

import json
import os
import re
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import spark as spark_connector
from engine_world import Supervise, World
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

from conduit_py import pipeline as p
from conduit_py.config.python_file import load_pipelines
from conduit_py.record import Record
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import LastError, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import open_store

COPYING = """
import os
from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Source, Spark, processor

FOLDER = {folder!r}

class Dying(file.Destination):
    def flush(self):
        super().flush()
        if "DYING" in os.environ and self.options.path.read_bytes().count(b"\\n") >= 300:
            os.kill(os.getpid(), 9)

class OneByOne(Dying):
    def prepares(self, *, exactly_once):
        return False

@processor
def large(record):
    record.payload["long"] = "x" * int(os.environ.get("LARGE", "1"))
    return record

pipeline = Pipeline(
    "numbers",
    sources=[Source("in", file.Source(path=f"{{FOLDER}}/in.jsonl", format="json"), window=400)],
    processors=[large],
    destinations=[Destination("out", {kind}(path=f"{{FOLDER}}/out.jsonl", format="json"))],
    delivery={delivery!r},
    engine=Spark(master="local[1]", conf={conf!r}),
)
"""


@pytest.fixture
def on_any_spark(on_spark: Supervise, tmp_path: Path) -> World:
    return World("spark-prepared", tmp_path, on_spark)


async def run_command(program: Path, **environment: str) -> tuple[int, str]:
    """What `conduit-py run` says, and its exit code."""
    command: list[str | Path] = [COMMAND, "run", program, "--state", program.with_name("state")]
    start = partial(run_warm, command, env=os.environ | environment, preloaded=DRIVER_MODULES)
    ran = await trio.to_thread.run_sync(start)
    return ran.returncode, ran.stdout + ran.stderr


async def run_here(program: Path, options: dict[str, Any], **more: Any) -> Any:
    """The same pipeline with the same state, on the Spark of all tests."""
    async with await open_store(program.with_name("state")) as store:
        [pipeline] = load_pipelines(program)
        return await SparkSupervisor(pipeline, store, spark=SparkOptions(**options), **more).run()


def write_program(folder: Path, numbers: Sequence[int], *, size: int = 0, **values: Any) -> Path:
    rows = ({"n": n, "filler": "x" * size} for n in numbers)
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = folder / "copying.py"
    defaults = {"folder": str(folder), "kind": "file.Destination", "delivery": "at_least_once", "conf": {}}
    program.write_text(COPYING.format(**(defaults | values)))
    return program


def numbers_in(folder: Path) -> list[int]:
    return [json.loads(line)["n"] for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["Dying", "OneByOne"])
async def test_a_driver_killed_in_an_at_least_once_pipeline_loses_nothing(
    tmp_path: Path, spark: Any, spark_options: dict[str, Any], kind: str
) -> None:
    """Killed after records were written and before that was noted: they come again, and all others follow."""
    program = write_program(tmp_path, range(1000), size=40_000, kind=kind)

    code, said = await run_command(program, DYING="1")
    before = numbers_in(tmp_path)
    ended = await run_here(program, spark_options)

    assert code == -signal.SIGKILL, said
    assert 300 <= len(before) < 1000
    assert before == list(range(len(before)))
    assert ended.status is Status.COMPLETED, ended.error
    after = numbers_in(tmp_path)[len(before) :]
    # It went on in the order of the source, from a record that was written already.
    assert after[0] < len(before)
    assert after == list(range(after[0], 1000))


async def test_a_driver_out_of_memory_says_what_to_raise_and_the_next_run_completes_exactly_once(
    tmp_path: Path, spark: Any, spark_options: dict[str, Any]
) -> None:
    # Spark wants 450 MiB at least, unless it is tested: less is exhausted sooner.
    conf = {"spark.driver.memory": "192m", "spark.testing.reservedMemory": "1000000"}
    program = write_program(tmp_path, range(3), delivery="exactly_once", conf=conf)

    code, said = await run_command(program, LARGE="60000000")
    left = (tmp_path / "out.jsonl").stat().st_size
    ended = await run_here(program, spark_options)

    assert code == 1
    assert "numbers: error in in: a job of Spark failed: " in said
    assert re.search(r"(raise|more memory with) spark\.driver\.memory", said)
    assert left == 0
    assert ended.status is Status.COMPLETED, ended.error
    assert numbers_in(tmp_path) == [0, 1, 2]


def error_of(state: Any) -> LastError:
    assert state.status is Status.DEGRADED
    assert isinstance(state.error, LastError)
    return state.error


async def test_a_worker_that_is_killed_every_time_is_reported_with_what_to_do_and_the_rest_comes_later(
    on_any_spark: World,
) -> None:
    """As the kernel does when memory runs out. Spark tries a task four times."""
    world, store = on_any_spark, MemoryStore()
    world.write(range(400))
    mended = world.folder / "mended"

    def dies(record: Record) -> Record:
        if record.payload["n"] == 300 and not mended.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    error = error_of(await world.run(world.pipeline(dies), store))
    mended.touch()
    again = await world.run(world.pipeline(dies), store)

    assert error.node == "in"
    assert error.message == "a job of Spark failed: a Python worker was killed or crashed, each time it was tried"
    assert error.suggestion is not None
    assert "spark.executor.memoryOverhead" in error.suggestion
    assert again.status is Status.COMPLETED, again.error
    assert list(dict.fromkeys(world.numbers())) == list(range(400))


async def test_a_module_that_executors_do_not_have_is_named(
    on_any_spark: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = on_any_spark
    world.write(range(10))
    (world.folder / "site").mkdir()
    (world.folder / "site" / "only_on_the_driver.py").write_text("def same(record):\n    return record\n")
    monkeypatch.syspath_prepend(str(world.folder / "site"))
    import only_on_the_driver  # type: ignore[import-not-found]

    error = error_of(await world.run(world.pipeline(only_on_the_driver.same)))

    assert error.code == "run.fatal"
    assert "the pipeline cannot be built on executor" in error.message
    assert "No module named 'only_on_the_driver'" in error.message
    assert error.suggestion == "install there what is installed here, for example with spark.archives"


DRIFTING = [{"n": 0}, {"n": 1, "more": "x"}, {"n": "two"}, {"n": 3}]


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(
    ("drift", "kept", "refused"),
    [("refuse", [0, 3], [1, "two"]), ("ignore", [0, 1, 3], ["two"]), ("stop", None, None)],
)
async def test_records_that_do_not_fit_the_columns_are_handled_as_the_policy_says(
    on_any_spark: World, prepared: bool, drift: str, kept: list[int] | None, refused: list[Any] | None
) -> None:
    """On executors, where they make Parquet files, and on the driver, where it is at least once."""
    world = on_any_spark
    world.path("in").write_text("".join(json.dumps(row) + "\n" for row in DRIFTING))
    lake = spark_connector.Destination(path=str(world.folder / "lake"), columns="n BIGINT", drift=drift)  # type: ignore[arg-type]
    pipeline = world.pipeline(
        destinations=[p.Destination("lake", lake)], delivery="exactly_once" if prepared else "at_least_once"
    )

    state = await world.run(pipeline)

    if kept is None:
        error = error_of(state)
        assert (error.code, error.node) == ("run.fatal", "lake")
        assert "a record does not fit the schema: " in error.message
        return
    assert state.status is Status.COMPLETED, state.error
    files = (world.folder / "lake").rglob("batch=*/*.parquet")
    assert sorted(n for path in files for n in pq.ParquetFile(path).read()["n"].to_pylist()) == kept
    assert world.refused() == refused
    assert {letter["node"] for letter in world.rows("dead")} == {"lake"}
