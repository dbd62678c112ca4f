"""`make bench-stretches`: what a record costs while nobody disturbs, also on a busy machine.

A run is cut into stretches of some batches, and those of the plain loop have as many records. The CPU time of each is
taken. On a busy machine others empty the caches of most stretches, but not of the quickest. Compared are the quickest
of all, and that of which one in twenty is quicker. What comes seldom, such as a commit, is in few stretches, so a
ratio of `make bench` on a quiet machine is a little lower.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from conduit_connectors import file

from benchmarks import report
from benchmarks.styles import Generated, GeneratedPayloads
from benchmarks.work import CONTROL, LOOP
from benchmarks.workload import cents, dropped, raw
from benchmarks.works import WORKS
from conduit_py import defaults
from conduit_py.stream import plugin_calls

BATCHES = 4
"""In a stretch: the blocks of a file and the batches of its lines do not begin together."""
RECORDS = defaults.BATCH_SIZE * BATCHES
STYLES = ("conduit-py, records", "conduit-py, dict", "conduit-py, typed")


@dataclass(frozen=True)
class Row:
    """The stretches of a contender: the nanoseconds of a record, and the speed against the loop."""

    work: str
    contender: str
    stretches: int
    quickest: float
    one_in_twenty: float
    ratio: float
    ratio_one_in_twenty: float


def main() -> int:
    arguments = parse_arguments()
    # A processor that was only interrupted must not be moved to a thread for it.
    plugin_calls.SLOW_SECONDS = 3600.0
    with report.Report(arguments, timed=False) as out:
        out.rows = rows = [row for work in arguments.works for row in measure_work(work, arguments)]
        out.text, out.svg = table(rows), ""
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-stretches", description=__doc__.partition("\n")[0])
    parser.add_argument("works", nargs="*", default=["W1m", "W2m"], help="W1m and W2m by default")
    parser.add_argument("--records", type=int, default=81_920)
    report.add_arguments(parser, rounds=4)
    return parser.parse_args()


def measure_work(work: str, arguments: argparse.Namespace) -> list[Row]:
    loop = loop_stretches if work.startswith("W1") else file_loop_stretches
    found: dict[str, list[float]] = {name: [] for name in (LOOP, CONTROL, *STYLES)}
    for _ in range(arguments.rounds):
        for name, stretches in found.items():
            with tempfile.TemporaryDirectory(prefix="conduit-bench-") as folder:
                WORKS[work].prepare(arguments.records, Path(folder))
                if name in STYLES:
                    with marks_of_reads() as marks:
                        WORKS[work].contenders[name](arguments.records, Path(folder))
                    stretches += between(marks)
                else:
                    stretches += loop(arguments.records, Path(folder))
    low = {name: (min(each), sorted(each)[len(each) // 20]) for name, each in found.items()}
    return [
        Row(
            work,
            name,
            len(found[name]),
            1e9 * low[name][0],
            1e9 * low[name][1],
            low[LOOP][0] / low[name][0],
            low[LOOP][1] / low[name][1],
        )
        for name in found
    ]


@contextmanager
def marks_of_reads() -> Iterator[list[tuple[float, int]]]:
    """Note when each read begins, and how many records it returns."""
    marks: list[tuple[float, int]] = []
    sources: tuple[Any, ...] = (Generated, GeneratedPayloads, file.Source)
    before = [source.read for source in sources]

    def noted(read: Callable[..., Any]) -> Callable[..., Any]:
        def read_and_note(self: Any, n: int) -> Any:
            started = time.process_time()
            records = read(self, n)
            marks.append((started, len(records)))
            return records

        return read_and_note

    for source, read in zip(sources, before, strict=True):
        source.read = noted(read)
    try:
        yield marks
    finally:
        for source, read in zip(sources, before, strict=True):
            source.read = read


def between(marks: Sequence[tuple[float, int]]) -> list[float]:
    """The seconds of a record in every stretch: from the begin of a read to that of the fourth after it."""
    ends = marks[BATCHES::BATCHES]
    counts = [sum(count for _, count in marks[at : at + BATCHES]) for at in range(0, len(marks), BATCHES)]
    return [
        (end[0] - begin[0]) / count for begin, end, count in zip(marks[::BATCHES], ends, counts, strict=False) if count
    ]


def loop_stretches(records: int, folder: Path) -> list[float]:
    """The plain loop of W1."""
    found = []
    for first in range(0, records, RECORDS):
        started = time.process_time()
        for number in range(first, first + RECORDS):
            order = orjson.loads(raw(number))
            order["cents"] = cents(order)
            if dropped(order):
                continue
        found.append((time.process_time() - started) / RECORDS)
    return found


def file_loop_stretches(records: int, folder: Path) -> list[float]:
    """The plain loop of W2."""
    found, started = [], time.process_time()
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        for number, line in enumerate(source, 1):
            order = orjson.loads(line)
            order["cents"] = cents(order)
            if not dropped(order):
                out.write(orjson.dumps(order) + b"\n")
            if number % RECORDS == 0:
                ended = time.process_time()
                found.append((ended - started) / RECORDS)
                started = ended
    return found


def table(rows: Sequence[Row]) -> str:
    head = ("", "contender", "stretches", "quickest, ns", "one in 20, ns", "× the loop", "one in 20")
    lines: list[Sequence[str]] = []
    for row in rows:
        if lines and row.work != lines[-1][0]:
            lines.append(())
        figures = f"{row.stretches}", f"{row.quickest:.0f}", f"{row.one_in_twenty:.0f}"
        lines.append((row.work, row.contender, *figures, f"{row.ratio:.2f}", f"{row.ratio_one_in_twenty:.2f}"))
    return f"{report.table(head, lines)}\n\n{CONTROL!r} is the A/A control. Above 1 is cheaper than the loop."


if __name__ == "__main__":
    sys.exit(main())
