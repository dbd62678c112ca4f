"""`make bench-spark`: what Spark costs and gives, as ratios within one run, each beside its goal.

Every part is a process with a Spark session of its own, in which contenders take turns; loops run in processes of their
own between them. Ratios are taken within a round, and the median is printed with the smallest and largest.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.spark_measure import Line, say
from benchmarks.spark_part import PARTS

ROOT = Path(__file__).parent.parent


def main() -> int:
    arguments = parse_arguments()
    started = time.monotonic()
    found = {part: lines_of(part, arguments) for part in arguments.parts}
    if arguments.json:
        print(json.dumps({part: [as_json(line) for line in lines] for part, lines in found.items()}))
    else:
        print_table(found, arguments, time.monotonic() - started)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"all by default: {', '.join(PARTS)}")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    return arguments


def lines_of(part: str, arguments: argparse.Namespace) -> list[Line]:
    say(f"{part}: {(PARTS[part].__doc__ or '').strip()}")
    # Executors of the cluster import the work from here.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks.spark_part", part, str(arguments.records), str(arguments.rounds)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {"PYTHONPATH": path})
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=list[Line])


def as_json(line: Line) -> dict[str, object]:
    return {"name": line.name, "median": line.median, "values": line.values, "goal": line.goal, "met": line.met}


def print_table(found: dict[str, list[Line]], arguments: argparse.Namespace, seconds: float) -> None:
    load = os.getloadavg()[1]
    print(f"{arguments.records:,} records, {arguments.rounds} rounds, {seconds:.0f} s, load {load:.1f}\n")
    width = max(len(line.name) for lines in found.values() for line in lines)
    for part, lines in found.items():
        print(part)
        for line in lines:
            digits = {"x": 2, "µs": 1}.get(line.unit, 0)
            spread = f"({min(line.values):.{digits}f}–{max(line.values):.{digits}f})"
            verdict = ("met" if line.met else "MISSED") if line.goal else ""
            print(
                f"  {line.name:{width}} {line.median:7.{digits}f} {line.unit:2} {spread:>15}  {line.goal:>8}  {verdict}"
            )


if __name__ == "__main__":
    sys.exit(main())
