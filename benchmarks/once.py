"""One contender, once, in this process: prints what it measured as JSON."""

import gc
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.works import WORKS

WARM_UP_RECORDS = 2000


@dataclass(frozen=True)
class Measurement:
    """One contender in one round."""

    records: int
    seconds: float
    cpu_seconds: float
    """Of all threads, and of the processes that it started and that have ended: one decodes Parquet."""
    memory_mb: float
    """The peak of resident memory."""
    memory_before_mb: float
    """Resident memory before the contender began, with everything imported."""
    at_sink: int
    output_digest: str


def measure_here(work: str, name: str, records: int, folder: Path, *, warm_up: int = WARM_UP_RECORDS) -> Measurement:
    """`folder` holds the input twice: that of the run in `run`, and a little in `warm-up`."""
    contender = WORKS[work].contenders[name]
    before = memory_mb("VmRSS")
    # Imports, caches and first calls are no part of what a record costs.
    contender(warm_up, folder / "warm-up")
    gc.collect()
    started, cpu = time.perf_counter(), _cpu_seconds()
    count = contender(records, folder / "run")
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu
    peak = memory_mb("VmHWM")
    # Counting and comparing the output is no contender's work: it comes after the clock, for all of them.
    return Measurement(records, seconds, cpu_seconds, peak, before, count(), WORKS[work].digest(folder / "run"))


def _cpu_seconds() -> float:
    # Not `os.times`: its clock ticks a hundred times a second, and a small round takes less.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def memory_mb(field: str) -> float:
    """Resident memory of this process: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    work, name, records, folder = sys.argv[1:]
    print(json.dumps(asdict(measure_here(work, name, int(records), Path(folder)))))
