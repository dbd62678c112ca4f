"""`make bench-scale`: what a record costs the driver of Spark, by the way it is written and the number of executors.

Each number of executors is a process with a session of its own on a cluster of this machine. All ways take turns in
it: first until Java is warm, then with few and with many records. The difference is what records cost, without
the start and the end of a run. The driver is its Python and its Java. Bytes are what tasks return to it. "full at" is
the number of executors with one core each that keep one core of the driver busy: what a record costs them, divided by
what it costs the driver. More of them add nothing.

Java compiles its own code for minutes, whatever it has to do, and a run of seconds cannot tell that from work. So each
way first runs some hundred jobs of few records, which the driver has as much work with as with large ones. The threads
that compile are counted apart. The speed is given twice, against the job of PySpark in the same round: "rate" is of the
records between few and many, "whole" is that of a whole run with many, from nothing to everything visible.

With `--processes` executors are plain processes, without Spark and Java: that is quick, and shows the driver's Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial, partialmethod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from process_tree import processes
from pyspark.sql import SparkSession
from spark_cluster import PEER_CONF, SparkCluster

from benchmarks.scale_ways import JOB, check_same_rows, run_job, run_pipeline, ways
from benchmarks.spark_measure import Meter, say
from benchmarks.spark_part import session_of
from benchmarks.workload import write_input
from conduit_py.spark.engine.executors import Executors
from conduit_py.spark.engine.remote_source import PART_SIZE
from conduit_py.spark.engine.task import perform
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.testing.services import PostgresServer

ROOT = Path(__file__).parent.parent
EXECUTOR_CONF = {
    **PEER_CONF,
    "spark.executor.cores": "1",
    "spark.executor.memory": "640m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Else such threads end when they have nothing to do, and what they had used is then taken for work.
    "spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads -XX:-UseDynamicNumberOfGCThreads",
}
DRIVER_CLASS = "org.apache.spark.deploy.SparkSubmit"
JOB_AGAIN = f"{JOB}, again"
NO_DATABASE = "postgresql://127.0.0.1:1/none"
NOISE_US = 0.005
"""Below so many microseconds for a record a difference of two runs says nothing."""
WARM_PARTS = 60
"""Parts of the few records while Java gets warm."""


class Cost(msgspec.Struct, frozen=True):
    """What one way cost with so many executors: microseconds of CPU for a record, and time, in each round."""

    executors: int
    way: str
    python_us: list[float]
    """Of the driver's Python."""
    java_us: list[float]
    """Of its Java, with its garbage collection, without the threads that compile its code."""
    compiling_us: list[float]
    """Of those threads."""
    driver_bytes: list[float]
    worker_python_us: list[float]
    """Of the Python of all executors."""
    worker_java_us: list[float]
    """Of their Java."""
    rate: list[float]
    """Records a second between few and many."""
    start_seconds: list[float]
    """What a run takes besides its records: its start and its end."""
    whole: list[float]
    """Records a second of whole runs with many records."""

    def saturation(self) -> float | None:
        """Return how many executors keep the driver busy; None if what a record costs it is less than the noise."""
        driver = statistics.median(map(sum, zip(self.python_us, self.java_us, strict=True)))
        executors = statistics.median(map(sum, zip(self.worker_python_us, self.worker_java_us, strict=True)))
        return executors / driver if driver >= NOISE_US else None


class Taken(NamedTuple):
    """What one run took: seconds of CPU of the driver and of executors, seconds, and bytes that tasks returned."""

    python: float
    java: float
    compiling: float
    seconds: float
    worker_python: float
    worker_java: float
    returned: float


Call = Callable[[Path, int], None]
"""Runs a way over an input, in parts of so many bytes."""


class Bench(NamedTuple):
    """The ways to measure, and what is the same for all of them."""

    calls: Mapping[str, Call]
    meter: Meter
    traffic: "Traffic"
    folder: Path
    records: int
    few: int
    rounds: int
    warm: int
    executors: int

    def measure(self) -> list[Cost]:
        self._get_warm()
        found: dict[str, list[tuple[Taken, Taken]]] = {way: [] for way in self.calls}
        for number in range(self.rounds):
            # Every other round goes backwards, so that nobody always comes after the same neighbour.
            for way in list(self.calls)[:: -1 if number % 2 else 1]:
                less, more = (self._take(partial(self.calls[way], self.folder / name, PART_SIZE)) for name in INPUTS)
                found[way].append((less, more))
        return [self._cost(way, each) for way, each in found.items()]

    def _get_warm(self) -> None:
        size = (self.folder / "few").stat().st_size
        for way, call in self.calls.items():
            say(f"{way}: getting warm")
            for _ in range(self.warm):
                call(self.folder / "few", max(1, size // WARM_PARTS))
            call(self.folder / "many", PART_SIZE)
        if JOB in self.calls and any("Parquet" in way for way in self.calls if way not in (JOB, JOB_AGAIN)):
            check_same_rows(self.folder)

    def _take(self, call: Callable[[], None]) -> Taken:
        before, java, python = self.traffic.bytes, driver_java(), time.process_time()
        used = self.meter.used(call)
        # Finer than what /proc tells: the driver may need a few milliseconds only.
        python = time.process_time() - python
        whole, compiling = (after - known for after, known in zip(driver_java(), java, strict=True))
        by_role = used.by_role
        returned = self.traffic.bytes - before
        own = whole - compiling
        return Taken(python, own, compiling, used.seconds, by_role["workers"], by_role["Java"] - whole, returned)

    def _cost(self, way: str, taken: list[tuple[Taken, Taken]]) -> Cost:
        rest = self.records - self.few
        # A difference of nothing is noise: the rate is then as high as can be measured.
        slope = [max(more.seconds - less.seconds, 1e-3) / rest for less, more in taken]

        def each_us(name: str) -> list[float]:
            return [1e6 * (getattr(more, name) - getattr(less, name)) / rest for less, more in taken]

        return Cost(
            self.executors,
            way,
            each_us("python"),
            each_us("java"),
            each_us("compiling"),
            # Of the whole run: the difference may be that of no part.
            [more.returned / self.records for _, more in taken],
            each_us("worker_python"),
            each_us("worker_java"),
            [1 / each for each in slope],
            [more.seconds - self.records * each for each, (_, more) in zip(slope, taken, strict=True)],
            [self.records / more.seconds for _, more in taken],
        )


INPUTS = ("few", "many")


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


def measure(arguments: argparse.Namespace) -> list[Cost]:
    """In this process: the costs of all ways with so many executors."""
    executors, records = arguments.one, arguments.records
    few = max(1000, records // 10)
    with ExitStack() as until_end:
        folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
        # No server where nobody asks for it: it would be one more process beside what is measured.
        known = ways(folder, NO_DATABASE)
        wanted = [way for way in (*known, JOB, JOB_AGAIN) if any(text in way for text in arguments.ways)]
        database = ""
        if any("PostgreSQL" in way for way in wanted):
            database = until_end.enter_context(PostgresServer.started()).create_database()
        write_input(folder / "few", few)
        write_input(folder / "many", records)
        if arguments.processes:
            pool = until_end.enter_context(ProcessPoolExecutor(executors, get_context("spawn")))
            traffic, meter, session = Traffic(pool, executors), Meter(), None
            options = SparkOptions(master="local[2]")
        else:
            traffic = Traffic()
            nodes = until_end.enter_context(SparkCluster(folder / "cluster", workers=1, cores=8, memory="8g"))
            conf = EXECUTOR_CONF | {"spark.cores.max": str(executors)}
            options = SparkOptions(master=nodes.url, conf=conf, start_seconds=300)
            session = until_end.enter_context(session_of(options))
            wait_for(session, executors)
            meter = Meter(*nodes.workers.values())
        calls: dict[str, Call] = {
            name: partial(run_pipeline, folder=folder, way=way, options=options, database=database)
            for name, way in ways(folder, database or NO_DATABASE).items()
        }
        if session is not None:
            calls[JOB] = calls[JOB_AGAIN] = partial(run_job, session=session, folder=folder)
        calls = {way: call for way, call in calls.items() if way in wanted}
        warm = 0 if arguments.processes else arguments.warm
        bench = Bench(calls, meter, traffic, folder, records, few, arguments.rounds, warm, executors)
        return bench.measure()


def driver_java() -> tuple[float, float]:
    """Seconds of CPU of the driver's Java since its start: all of it, and of the threads that compile its code."""
    # By its class: the cluster, and with it its executors, are below this process too.
    below = [each.pid for each in processes(os.getpid()) if DRIVER_CLASS in each.command.split(" ")]
    # The clock of another process, as clock_getcpuclockid(3) gives it: in nanoseconds, with threads that have ended.
    whole = sum(time.clock_gettime((~pid << 3) | 2) for pid in below)
    compiling = 0
    for path in (path for pid in below for path in Path(f"/proc/{pid}/task").iterdir()):
        try:
            if "Compiler" in path.joinpath("comm").read_text():
                compiling += int(path.joinpath("schedstat").read_text().split()[0])
        except OSError:
            continue  # It has ended meanwhile.
    return whole, compiling / 1e9


def wait_for(session: SparkSession, executors: int) -> None:
    context: Any = session.sparkContext
    # The driver counts itself.
    while context._jsc.sc().getExecutorMemoryStatus().size() < executors + 1:
        context.parallelize(range(executors), executors).count()
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=5, help=f"runs of {WARM_PARTS} parts of each way before all rounds")
    parser.add_argument("--processes", action="store_true", help="without Spark")
    parser.add_argument("--ways", nargs="*", default=[""], help="only ways with one of these texts in their names")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(msgspec.to_builtins(measure(arguments))))
        return 0
    print(f"{arguments.records:,} records, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(
        "                                                    µs of the driver                     µs of executors"
        "                     ÷ job\n"
        f"executors  {'way':34} {'Python':>18} {'Java':>18} compiling   bytes  Python   Java full at  records/s"
        f"  start s  {'rate':18} whole"
    )
    for executors in arguments.executors:
        say(f"{executors} executors")
        costs = _in_own_process(executors, arguments)
        job = next((cost for cost in costs if cost.way == JOB), None)
        for cost in costs:
            print(_line(cost, job), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


def _line(cost: Cost, job: Cost | None) -> str:
    median = statistics.median
    rates = [own / other for own, other in zip(cost.rate, job.rate, strict=True)] if job else []
    wholes = [own / other for own, other in zip(cost.whole, job.whole, strict=True)] if job else []
    return (
        f"{cost.executors:>9}  {cost.way:34} {_middle(cost.python_us):>18} {_middle(cost.java_us):>18} "
        f"{median(cost.compiling_us):9.2f} {median(cost.driver_bytes):7.3f} {median(cost.worker_python_us):7.2f} "
        f"{median(cost.worker_java_us):6.2f} {_count(cost.saturation()):>7} {median(cost.rate):10,.0f} "
        f"{median(cost.start_seconds):8.2f}  {_middle(rates):18} {_middle(wholes)}"
    )


def _count(executors: float | None) -> str:
    return "no end" if executors is None else f"{executors:.0f}"


def _middle(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.2f}{spread}"


def _in_own_process(executors: int, arguments: argparse.Namespace) -> list[Cost]:
    # Executors of the cluster import the work from here.
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH")]))
    limits = ["--records", str(arguments.records), "--rounds", str(arguments.rounds), "--warm", str(arguments.warm)]
    limits += ["--ways", *arguments.ways, *(["--processes"] if arguments.processes else [])]
    command = [sys.executable, "-m", "benchmarks.scale", "--one", str(executors), *limits]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {"PYTHONPATH": path})
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=list[Cost])


if __name__ == "__main__":
    sys.exit(main())
