"""`make bench`: run the works side by side and print ratios to the plain loop.

Every measurement is a process of its own, the contenders of a work take turns, and the ratio of a round
is taken within that round, so that a machine that slows down slows all of them. `loop again` is the A/A
control: differences smaller than its spread mean nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workload import write_input

CONTROL = "loop again"


@dataclass(frozen=True)
class Measurement:
    """One contender in one round."""

    records_per_second: float
    cpu_seconds: float
    memory_mb: float
    at_sink: int
    output_digest: str


@dataclass(frozen=True)
class Row:
    """What is known about a contender after all rounds. Ratios are speed against the loop of the same round."""

    work: str
    contender: str
    ratio: float
    ratio_min: float
    ratio_max: float
    records_per_second: float
    cpu_ratio: float
    memory_mb: float


def main() -> int:
    arguments = parse_arguments()
    rows: list[Row] = []
    started = time.monotonic()
    for work in arguments.works:
        rounds = [run_round(work, arguments) for _ in range(arguments.rounds)]
        rows += summarise(work, rounds)
    if arguments.json:
        print(json.dumps({"records": arguments.records, "rounds": arguments.rounds, "rows": [asdict(r) for r in rows]}))
    else:
        print_table(rows, arguments, time.monotonic() - started)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("works", nargs="*", default=["W1", "W2", "W3", "W4", "W5"], help="all by default")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run_round(work: str, arguments: argparse.Namespace) -> dict[str, Measurement]:
    from benchmarks.contenders import WORKS

    round_ = {}
    with tempfile.TemporaryDirectory() as folder:
        if work == "W2":
            write_input(Path(folder) / "in.jsonl", arguments.records)
        for name in WORKS[work]:
            round_[name] = measure(work, name, arguments.records, Path(folder))
    digests = {measurement.output_digest for measurement in round_.values()}
    sinks = {measurement.at_sink for measurement in round_.values()}
    assert len(sinks) == 1, f"{work}: the contenders did not do the same work: {sinks}"
    assert len(digests) == 1, f"{work}: the contenders wrote different bytes"
    return round_


def measure(work: str, name: str, records: int, folder: Path) -> Measurement:
    """Run one contender in a process of its own, on a folder of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        if work == "W2":
            (Path(own) / "in.jsonl").hardlink_to(folder / "in.jsonl")
        command = [sys.executable, "-m", "benchmarks.once", work, name, str(records), own]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Measurement(**json.loads(ran.stdout))


def summarise(work: str, rounds: list[dict[str, Measurement]]) -> list[Row]:
    rows = []
    for name in rounds[0]:
        ratios = [each[name].records_per_second / each["loop"].records_per_second for each in rounds]
        rows.append(
            Row(
                work=work,
                contender=name,
                ratio=statistics.median(ratios),
                ratio_min=min(ratios),
                ratio_max=max(ratios),
                records_per_second=statistics.median(each[name].records_per_second for each in rounds),
                cpu_ratio=statistics.median(each[name].cpu_seconds / each["loop"].cpu_seconds for each in rounds),
                memory_mb=max(each[name].memory_mb for each in rounds),
            )
        )
    return rows


def print_table(rows: list[Row], arguments: argparse.Namespace, seconds: float) -> None:
    print(f"{arguments.records:,} records, {arguments.rounds} rounds, {seconds:.0f} s; speed as a ratio to the loop\n")
    print(f"{'':4} {'contender':30} {'ratio':>6} {'(min–max)':>13} {'records/s':>11} {'CPU':>6} {'memory':>8}")
    for row in rows:
        spread = f"({row.ratio_min:.2f}–{row.ratio_max:.2f})"
        rate = f"{row.records_per_second:,.0f}"
        print(
            f"{row.work:4} {row.contender:30} {row.ratio:6.2f} {spread:>13} {rate:>11} "
            f"{row.cpu_ratio:5.2f}x {row.memory_mb:5.0f} MB"
        )
    print(f"\n{CONTROL!r} is the same loop once more: differences within its spread are not resolved.")


if __name__ == "__main__":
    sys.exit(main())
