"""Does more input take more time a row, or more memory? One, two and four times as many rows in a warm session."""

import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from process_tree import peak_mb, processes, reset_peaks
from pyspark.sql import SparkSession

from benchmarks.spark_engine import run
from benchmarks.spark_measure import ROLES, Line, Meter, Role, role_of
from benchmarks.workload import write_input
from conduit_py.spark.session.shared_session import SparkOptions

SIZES = (1, 2, 4)


def lines(session: SparkSession, options: SparkOptions, folder: Path, records: int, turns: int) -> list[Line]:
    """Seconds a row and peaks in relation to those of the smallest size of the same round."""
    meter, out = Meter(), folder / "out.jsonl"
    for size in SIZES:
        write_input(folder / f"{size}.jsonl", size * records)
    for size in (1, 4):
        run(folder / f"{size}.jsonl", out, "exactly_once", options)
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    peaks: dict[int, list[dict[Role, float]]] = {size: [] for size in SIZES}
    for _ in range(turns):
        for size in SIZES:
            _collect_garbage(session)
            reset_peaks(processes(os.getpid()))
            used = meter.used(partial(run, folder / f"{size}.jsonl", out, "exactly_once", options))
            seconds[size].append(used.seconds / (size * records))
            peaks[size].append(_peaks())
    found = [
        Line(
            f"time a row, {size}× rows ÷ 1×", [b / a for a, b in zip(seconds[1], seconds[size], strict=True)], most=1.1
        )
        for size in SIZES[1:]
    ]
    return found + [_line(role, size, peaks) for role in ROLES for size in SIZES]


def _line(role: Role, size: int, peaks: dict[int, list[dict[Role, float]]]) -> Line:
    """Of the largest size the goal is relative to the smallest: a quarter more, for the heap of Java is lazy."""
    goal = 1.25 * statistics.median(each[role] for each in peaks[1]) if size == SIZES[-1] else None
    return Line(f"peak memory, {role}, {size}× rows", [each[role] for each in peaks[size]], "MB", most=goal)


def _peaks() -> dict[Role, float]:
    """The driver's Python, its Java, and all Python workers together."""
    found = dict.fromkeys(ROLES, 0.0)
    for each in processes(os.getpid()):
        found[role_of(each)] += peak_mb(each.pid)
    return found


def _collect_garbage(session: SparkSession) -> None:
    java: Any = session._jvm
    java.System.gc()
