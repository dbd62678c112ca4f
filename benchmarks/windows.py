"""Windows against those of bytewax on the same work: amounts summed by key in tumbling windows, from file to file.

    python -m benchmarks.windows --records 100000 --rounds 5

A ratio is the CPU of bytewax divided by ours in the same round: 1 is as little as bytewax. Both continue after a crash:
bytewax with a recovery store and an epoch a second, ours exactly once. bytewax against itself says how much is noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SIZE_SECONDS = 60
KEYS = 100
STEP_SECONDS = 0.05


def make_input(path: Path, records: int) -> None:
    with path.open("w") as lines:
        for number in range(records):
            # Out of order by up to two seconds, as if by several writers.
            at = number * STEP_SECONDS - number % 7 * 0.3
            lines.write(json.dumps({"user": f"user-{number * 7919 % KEYS}", "at": at, "amount": number % 100}) + "\n")


def run_conduit(folder: Path) -> None:
    from conduit_connectors import clock, file
    from conduit_processors import window

    import conduit_py
    from conduit_py import Pipeline

    pipeline = Pipeline(
        "windows",
        sources={"in": file.Source(path=folder / "in.jsonl", format="json"), "clock": clock.Source()},
        processors=[
            window.Tumbling(
                time="at", key="user", size_seconds=SIZE_SECONDS, aggregate={"total": "sum(amount)"},
                out_of_order_seconds=2, clock="clock",
            )
        ],
        destinations={"out": file.Destination(path=folder / "out.jsonl", format="json")},
        delivery="exactly_once",
    )  # fmt: skip
    outcome = conduit_py.run(pipeline, state=folder / "state")
    assert outcome.error is None, outcome


def run_bytewax(folder: Path) -> None:
    import bytewax.operators as op
    import bytewax.operators.windowing as windowing
    import msgspec
    from bytewax.connectors.files import FileSink, FileSource
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    decode, encode = msgspec.json.decode, msgspec.json.encode
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    clock: Any = windowing.EventClock(
        ts_getter=lambda row: epoch + timedelta(seconds=row["at"]), wait_for_system_duration=timedelta(seconds=2)
    )
    windower = windowing.TumblingWindower(length=timedelta(seconds=SIZE_SECONDS), align_to=epoch)
    flow = Dataflow("windows")
    lines = op.input("in", flow, FileSource(folder / "in.jsonl", batch_size=1000))
    rows = op.key_on("key", op.map("decode", lines, decode), lambda row: row["user"])
    summed = windowing.fold_window(
        "sum", rows, clock, windower, lambda: 0, lambda total, row: total + row["amount"], lambda one, two: one + two
    )
    out = op.map("encode", summed.down, lambda each: (each[0], encode([each[0], *each[1]]).decode()))
    op.output("out", out, FileSink(folder / "out.jsonl"))
    (folder / "recovery").mkdir()
    init_db_dir(folder / "recovery", 1)
    recovery = RecoveryConfig(str(folder / "recovery"))
    run_main(flow, epoch_interval=timedelta(seconds=1), recovery_config=recovery)


def measure(engine: str, records: int) -> float:
    """Return the CPU seconds of one run, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_input(folder / "in.jsonl", records)
        command = [sys.executable, "-m", "benchmarks.windows", "--one", engine, "--folder", name]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        total = sum(_total(line) for line in (folder / "out.jsonl").read_text().splitlines())
        assert total == sum(number % 100 for number in range(records)), f"{engine}: {total}"
        return float(ran.stdout.split()[-1])


def _total(line: str) -> int:
    row = json.loads(line)
    return int(row["total"] if isinstance(row, dict) else row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=["conduit", "bytewax"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        run = run_conduit if given.one == "conduit" else run_bytewax
        # A short run first: what is measured is the work, not the imports.
        warm = given.folder / "warm"
        warm.mkdir()
        make_input(warm / "in.jsonl", 100)
        run(warm)
        started = time.process_time()
        run(given.folder)
        print(time.process_time() - started)
        return
    rounds = [
        (measure("bytewax", given.records), measure("conduit", given.records), measure("bytewax", given.records))
        for _ in range(given.rounds)
    ]
    for name, ratios in (
        ("bytewax / conduit", [first / ours for first, ours, _ in rounds]),
        ("bytewax / bytewax", [first / again for first, _, again in rounds]),
    ):
        print(f"{name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"CPU of conduit: {statistics.median(ours for _, ours, _ in rounds) / given.records * 1e6:.1f} µs a record")


if __name__ == "__main__":
    main()
