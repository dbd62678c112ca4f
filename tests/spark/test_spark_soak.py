"""The kill run: executors, workers and drivers of a cluster are killed, and every record is there once all the same.

CONDUIT_SOAK_RECORDS and CONDUIT_SOAK_LIVES make it larger; `make spark-soak` runs it in full.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lake_tables import iceberg_table
from process_tree import processes
from spark_cluster import SparkCluster
from warm_python import WarmPython
from warm_workers import DRIVER_MODULES

DRIVER = Path(__file__).with_name("soak_driver.py")
RECORDS = int(os.environ.get("CONDUIT_SOAK_RECORDS", "24000"))
LIVES = int(os.environ.get("CONDUIT_SOAK_LIVES", "1"))
"""How many drivers are killed before one may come to the end. In the life of each, one of everything else is killed."""
SECONDS_MAX = 900.0 + 300.0 * LIVES + RECORDS / 200
PARTS_IN_A_LIFE = 40
PART_SIZE = 4 * 1024 * 1024
POINTS = [
    "transaction.after_commit",
    "transaction.before_home_commit",
    "transaction.after_home_commit",
    "transaction.after_apply",
    "settler.after_ack",
]
"""Where every second driver kills itself; the others are killed from outside, when so much is acked."""

_EXECUTOR, _PYTHON_WORKER = 1, 3
"""How far below a worker of the cluster they are."""

Row = tuple[int, str, str]
Death = tuple[float, Callable[[], None]]


class Kills:
    """Everything that dies, by the id of its process, and how often."""

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster
        self._halted = 0
        self.count: Counter[str] = Counter()

    def python_worker(self) -> None:
        """One that runs tasks: below an executor are a daemon and, below that, its workers."""
        self._kill("Python worker", self._first(_PYTHON_WORKER))

    def executor(self) -> None:
        self._kill("executor", self._first(_EXECUTOR))

    def worker(self) -> None:
        """With its executor, which notices; another worker takes its place."""
        name = next(iter(self._cluster.workers))
        self._cluster.kill_worker(name)
        self.count["worker"] += 1
        self._cluster.start_worker()

    def halt(self) -> None:
        """A Python worker stops in its task, and its executor is lost: Spark gives the task to another one."""
        worker = self._first(_PYTHON_WORKER)
        parents = {each.pid: each.parent for each in processes(*self._cluster.workers.values())}
        daemon = parents.get(worker, 0)
        executor = parents.get(daemon, 0)
        # The daemon first, which would end its workers with their executor. The worker is stopped last: the kernel
        # ends a group with a stopped process when the last parent of the group ends.
        for pid in filter(None, (daemon, executor)):
            if _signal(pid, signal.SIGKILL):
                _wait_for_end(pid)
        self._halted = worker if daemon and _signal(worker, signal.SIGSTOP) else 0

    def revive(self) -> None:
        """It goes on as a zombie, and stages what another one has staged, and the driver committed, meanwhile."""
        if self._halted:
            self.count["zombie"] += _signal(self._halted, signal.SIGCONT)
            self._halted = 0

    def driver(self, process: subprocess.Popen[str]) -> None:
        self._kill("driver", process.pid)

    def _first(self, depth: int) -> int:
        """The first process that is so far below a worker of the cluster; there may be none for a while."""
        deadline = time.monotonic() + 300
        while True:
            generation = set(self._cluster.workers.values())
            below = processes(*generation)
            for _ in range(depth):
                generation = {each.pid for each in below if each.parent in generation}
            if generation:
                return min(generation)
            assert time.monotonic() < deadline, "the cluster has no executor at work"
            time.sleep(0.05)

    def _kill(self, what: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.count[what] += 1


def _signal(pid: int, number: int) -> bool:
    """False if there is no such process any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_for_end(pid: int) -> None:
    """Wait until a process that was killed has ended, though nobody may have asked how."""
    deadline = time.monotonic() + 300
    with suppress(OSError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < deadline, f"{pid} does not end"
            time.sleep(0.01)


class Soak:
    """Starts drivers until one comes to the end, and kills around them when so much is acked."""

    def __init__(self, folder: Path, url: str, cluster: SparkCluster) -> None:
        self._folder = folder
        self._url = url
        self._cluster = cluster
        self.kills = Kills(cluster)

    def endure(self) -> None:
        points = cycle(POINTS)
        for life in range(LIVES):
            if life % 2 == 0:
                self._killed_from_outside()
            else:
                self._killed_at(f"{next(points)}:{2 + life}")
        assert self._live(self._start({}), []) == 0, self._log()

    def _killed_from_outside(self) -> None:
        driver = self._start({})
        deaths = [*self._deaths(), (0.9, lambda: self.kills.driver(driver))]
        assert self._live(driver, deaths) == -signal.SIGKILL, self._log()
        assert not deaths

    def _killed_at(self, point: str) -> None:
        """By itself, between two steps of a transaction, with an executor lost before."""
        assert self._live(self._start({"CONDUIT_KILL_AT": point}), self._deaths()[:1]) == -signal.SIGKILL, self._log()
        self.kills.count["driver"] += 1

    def _deaths(self) -> list[Death]:
        """What dies in a life, and when: at which part of the records that it has for itself."""
        return [
            (0.1, self.kills.executor),
            (0.25, self.kills.halt),
            (0.4, self.kills.worker),
            (0.55, self.kills.python_worker),
            (0.7, self.kills.revive),
        ]

    def _live(self, driver: subprocess.Popen[str], deaths: list[Death]) -> int:
        """How a driver ended; what had to die is no longer in `deaths`."""
        share = RECORDS // (LIVES + 1)
        try:
            assert driver.stdout is not None
            for acked in driver.stdout:
                if deaths and int(acked) >= deaths[0][0] * share:
                    deaths.pop(0)[1]()
            return driver.wait()
        finally:
            driver.kill()
            driver.wait()
            self.kills.revive()

    def _start(self, fate: dict[str, str]) -> subprocess.Popen[str]:
        size = (self._folder / "in.jsonl").stat().st_size // (LIVES + 1) // PARTS_IN_A_LIFE
        arguments = [str(self._folder), self._cluster.url, self._url, str(min(size, PART_SIZE))]
        with (self._folder / "driver.log").open("a") as log:
            return WarmPython(
                [sys.executable, str(DRIVER), *arguments],
                preloaded=DRIVER_MODULES,
                env=os.environ | fate,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _log(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-5000:]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_every_record_is_there_once_whatever_was_killed(
    tmp_path: Path, postgres: str, mortal_cluster: SparkCluster
) -> None:
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(map(driver.line, range(RECORDS)))
    soak, started = Soak(tmp_path, postgres, mortal_cluster), time.monotonic()
    soak.endure()
    seconds = time.monotonic() - started
    kills = soak.kills.count
    print(
        f"{RECORDS} records in {seconds:.0f} s, {RECORDS / seconds:,.0f} a second, {kills.total()} kills: {dict(kills)}"
    )

    assert_same(in_database(postgres), expected())
    assert_same(in_files((tmp_path / "lake").glob("batch=*/*.parquet")), expected())
    assert_same(in_files((tmp_path / "dataset").glob("part-*")), expected())
    assert_same(in_order(DeltaTable(tmp_path / "delta").to_pyarrow_table()), expected())
    assert_same(in_files(iceberg_files(tmp_path / "iceberg")), expected())
    # Of tasks that died, of zombies and of drivers that were killed: nothing that was staged is left.
    patterns = ("dataset/_conduit", "delta/_conduit", "iceberg/**/_conduit")
    places = [place for pattern in patterns for place in tmp_path.glob(pattern)]
    assert len(places) == 3
    assert [path for place in places for path in place.glob("*/*")] == []
    assert staging_tables(postgres) == []
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert sorted(letter["record"]["payload"]["after"]["id"] for letter in letters) == [
        n for n in range(RECORDS) if not driver.is_filtered(n) and driver.is_refused(n)
    ]
    assert all(kills[what] >= LIVES for what in ("executor", "driver"))
    assert min(kills["worker"], kills["Python worker"]) >= 1
    # In one life chance decides whether a worker survives its daemon. A long run has a zombie.
    assert kills["zombie"] >= 1 or LIVES < 3


def expected() -> Iterator[Row]:
    """In the order of ids and parts."""
    for number in range(RECORDS):
        if not driver.is_filtered(number) and not driver.is_refused(number):
            order = json.loads(driver.line(number))
            for part in driver.parts(number):
                yield number, part, driver.checksum(number, part, order["user"], order["amount"])


def in_database(url: str) -> Iterator[Row]:
    with psycopg.connect(url) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 50_000
        yield from cursor.execute('SELECT id, part, digest FROM numbers ORDER BY id, part COLLATE "C"')


def staging_tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^conduit_stage_'")
        return [name for (name,) in found]


def iceberg_files(folder: Path) -> list[Path]:
    files = iceberg_table(folder).scan().plan_files()
    return [Path(task.file.file_path.removeprefix("file://")) for task in files]


def in_files(paths: Iterable[Path]) -> Iterator[Row]:
    """What a reader of a folder sees: names that begin with an underscore are not data."""
    return in_order(pa.concat_tables([pq.ParquetFile(path).read() for path in paths]))


def in_order(rows: pa.Table) -> Iterator[Row]:
    whole = rows.sort_by([("id", "ascending"), ("part", "ascending")])
    for batch in whole.to_batches(max_chunksize=50_000):
        yield from zip(*(batch.column(name).to_pylist() for name in ("id", "part", "digest")), strict=True)


def assert_same(found: Iterator[Row], expected: Iterator[Row]) -> None:
    """Row by row, so that the first one that is missing, doubled or wrong is named."""
    for number, (one, other) in enumerate(zip_longest(found, expected)):
        assert one == other, f"row {number}"


def _driver() -> Any:
    """The program beside this one: tests are no package, so it cannot be imported by name."""
    spec = importlib.util.spec_from_file_location("soak_driver", DRIVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


driver = _driver()
