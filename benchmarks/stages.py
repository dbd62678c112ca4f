"""`python -m benchmarks.stages`: what each stage of a batch costs, on a machine that is never quiet.

Every batch is cut into stages: the read, each processor, each write, and what is between them. Of each stage the time
is taken that one in twenty batches stays below, and these times are added up. A stage takes less than a millisecond, so
some of them are never disturbed, where a whole run always is. Batches that go another way than most are left out, such
as those that wait for a flush. What comes seldom is in none of them: the start, commits, flushes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from conduit_connectors import file

from benchmarks import report
from benchmarks.stretches import STYLES, file_loop_stretches, loop_stretches
from benchmarks.styles import Counting, Generated, GeneratedPayloads
from benchmarks.work import LOOP
from benchmarks.works import WORKS
from conduit_py.stream import plugin_calls
from conduit_py.stream.processor_node import ProcessorNode

MARKED: tuple[tuple[Any, str], ...] = (
    (Generated, "read"),
    (GeneratedPayloads, "read"),
    (file.Source, "read"),
    # Not every read needs a block of the file: those that do are the usual way.
    (file.Source, "_fill"),
    (ProcessorNode, "apply"),
    (Counting, "write"),
    (file.Destination, "write"),
)
Marks = list[tuple[str, float]]


@dataclass(frozen=True)
class Row:
    """The nanoseconds of a record: all stages of a contender together, or the loop."""

    work: str
    contender: str
    nanoseconds: float
    ratio: float
    """Speed against the loop."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.partition("\n")[0])
    parser.add_argument("works", nargs="*", default=["W1m", "W2m", "W1x2"], help="W1m, W2m and W1x2 by default")
    parser.add_argument("--records", type=int, default=600_000)
    report.add_arguments(parser)
    arguments = parser.parse_args()
    # A processor that was only interrupted must not be moved to a thread for it.
    plugin_calls.SLOW_SECONDS = 3600.0
    with report.Report(arguments, timed=False) as out:
        out.rows = rows = [row for work in arguments.works for row in measure_work(work, arguments.records)]
        out.text, out.svg = table(rows), ""
    return 0


def measure_work(work: str, records: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as folder:
        WORKS[work].prepare(records, Path(folder))
        stretches = (loop_stretches if work.startswith("W1") else file_loop_stretches)(records, Path(folder))
    loop = 1e9 * least(stretches)
    rows = [Row(work, LOOP, loop, 1.0)]
    for name in STYLES:
        with tempfile.TemporaryDirectory(prefix="conduit-bench-") as folder, marks_of_stages() as marks:
            WORKS[work].prepare(records, Path(folder))
            WORKS[work].contenders[name](records, Path(folder))
        nanoseconds = 1e9 * add_up(marks) / (records / sum(name == "read" for name, _ in marks))
        rows.append(Row(work, name, nanoseconds, loop / nanoseconds))
    return rows


@contextmanager
def marks_of_stages() -> Iterator[Marks]:
    """Note when each call begins and ends that a batch is cut by."""
    marks: Marks = []
    before = [getattr(owner, name) for owner, name in MARKED]

    def noted(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call_and_note(*args: Any, **named: Any) -> Any:
            marks.append((name, time.perf_counter()))
            try:
                return call(*args, **named)
            finally:
                marks.append((f"end of {name}", time.perf_counter()))

        return call_and_note

    for (owner, name), call in zip(MARKED, before, strict=True):
        setattr(owner, name, noted(call, name))
    try:
        yield marks
    finally:
        for (owner, name), call in zip(MARKED, before, strict=True):
            setattr(owner, name, call)


def add_up(marks: Marks) -> float:
    """The seconds of a batch if each stage took what one in twenty stays below, for the way that most batches take."""
    starts = [index for index, (name, _) in enumerate(marks) if name == "read"]
    ways: dict[tuple[str, ...], list[list[float]]] = {}
    for start, stop in pairwise(starts):
        batch = marks[start : stop + 1]
        times = [later - sooner for (_, sooner), (_, later) in pairwise(batch)]
        ways.setdefault(tuple(name for name, _ in batch), []).append(times)
    usual = max(ways, key=lambda way: len(ways[way]))
    return sum(least(stage) for stage in zip(*ways[usual], strict=True))


def least(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 20]


def table(rows: Sequence[Row]) -> str:
    lines: list[Sequence[str]] = []
    for row in rows:
        if lines and row.work != lines[-1][0]:
            lines.append(())
        lines.append((row.work, row.contender, f"{row.nanoseconds:.0f}", f"{row.ratio:.2f}"))
    return report.table(("", "contender", "ns", "× the loop"), lines) + "\n\nAbove 1 is cheaper than the loop."


if __name__ == "__main__":
    sys.exit(main())
