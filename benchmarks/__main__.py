"""`make bench`: run works side by side and print ratios to the plain loop. `README.md` says what is measured."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import report
from benchmarks.chart import Bar, Line, bar_chart, line_chart, stack
from benchmarks.measure import Row, chosen_contenders, run_rounds, summarise
from benchmarks.work import CONTROL
from benchmarks.works import GROUPS, WORKS

ABOUT = f"""Ratios are speed against the loop of the same round: above 1 costs less CPU or wall time than the loop.
"best" is the least CPU of the loop in any round by the least of the contender.
{CONTROL!r} is the A/A control: what differs by less than its spread is not resolved, nor is, in "best", what differs
by less than its distance from 1."""


def main() -> int:
    arguments = parse_arguments()
    rows: list[Row] = []
    with report.Report(arguments) as out:
        for work in chosen(arguments.works):
            records = arguments.records or WORKS[work].records
            names = chosen_contenders(work, arguments.contenders)
            rows += summarise(work, run_rounds(work, names, records, arguments.rounds))
        out.facts |= {"rounds": arguments.rounds}
        out.rows = rows
        out.svg = stack(draw(rows))
        out.text = table(rows)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    names = f"works ({', '.join(WORKS)}) or groups ({', '.join(GROUPS)}); works by default"
    parser.add_argument("works", nargs="*", default=["works"], help=names)
    parser.add_argument("--records", type=int, help="500 000 by default, 100 000 for growth")
    parser.add_argument("--contenders", nargs="*", help="only those that have one of these words in their names")
    report.add_arguments(parser, rounds=10)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.works if name not in WORKS | GROUPS]
    if unknown:
        parser.error(f"there is no {', '.join(map(repr, unknown))}: {names}")
    return arguments


def chosen(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(work for name in names for work in GROUPS.get(name, [name])))


def table(rows: Sequence[Row]) -> str:
    head = ("", "contender", "CPU ratio", "(min–max)", "best", "wall", "CPU/record", "records/s", "records", "memory")
    lines: list[Sequence[str]] = []
    for row in rows:
        new = not lines or row.work != lines[-1][0]
        if new and lines:
            lines.append(())
        lines.append(
            (
                row.work,
                row.contender,
                f"{row.cpu_ratio:.2f}",
                f"({row.cpu_ratio_min:.2f}–{row.cpu_ratio_max:.2f})",
                f"{row.cpu_ratio_best:.2f}",
                f"{row.wall_ratio:.2f}",
                f"{row.cpu_microseconds:.2f} µs",
                f"{row.records_per_second:,.0f}",
                f"{row.records:,}",
                f"{row.memory_mb:.0f} MB",
            )
        )
    return f"{report.table(head, lines)}\n\n{ABOUT}"


def draw(rows: Sequence[Row]) -> list[str]:
    """A bar chart for each work, and a line chart for each axis of growth."""
    charts, axes = [], dict[str, list[Row]]()
    for name in dict.fromkeys(row.work for row in rows):
        axis, _, at = name.partition(" ")
        if at:
            axes.setdefault(axis, []).extend(row for row in rows if row.work == name)
            continue
        bars = [
            Bar(row.contender, row.cpu_ratio, row.cpu_ratio_min, row.cpu_ratio_max, row.cpu_ratio_best)
            for row in rows
            if row.work == name
        ]
        unit = "speed by CPU, the loop = 1; a dot is that of the best rounds"
        charts.append(bar_chart(f"{name}: {WORKS[name].title}", unit, bars, mark=1.0))
    for axis, some in axes.items():
        lines = [
            Line(name, [(float(r.work.partition(" ")[2]), r.cpu_microseconds) for r in some if r.contender == name])
            for name in dict.fromkeys(row.contender for row in some)
        ]
        charts.append(line_chart(f"growth: {axis}", "µs of CPU a record", lines))
    return charts


if __name__ == "__main__":
    sys.exit(main())
