"""What the engine refuses, and what it makes good: lost workers, executors and drivers, and Spark's own traps."""

import json
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from change_source import ChangeSource
from conduit_connectors import file, memory
from conduit_connectors.sqlite_queue import Source as QueueSource
from pyspark.sql import SparkSession
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

from conduit_py import pipeline as p
from conduit_py.config.python_file import load_pipelines
from conduit_py.errors import PipelineInvalid
from conduit_py.record import Record
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import open_store

Options = dict[str, Any]
CAPTURED: Any = {"capture_stdout": True, "capture_stderr": True}


def lines(path: Path, numbers: Sequence[int]) -> Path:
    with path.open("a") as out:
        out.writelines(json.dumps({"n": n}) + "\n" for n in numbers)
    return path


def copying(path: Path, into: list[Any], *processors: Any) -> p.Pipeline:
    return p.Pipeline(
        "copy",
        sources=[p.Source("in", file.Source(path=path, format="json"))],
        processors=processors,
        destinations=[p.Destination("out", memory.Destination(into=into))],
    )


def numbers(records: Sequence[Record]) -> list[int]:
    return [record.payload["n"] for record in records]


def problems(pipeline: p.Pipeline) -> list[tuple[str, str]]:
    with pytest.raises(PipelineInvalid) as refused:
        SparkSupervisor(pipeline, MemoryStore())
    return [(problem.path, problem.message) for problem in refused.value.problems]


def test_what_cannot_run_on_spark_is_refused_with_its_node_and_the_reason(tmp_path: Path) -> None:
    pipeline = p.Pipeline(
        "unfit",
        sources=[p.Source("work", QueueSource(path=tmp_path / "queue.db"))],
        destinations=[p.Destination("out", file.Destination(path=tmp_path / "out"))],
    )
    groups = p.Pipeline(
        "groups",
        sources=[p.Source("changes", ChangeSource(sizes=[1]), atomic=True)],
        destinations=[p.Destination("out", file.Destination(path=tmp_path / "out"))],
        delivery="exactly_once",
    )

    assert problems(pipeline) == [
        ("sources.work", "shares its work with other processes by leases, which tasks of Spark do not hold"),
    ]
    assert problems(groups) == [("sources.changes.atomic", "tasks of Spark divide the records of a group")]


def test_a_processor_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(record: Record) -> Record:
        with lock:
            return record

    [(path, message)] = problems(copying(tmp_path / "in.jsonl", [], locked))

    assert path == "processors.locked"
    assert message.startswith("cannot be sent to executors: TypeError: cannot pickle")


async def test_a_value_that_cannot_be_carried_is_a_dead_letter(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    path, out, letters = lines(tmp_path / "in.jsonl", range(4)), list[Record](), list[Record]()

    def spoilt(record: Record) -> Record:
        if record.payload["n"] == 2:
            record.payload["path"] = Path("a")
        return record

    pipeline = copying(path, out, spoilt)
    pipeline.dead_letters = p.DeadLetters(memory.Destination(into=letters))
    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options)).run()

    assert state.status is Status.COMPLETED, state.error
    assert numbers(out) == [0, 1, 3]
    [letter] = letters
    assert (letter.payload["node"], letter.payload["error"]) == (
        "out",
        "payload.after.path is a pathlib.PosixPath, which cannot be encoded "
        "(keep plain values in records: numbers, text, bytes, dates, lists and dicts)",
    )


async def test_sources_keep_their_places_when_they_change_their_order(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Trap 1: Spark itself goes by the order of sources, and would give each the offset of the other."""
    out: list[Record] = []
    store = MemoryStore()
    for turn in range(2):
        lines(tmp_path / "a", range(1000 * turn, 1000 * turn + 20 + turn))
        lines(tmp_path / "b", range(5000 + 100 * turn, 5000 + 100 * turn + 30))
        sources = [p.Source(id, file.Source(path=tmp_path / id, format="json")) for id in ("a", "b")]
        pipeline = p.Pipeline(
            "two",
            sources=sources if turn == 0 else sources[::-1],
            destinations=[p.Destination("out", memory.Destination(into=out))],
        )
        state = await SparkSupervisor(pipeline, store, spark=SparkOptions(**spark_options)).run()
        assert state.status is Status.COMPLETED, state.error

    assert sorted(numbers(out)) == sorted([*range(20), *range(1000, 1021), *range(5000, 5030), *range(5100, 5130)])


async def test_the_last_records_are_acked_to_their_source_too(spark: SparkSession, spark_options: Options) -> None:
    """Trap 2: Spark itself acks a batch when it plans the next one, so never the last."""
    acked: list[bytes] = []

    class Acked(memory.Source):
        async def ack(self, positions: Sequence[bytes]) -> None:
            acked.extend(positions)

    pipeline = p.Pipeline(
        "acks",
        sources=[p.Source("in", Acked(records=[{"n": n} for n in range(10)]))],
        destinations=[p.Destination("out", memory.Destination(into=[]))],
    )

    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options)).run()

    assert state.status is Status.COMPLETED, state.error
    assert len(acked) == 10


async def test_a_task_that_dies_halfway_leaves_nothing_of_it_behind(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Trap 3: what a task writes before it fails is there twice once another attempt has succeeded."""
    path, marker, out = lines(tmp_path / "in.jsonl", range(400)), tmp_path / "died", list[Record]()

    def dies_once(record: Record) -> Record:
        if record.payload["n"] == 100 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    supervisor = SparkSupervisor(
        copying(path, out, dies_once), MemoryStore(), spark=SparkOptions(**spark_options), part_size=1000
    )
    state = await supervisor.run()

    assert marker.exists()
    assert state.status is Status.COMPLETED, state.error
    assert numbers(out) == list(range(400))
    [counted] = [meter for meter in supervisor.progress().nodes if meter.node == "dies_once"]
    assert counted.records == 400


async def test_parts_may_be_of_another_size_when_records_are_read_again(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Trap 4: progress must not depend on how the input was split, for after a crash it is split again."""
    path, out, store = lines(tmp_path / "in.jsonl", range(600)), list[Record](), MemoryStore()
    options = SparkOptions(**spark_options)

    def fails_once(record: Record) -> Record:
        if record.payload["n"] == 431 and not (tmp_path / "mended").exists():
            raise ValueError("not yet")
        return record

    first = await SparkSupervisor(copying(path, out, fails_once), store, spark=options, part_size=900).run()
    (tmp_path / "mended").touch()
    again = await SparkSupervisor(copying(path, out, fails_once), store, spark=options, part_size=3100).run()

    assert first.error is not None
    assert first.error.message == "fails_once refused a record: ValueError: not yet"
    assert again.status is Status.COMPLETED, again.error
    assert sorted(set(numbers(out))) == list(range(600))
    # On memory's destination what was on its way behind the refused record arrives again, and nothing else.
    assert len(out) < 600 + 170


async def test_a_killed_executor_is_made_up_for(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    """Killed from inside, by the task that it runs: the Java process above the Python worker and its daemon."""
    path, marker, out = lines(tmp_path / "in.jsonl", range(400)), tmp_path / "killed", list[Record]()

    def kills_once(record: Record) -> Record:
        if record.payload["n"] == 250 and not marker.exists():
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            marker.write_text(str(executor))
            os.kill(executor, signal.SIGKILL)
        return record

    pipeline = copying(path, out, kills_once)
    with trio.fail_after(300):
        state = await SparkSupervisor(
            pipeline, MemoryStore(), spark=SparkOptions(**spark_options), part_size=1000
        ).run()

    assert marker.exists()
    assert state.status is Status.COMPLETED, state.error
    assert numbers(out) == list(range(400))


EXAMPLE = """
from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor
from conduit_connectors import file, spark
from beside_orders import in_cents

@processor
def cents(record: Record) -> Record | None:
    record.payload["cents"] = in_cents(record.payload["amount"])
    return record

def checked(record: Record) -> Record:
    return record

pipeline = Pipeline(
    "orders",
    sources=[Source("web", file.Source(path="orders.jsonl", format="json"))],
    processors=[cents, checked],
    destinations=[Destination("lake", spark.Destination(format="parquet", path="LAKE"))],
    dead_letters=DeadLetters(
        file.Destination(path="dead.jsonl", format="json"), window_size=100, window_nack_threshold=5
    ),
)
"""


async def test_a_file_with_spark_at_its_end_runs_on_the_spark_that_is_asked_for(
    tmp_path: Path, spark: SparkSession, spark_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code, and that of the module beside it, goes along. Its connector names no master and uses the engine's."""
    monkeypatch.chdir(tmp_path)
    orders = [{"id": n, "amount": "free" if n == 50 else n} for n in range(100)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders))
    (tmp_path / "beside_orders.py").write_text("def in_cents(amount):\n    return round(amount * 100)\n")
    (tmp_path / "orders.py").write_text(EXAMPLE.replace("LAKE", str(tmp_path / "lake")))
    [pipeline] = load_pipelines(tmp_path / "orders.py")

    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options)).run()

    assert state.status is Status.COMPLETED, state.error
    rows = [row for path in (tmp_path / "lake").rglob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted((row["id"], row["cents"]) for row in rows) == [(n, 100 * n) for n in range(100) if n != 50]
    assert len((tmp_path / "dead.jsonl").read_text().splitlines()) == 1


DOUBLING = """
from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Source, processor

FOLDER = {folder!r}

@processor
def doubled(record):
    record.payload["double"] = 2 * record.payload["n"]
    return record

pipeline = Pipeline(
    "numbers",
    sources=[Source("in", file.Source(path=f"{{FOLDER}}/in.jsonl", format="json"))],
    processors=[doubled],
    destinations=[Destination("out", file.Destination(path=f"{{FOLDER}}/out.jsonl", format="json"))],
    dead_letters=DeadLetters(file.Destination(path=f"{{FOLDER}}/dead.jsonl", format="json")),
    delivery="exactly_once",
)
"""


async def test_a_killed_driver_loses_nothing_and_repeats_nothing(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Killed between the commit and what it stands for: the next run, on another Spark, makes up for it."""
    with (tmp_path / "in.jsonl").open("w") as file:
        # Three parts, and a transaction has room for two of them.
        file.writelines(json.dumps({"n": n, "long": "x" * 40_000}) + "\n" for n in range(1000))
        file.write('{"m": 1}\n')
    program, state = tmp_path / "doubling.py", tmp_path / "state"
    program.write_text(DOUBLING.format(folder=str(tmp_path)))
    command: list[str | Path] = [COMMAND, "run", program, "--state", state, "--engine", "spark", "--master", "local[2]"]
    environment = os.environ | {"CONDUIT_KILL_AT": "transaction.after_commit:2"}

    start = partial(run_warm, command, env=environment, preloaded=DRIVER_MODULES)
    killed = await trio.to_thread.run_sync(start)
    before = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    async with await open_store(state) as store:
        supervisor = SparkSupervisor(load_pipelines(program)[0], store, spark=SparkOptions(**spark_options))
        ended = await supervisor.run()

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < len(before) < 1000
    assert ended.status is Status.COMPLETED, ended.error
    after = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["n"], each["double"]) for each in after] == [(n, 2 * n) for n in range(1000)]
    assert len((tmp_path / "dead.jsonl").read_text().splitlines()) == 1
