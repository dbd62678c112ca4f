"""`make bench-memory`: does memory stay flat with ten times the records, and when a destination takes nothing?

Memory is the peak of resident memory above what the process had before its contender began, with everything imported.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import trio

import conduit_py
from benchmarks import report
from benchmarks.chart import Bar, bar_chart
from benchmarks.measure import measure, prepared
from benchmarks.once import memory_mb
from benchmarks.styles import STYLES
from benchmarks.work import CONTROL, LOOP
from conduit_py import Batch, Destination, Pipeline, Source, sdk

WORKS_MEASURED = ("W1", "W2")
TIMES = (1, 10)
UNENDING = 2**62
GOAL_MB = 64


class StuckOptions(sdk.Options):
    """None."""


class Stuck(sdk.DestinationConnector[StuckOptions]):
    """Never finishes its first write."""

    async def write(self, batch: Batch) -> None:
        await trio.sleep_forever()


@dataclass(frozen=True)
class Row:
    """The most memory that one contender took above its start, in all rounds."""

    case: str
    contender: str
    records: int
    above_mb: float
    before_mb: float


def main() -> int:
    arguments = parse_arguments()
    if arguments.blocked:
        print(json.dumps(trio.run(measure_blocked, arguments.blocked, arguments.seconds)))
        return 0
    with report.Report(arguments) as out:
        out.rows = rows = measure_growth(arguments) + measure_all_blocked(arguments)
        out.facts |= {"rounds": arguments.rounds}
        out.text = table(rows)
        out.svg = bar_chart(
            "M: memory above the interpreter with everything imported",
            "MB of resident memory at its peak",
            [Bar(f"{row.contender}: {row.case}", row.above_mb, row.above_mb, row.above_mb) for row in rows],
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-memory", description=__doc__.partition("\n")[0])
    parser.add_argument("--works", nargs="*", default=list(WORKS_MEASURED))
    parser.add_argument("--records", type=int, default=200_000, help="and ten times as many")
    parser.add_argument("--styles", nargs="*", choices=list(STYLES), default=list(STYLES))
    parser.add_argument("--seconds", type=float, default=3.0, help="how long nothing more may be read, to be full")
    parser.add_argument("--blocked", metavar="STYLE", choices=list(STYLES), help="only this one, in this process")
    report.add_arguments(parser, rounds=2)
    return parser.parse_args()


def measure_growth(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    names = [LOOP, CONTROL, *(f"conduit-py, {style}" for style in arguments.styles)]
    for work in arguments.works:
        for times in TIMES:
            records = times * arguments.records
            with prepared(work, records) as folder:
                for name in names:
                    measured = [measure(work, name, records, folder) for _ in range(arguments.rounds)]
                    above = max(each.memory_mb - each.memory_before_mb for each in measured)
                    before = max(each.memory_before_mb for each in measured)
                    rows.append(Row(f"{work} × {times}", name, records, above, before))
    return rows


def measure_all_blocked(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for style in arguments.styles:
        command = [sys.executable, "-m", "benchmarks.memory", "--blocked", style, "--seconds", str(arguments.seconds)]
        rounds = [
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
            for _ in range(arguments.rounds)
        ]
        most = max(rounds, key=lambda each: float(each["above_mb"]))
        rows.append(Row("blocked", f"conduit-py, {style}", most["records"], most["above_mb"], most["before_mb"]))
    return rows


async def measure_blocked(style: str, seconds: float) -> dict[str, float]:
    """Read until back-pressure has held for so many seconds; say how much was read and what it takes."""
    before = memory_mb("VmRSS")
    pipeline = Pipeline(
        "blocked",
        sources=[Source("generated", STYLES[style].source(records=UNENDING))],
        processors=STYLES[style].from_text,
        destinations=[Destination("stuck", Stuck())],
    )
    async with conduit_py.running(pipeline) as handle:
        read, since = 0, time.monotonic()
        while time.monotonic() - since < seconds or not read:
            await trio.sleep(0.05)
            now = (await handle.counts()).read
            if now != read:
                read, since = now, time.monotonic()
        handle.stop(force=True)
    return {"records": read, "above_mb": memory_mb("VmHWM") - before, "before_mb": before}


def table(rows: Sequence[Row]) -> str:
    head = ("case", "contender", "records", "above the start", "at the start")
    lines: list[Sequence[str]] = []
    for row in rows:
        if lines and row.case != lines[-1][0]:
            lines.append(())
        lines.append((row.case, row.contender, f"{row.records:,}", f"{row.above_mb:.1f} MB", f"{row.before_mb:.0f} MB"))
    about = (
        f"{CONTROL!r} is the A/A control. Blocked: the records are those that were read before back-pressure held.\n"
        f"Goal: at most {GOAL_MB} MB above the start, whatever the number of records."
    )
    return f"{report.table(head, lines)}\n\n{about}"


if __name__ == "__main__":
    sys.exit(main())
