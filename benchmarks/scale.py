"""`make bench-scale`: what a record costs the driver of Spark, by the way it is written and the number of executors.

Each number of executors is a process with a session of its own on a cluster of this machine. All ways take turns in
it, once to get warm, then with few and with many records: the difference is what records cost, without the start and
the end of a run. The driver is its Python and its Java. Bytes are what tasks return to it.

With `--processes` executors are plain processes, without Spark and Java: that is quick, and shows the driver's Python.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial, partialmethod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import pyarrow as pa
import trio
from conduit_connectors import file, objects, parquet
from process_tree import processes
from pyspark.sql import SparkSession
from spark_cluster import PEER_CONF, SparkCluster

from benchmarks.spark_engine import changed, on_spark, to_end
from benchmarks.spark_measure import Meter, say
from benchmarks.spark_part import session_of
from benchmarks.spark_work import change
from benchmarks.workload import dropped, write_input
from conduit_py import Destination, Pipeline, Source, processor
from conduit_py.spark.engine.executors import Executors
from conduit_py.spark.engine.task import perform
from conduit_py.spark.session.shared_session import SparkOptions

ROOT = Path(__file__).parent.parent
COLUMNS = {
    "id": "int64", "ts": "string", "user": "string", "amount": "double", "note": "string", "cents": "int64",
    "band": "string", "digest": "string",
}  # fmt: skip
SCHEMA = ", ".join(f"{name} {'BIGINT' if kind == 'int64' else kind}" for name, kind in COLUMNS.items())
JOB = "job of PySpark → Parquet"
EXECUTOR_CONF = {
    **PEER_CONF,
    "spark.executor.cores": "1",
    "spark.executor.memory": "640m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class OneByOne(file.Destination):
    """A file as most destinations are: the driver writes every record."""

    def prepares(self, *, exactly_once: bool) -> bool:
        return False


class Cost(msgspec.Struct, frozen=True):
    """What one way cost with so many executors: of the driver for a record, and of everybody in time."""

    executors: int
    way: str
    python_us: list[float]
    """Microseconds of CPU of the driver's Python for a record, in each round."""
    java_us: list[float]
    """The same of its Java, without the threads that compile its code."""
    compiling_us: list[float]
    """The same of those threads. Java compiles for some minutes, whatever the number of records is."""
    driver_bytes: list[float]
    records_per_second: list[float]
    """While records are read, processed and written."""
    workers_us: list[float]
    """Microseconds of CPU of all executors for a record, Python and Java."""


class Taken(NamedTuple):
    """What one run took: seconds of CPU of the driver and of executors, seconds, and bytes that tasks returned."""

    python: float
    java: float
    compiling: float
    seconds: float
    executors: float
    returned: float


class Traffic:
    """Counts the bytes that tasks return to the driver. With a pool, its processes run them in place of Spark."""

    def __init__(self, pool: ProcessPoolExecutor | None = None, executors: int = 0) -> None:
        self.bytes = 0
        plain = Executors._run

        def run(spark: Executors, plan: bytes, parts: Sequence[bytes]) -> list[bytes]:
            done = plain(spark, plan, parts) if pool is None else list(pool.map(partial(perform, plan), parts))
            self.bytes += sum(map(len, done))
            return done

        Executors._run = run  # type: ignore[method-assign, assignment]
        if pool is not None:
            Executors.start = partialmethod(setattr, "cores", executors)  # type: ignore[assignment, method-assign]
            Executors.close = lambda spark: None  # type: ignore[assignment, method-assign]


def ways(folder: Path) -> dict[str, tuple[Callable[[], Any], str]]:
    """By name, a destination and a delivery."""
    dataset = partial(parquet.Destination, path=folder / "dataset", columns=COLUMNS)
    return {
        "records → file": (partial(OneByOne, path=folder / "records.jsonl", format="json"), "at_least_once"),
        "prepared → file": (partial(file.Destination, path=folder / "prepared.jsonl", format="json"), "at_least_once"),
        "staged → JSON lines": (partial(objects.Destination, url=str(folder / "lines")), "at_least_once"),
        "staged → Parquet": (dataset, "at_least_once"),
        "staged → Parquet, exactly once": (dataset, "exactly_once"),
    }


def run_pipeline(source: Path, folder: Path, way: str, options: SparkOptions) -> None:
    make, delivery = ways(folder)[way]
    for path in (folder / "dataset", folder / "lines", folder / "state"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    into: Any = make()
    pipeline = Pipeline(
        "scale",
        sources=[Source("in", file.Source(path=source, format="json"))],
        # A column of lists cannot be declared, so everybody leaves it out.
        processors=[changed, processor(leave_tags_out)],
        destinations=[Destination("out", into)],
        delivery=delivery,  # type: ignore[arg-type]
    )
    trio.run(to_end, pipeline, folder / "state", on_spark(options))


def leave_tags_out(order: dict[str, Any]) -> dict[str, Any]:
    del order["tags"]
    return order


def run_job(session: SparkSession, source: Path, folder: Path) -> None:
    """The same work as one would write it with PySpark alone, which keeps no position and no dead letters."""
    lines = session.read.text(str(source)).selectExpr("cast(value AS binary) AS line")
    lines.mapInArrow(changed_rows, SCHEMA).write.mode("overwrite").parquet(str(folder / "job"))


def changed_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        orders = map(orjson.loads, batch.column(0).to_pylist())
        rows = [leave_tags_out(change(order)) for order in orders if not dropped(order)]
        yield pa.RecordBatch.from_pylist(rows).select(list(COLUMNS))


def measure(executors: int, records: int, rounds: int, only: str) -> list[Cost]:
    """In this process: the costs of all ways with so many executors."""
    traffic, few = Traffic(), max(1000, records // 10)
    with ExitStack() as until_end:
        folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
        nodes = until_end.enter_context(SparkCluster(folder / "cluster", workers=1, cores=8, memory="8g"))
        write_input(folder / "few", few)
        write_input(folder / "many", records)
        options = SparkOptions(
            master=nodes.url, conf=EXECUTOR_CONF | {"spark.cores.max": str(executors)}, start_seconds=300
        )
        with session_of(options) as session:
            wait_for(session, executors)
            meter = Meter(*nodes.workers.values())
            calls: dict[str, Callable[[Path], None]] = {
                way: partial(run_pipeline, folder=folder, way=way, options=options) for way in ways(folder)
            }
            calls[JOB] = partial(run_job, session, folder=folder)
            calls = {way: call for way, call in calls.items() if only in way}
            return _measure_all(executors, calls, meter, traffic, folder, records, few, rounds)


def measure_processes(executors: int, records: int, rounds: int, only: str) -> list[Cost]:
    """The same with executors that are plain processes."""
    few, options = max(1000, records // 10), SparkOptions(master="local[2]")
    with ExitStack() as until_end:
        folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
        pool = until_end.enter_context(ProcessPoolExecutor(executors, get_context("spawn")))
        traffic = Traffic(pool, executors)
        write_input(folder / "few", few)
        write_input(folder / "many", records)
        named = [way for way in ways(folder) if only in way]
        calls = {way: partial(run_pipeline, folder=folder, way=way, options=options) for way in named}
        return _measure_all(executors, calls, Meter(), traffic, folder, records, few, rounds)


def _measure_all(
    executors: int,
    calls: Mapping[str, Callable[[Path], None]],
    meter: Meter,
    traffic: Traffic,
    folder: Path,
    records: int,
    few: int,
    rounds: int,
) -> list[Cost]:
    found: dict[str, list[Taken]] = {way: [] for way in calls}
    for call in calls.values():
        call(folder / "few")
    for _ in range(rounds):
        for way, call in calls.items():
            less, more = (_take(meter, traffic, partial(call, folder / name)) for name in ("few", "many"))
            rest = Taken(*(each - other for each, other in zip(more, less, strict=True)))
            # Bytes of the whole run: the difference may be that of no part.
            found[way].append(rest._replace(returned=more.returned * (records - few) / records))
    return [_cost(executors, way, each, records - few) for way, each in found.items()]


def _take(meter: Meter, traffic: Traffic, call: Callable[[], None]) -> Taken:
    before, java, python = traffic.bytes, _driver_java_threads(), time.process_time()
    used = meter.used(call)
    # Finer than what /proc tells: the driver may need a few milliseconds only.
    python = time.process_time() - python
    threads = {id: (name, spent - java.get(id, ("", 0.0))[1]) for id, (name, spent) in _driver_java_threads().items()}
    compiling = sum(spent for name, spent in threads.values() if "Compiler" in name)
    other = sum(spent for name, spent in threads.values() if "Compiler" not in name)
    executors = used.by_role["workers"] + used.by_role["Java"] - compiling - other
    return Taken(python, other, compiling, used.seconds, executors, traffic.bytes - before)


def _driver_java_threads() -> dict[int, tuple[str, float]]:
    """By their ids, the names of the threads of the driver's Java, and the seconds of CPU that each has used."""
    below = [each.pid for each in processes(os.getpid()) if "java" in each.command.split(" ")[0]]
    found = {}
    for path in (path for pid in below for path in Path(f"/proc/{pid}/task").iterdir()):
        try:
            name, stat = path.joinpath("comm").read_text().strip(), path.joinpath("schedstat").read_text()
        except OSError:
            continue  # It has ended meanwhile.
        # In nanoseconds: what /proc tells elsewhere is in hundredths of a second.
        found[int(path.name)] = name, int(stat.split()[0]) / 1e9
    return found


def _cost(executors: int, way: str, taken: list[Taken], records: int) -> Cost:
    return Cost(
        executors,
        way,
        [1e6 * each.python / records for each in taken],
        [1e6 * each.java / records for each in taken],
        [1e6 * each.compiling / records for each in taken],
        [each.returned / records for each in taken],
        [records / max(each.seconds, 1e-9) for each in taken],
        [1e6 * each.executors / records for each in taken],
    )


def wait_for(session: SparkSession, executors: int) -> None:
    context: Any = session.sparkContext
    # The driver counts itself.
    while context._jsc.sc().getExecutorMemoryStatus().size() < executors + 1:
        context.parallelize(range(executors), executors).count()
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", action="store_true", help="without Spark")
    parser.add_argument("--ways", default="", help="only ways with this text in their names")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        do = measure_processes if arguments.processes else measure
        print(json.dumps(msgspec.to_builtins(do(arguments.one, arguments.records, arguments.rounds, arguments.ways))))
        return 0
    print(f"{arguments.records:,} records, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"executors  {'way':32}    µs Python       µs Java  µs compiling   bytes  µs executors  records/s")
    for executors in arguments.executors:
        say(f"{executors} executors")
        for cost in _in_own_process(executors, arguments):
            figures = (
                f"{_middle(cost.python_us, 2):>12} {_middle(cost.java_us, 2):>13} "
                f"{statistics.median(cost.compiling_us):13.2f} "
                f"{statistics.median(cost.driver_bytes):7.3f} {statistics.median(cost.workers_us):13.1f} "
                f"{statistics.median(cost.records_per_second):10,.0f}"
            )
            print(f"{executors:>9}  {cost.way:32} {figures}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


def _middle(values: list[float], digits: int) -> str:
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{spread}"


def _in_own_process(executors: int, arguments: argparse.Namespace) -> list[Cost]:
    # Executors of the cluster import the work from here.
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH")]))
    limits = ["--records", str(arguments.records), "--rounds", str(arguments.rounds), "--ways", arguments.ways]
    limits += ["--processes"] if arguments.processes else []
    command = [sys.executable, "-m", "benchmarks.scale", "--one", str(executors), *limits]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {"PYTHONPATH": path})
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=list[Cost])


if __name__ == "__main__":
    sys.exit(main())
