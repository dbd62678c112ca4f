"""`make bench-instructions`: how many instructions of the processor a record costs, whatever the load of the machine.

Valgrind counts the instructions of a whole process. Each contender runs twice, with few and with more records: the
difference, divided by the records that were more, has no imports, no start and no warm-up in it. Counts repeat to
about one per cent where times differ by twenty, so this settles what a clock cannot. The exit code is 1 if a
contender is above its limit, 2 without valgrind. A count is no time: instructions differ in what they cost.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import SLOWNESS_VARIABLE, report
from benchmarks.chart import Bar, bar_chart, stack
from benchmarks.measure import command, measure, own_copy, prepared
from benchmarks.work import CONTROL, LOOP
from benchmarks.works import GROUPS, WORKS

FEW, MORE = 4096, 16_384
SLOWNESS = 60
"""About how much longer a process takes under valgrind. Its clock goes as much slower, so it does the same work."""
LEFT_OUT = ("conduit-py, Arrow table", "DuckDB", "polars")
"""Valgrind does not support all of their instructions, or takes minutes for their start."""
LIMITS: dict[tuple[str, str], float] = {
    ("W1m", "conduit-py, records"): 1.59,
    ("W1m", "conduit-py, dict"): 1.27,
    ("W1m", "conduit-py, typed"): 1.05,
    ("W2m", "conduit-py, records"): 1.69,
    ("W2m", "conduit-py, dict"): 1.35,
    ("W2m", "conduit-py, typed"): 1.06,
    ("Gm", "conduit-py, YAML"): 0.99,
}
"""Instructions against the loop of the same run: more is a regression, to be explained or mended.

About 8 per cent above what was counted. Lower them after a change that makes a style cheaper.
"""


@dataclass(frozen=True)
class Row:
    """What a record costs one contender."""

    work: str
    contender: str
    instructions: float
    ratio: float
    """Against the loop: above 1 is more."""
    limit: float | None


def main() -> int:
    arguments = parse_arguments()
    if shutil.which("valgrind") is None:
        print("this needs valgrind, which is not installed: apt-get install valgrind", file=sys.stderr)
        return 2
    # Else every process compiles every module, under valgrind for minutes.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with report.Report(arguments, timed=False) as out:
        out.rows = rows = [row for work in arguments.works for row in count_work(work, arguments)]
        out.facts |= {"few": arguments.few, "more": arguments.more}
        out.text = table(rows)
        out.svg = stack([draw(work, rows) for work in arguments.works])
    above = [row for row in rows if row.limit is not None and row.ratio > row.limit]
    for row in above:
        print(f"{row.work}, {row.contender}: {row.ratio:.2f} × the loop, the limit is {row.limit}", file=sys.stderr)
    return 1 if above else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-instructions", description=__doc__.partition("\n")[0])
    counted = GROUPS["counted"]
    parser.add_argument("works", nargs="*", default=counted, help=f"{', '.join(counted)} by default")
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--more", type=int, default=MORE)
    parser.add_argument("--contenders", nargs="*", help="only those that have one of these words in their names")
    report.add_arguments(parser)
    return parser.parse_args()


def count_work(work: str, arguments: argparse.Namespace) -> list[Row]:
    words = arguments.contenders
    names = [name for name in WORKS[work].contenders if name not in LEFT_OUT]
    if words:
        names = [name for name in names if name == LOOP or any(word in name for word in words)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # All cores at once: a count is the same on a busy machine.
        counts = pool.map(lambda name: count_record(work, name, arguments.few, arguments.more), names)
        counted = dict(zip(names, counts, strict=True))
    return [Row(work, name, count, count / counted[LOOP], LIMITS.get((work, name))) for name, count in counted.items()]


def count_record(work: str, name: str, few: int, more: int) -> float:
    # Once without counting: the first to import a changed module compiles it, which is no part of a record.
    with prepared(work, few) as folder:
        measure(work, name, few, folder)
    return (count_process(work, name, more) - count_process(work, name, few)) / (more - few)


def count_process(work: str, name: str, records: int) -> int:
    """All instructions of a process that does the work once, those of its threads included."""
    with prepared(work, records) as folder, own_copy(folder) as own:
        result = folder / "callgrind.out"
        # The order of sets and dicts of text would be another in every process.
        environment = os.environ | {"PYTHONHASHSEED": "0", SLOWNESS_VARIABLE: str(SLOWNESS)}
        watched = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={result}", *command(work, name, records, own)]
        ran = subprocess.run(watched, capture_output=True, text=True, env=environment)
        if ran.returncode:
            raise SystemExit(f"{work}, {name} failed under valgrind:\n{ran.stderr[-4000:]}")
        return total_of(result)


def total_of(result: Path) -> int:
    found = re.search(r"^totals: (\d+)", result.read_text(), re.MULTILINE)
    assert found is not None, "callgrind ends its file with the total"
    return int(found[1])


def table(rows: Sequence[Row]) -> str:
    head = ("", "contender", "instructions/record", "× the loop", "limit")
    lines: list[Sequence[str]] = []
    for row in rows:
        if lines and row.work != lines[-1][0]:
            lines.append(())
        limit = "" if row.limit is None else f"{row.limit:.2f}"
        lines.append((row.work, row.contender, f"{row.instructions:,.0f}", f"{row.ratio:.2f}", limit))
    return f"{report.table(head, lines)}\n\n{CONTROL!r} is the A/A control."


def draw(work: str, rows: Sequence[Row]) -> str:
    bars = [Bar(row.contender, row.ratio, row.ratio, row.ratio) for row in rows if row.work == work]
    return bar_chart(f"{work}: instructions of a record", "the loop = 1; less is better", bars, mark=1.0)


if __name__ == "__main__":
    sys.exit(main())
