"""`make bench-latency`: how long single records take from read to ack, idle and at steady rates.

Idle: the next record is read some milliseconds after the last one was acked. At a rate, records are due at equal
distances, and every read returns those that are due. So none can hide behind a late pipeline. Beside the idle pipeline,
commits of SQLite alone: what the disk takes of its time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

import conduit_py
from benchmarks import report
from benchmarks.chart import Bar, bar_chart
from benchmarks.styles import STYLES, Counting, GeneratedPayloads
from benchmarks.workload import raw
from conduit_py import Destination, Payload, Pipeline, Record, Source, Status, sdk
from conduit_py.store.sqlite.database import StateDatabase

RATES = (0, 1000, 20_000, 50_000)
"""Records a second; 0 is one at a time, idle between them."""
STORES = ("memory", "memory again", "SQLite")
"""The second is the A/A control."""
COMMIT = "commit alone"
"""The statement that stores a position, as often as records come idle, without a pipeline."""
GOALS = "Goals: idle p50 0.5 ms; idle p99 1 ms in memory, 3 ms in SQLite; p99 5 ms at 20,000/s."
IDLE_SECONDS = 0.005
WARM_UP_SHARE = 0.1
"""The first records are not counted: tasks start, files are made."""


class PacedOptions(sdk.Options):
    """How many records, how quickly, and where to note what happened."""

    records: int
    rate: float
    notes: Any
    in_columns: bool = False
    """Return payloads, as the source of the style does."""


class Notes:
    """When records were due and read, and when they were acked, in seconds."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, float]] = []
        """The first number, the one after the last, and when they were read."""
        self.acks: list[tuple[int, float]] = []
        """The number up to which all are acked, and since when."""
        self.began = 0.0

    def waits(self) -> list[float]:
        """From read to ack, by number."""
        read_at = [at for first, stop, at in self.reads for _ in range(first, stop)]
        return [acked - read for acked, read in zip(self._acked_at(), read_at, strict=True)]

    def delays(self, rate: float) -> list[float]:
        """From the moment when a record was due to its ack, by number."""
        return [acked - (self.began + number / rate) for number, acked in enumerate(self._acked_at())]

    def _acked_at(self) -> list[float]:
        times: list[float] = []
        for last, at in self.acks:
            times += [at] * (last + 1 - len(times))
        return times


class Paced(sdk.SourceConnector[PacedOptions]):
    """Records at a rate, or each some time after the ack of the one before."""

    async def open(self, position: bytes | None) -> None:
        self._next = 0
        self._acked = trio.Event()
        self._acked.set()
        self.options.notes.began = time.perf_counter()

    async def read(self, n: int) -> sdk.Records:
        if self._next == self.options.records:
            raise sdk.EndOfSource
        count = await (self._wait_until_due(n) if self.options.rate else self._wait_until_idle())
        first, self._next = self._next, min(self._next + count, self.options.records)
        numbers = range(first, self._next)
        made: sdk.Records
        if self.options.in_columns:
            made = sdk.Payloads(list(map(raw, numbers)), sdk.Positions(b"%d", numbers), bytes)
        else:
            made = [Record(position=b"%d" % number, payload=Payload(after=raw(number))) for number in numbers]
        self.options.notes.reads.append((first, self._next, time.perf_counter()))
        return made

    async def ack(self, positions: Sequence[bytes]) -> None:
        self.options.notes.acks.append((int(positions[-1]), time.perf_counter()))
        self._acked.set()

    async def _wait_until_idle(self) -> int:
        await self._acked.wait()
        self._acked = trio.Event()
        await trio.sleep(IDLE_SECONDS)
        return 1

    async def _wait_until_due(self, n: int) -> int:
        while True:
            elapsed = time.perf_counter() - self.options.notes.began
            due = int(elapsed * self.options.rate) - self._next
            if due > 0:
                await trio.lowlevel.checkpoint()
                return min(n, due)
            await trio.sleep((self._next + 1) / self.options.rate - elapsed)


@dataclass(frozen=True)
class Row:
    """Milliseconds from read to ack, medians over all rounds."""

    style: str
    store: str
    rate: int
    records: int
    reached_rate: float
    p5_ms: float
    p50_ms: float
    p50_min_ms: float
    p50_max_ms: float
    p99_ms: float
    most_ms: float
    due_p99_ms: float | None
    """From the moment when the record was due, which includes its wait for a read."""


def main() -> int:
    arguments = parse_arguments()
    if arguments.once:
        style, store, rate = arguments.once
        print(json.dumps(measure_here(style, store, int(rate), arguments.seconds, arguments.idle_records)))
        return 0
    with report.Report(arguments) as out:
        out.rows = rows = measure(arguments)
        out.facts |= {"rounds": arguments.rounds, "seconds": arguments.seconds}
        out.text = table(rows)
        out.svg = bar_chart(
            "L: latency of single records",
            "milliseconds from read to ack: the bar is p50, the line reaches to p99",
            [Bar(f"{row.style}, {row.store}, {pace(row.rate)}", row.p50_ms, row.p50_ms, row.p99_ms) for row in rows],
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-latency", description=__doc__.partition("\n")[0])
    parser.add_argument("--styles", nargs="*", choices=list(STYLES), default=["dict"])
    parser.add_argument("--rates", nargs="*", type=int, default=list(RATES), help="records a second; 0 is idle")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is kept")
    parser.add_argument("--idle-records", type=int, default=300)
    parser.add_argument("--once", nargs=3, metavar=("STYLE", "STORE", "RATE"), help="measure once, in this process")
    report.add_arguments(parser, rounds=3)
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Every store in turn, each time in a process of its own; then the next round."""
    cases = [(style, rate) for style in arguments.styles for rate in arguments.rates]
    rows = []
    for style, rate in cases:
        stores = STORES if rate else (*STORES, COMMIT)
        rounds: dict[str, list[dict[str, Any]]] = {store: [] for store in stores}
        for number in range(arguments.rounds):
            # The whole takes minutes: somebody who waits wants to see that it goes on.
            print(f"{style}, {pace(rate)}: round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for store in stores[:: -1 if number % 2 else 1]:
                rounds[store].append(_measure_once(style, store, rate, arguments))
        rows += (done := [_summarise(style, store, rate, some) for store, some in rounds.items()])
        # If it is ended early, what was measured until then is kept.
        print(table(done, about=False), file=sys.stderr, flush=True)
    return rows


def _measure_once(style: str, store: str, rate: int, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.latency", "--once", style, store, str(rate)]
    command += ["--seconds", str(arguments.seconds), "--idle-records", str(arguments.idle_records)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, Any] = json.loads(ran.stdout)
    return measured


def _summarise(style: str, store: str, rate: int, rounds: Sequence[dict[str, Any]]) -> Row:
    p50s = [each["p50_ms"] for each in rounds]
    return Row(
        style,
        store,
        rate,
        rounds[0]["records"],
        statistics.median(each["reached_rate"] for each in rounds),
        statistics.median(each["p5_ms"] for each in rounds),
        statistics.median(p50s),
        min(p50s),
        max(p50s),
        statistics.median(each["p99_ms"] for each in rounds),
        max(each["most_ms"] for each in rounds),
        statistics.median(each["due_p99_ms"] for each in rounds) if rate else None,
    )


def measure_here(style: str, store: str, rate: int, seconds: float, idle_records: int) -> dict[str, Any]:
    """The percentiles of one run in this process."""
    if store == COMMIT:
        return commit_here(idle_records)
    records = max(10, int(rate * seconds)) if rate else idle_records
    notes, counter = Notes(), list[int]()
    in_columns = STYLES[style].source is GeneratedPayloads
    pipeline = Pipeline(
        "latency",
        sources=[Source("paced", Paced(records=records, rate=rate, notes=notes, in_columns=in_columns))],
        processors=STYLES[style].from_text,
        destinations=[Destination("count", Counting(counter=counter))],
    )
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as folder:
        outcome = conduit_py.run(pipeline, state=Path(folder) / "state" if store == "SQLite" else None)
    assert outcome.status is Status.COMPLETED, outcome
    skipped = int(records * WARM_UP_SHARE)
    delays = sorted(1000 * delay for delay in notes.delays(rate)[skipped:]) if rate else None
    return _percentiles(notes.waits()[skipped:], records / (notes.acks[-1][1] - notes.began)) | {
        "records": records,
        "due_p99_ms": _percentile(delays, 99) if delays else None,
    }


def commit_here(count: int) -> dict[str, Any]:
    """The percentiles of commits without a pipeline, in this process."""
    waits, began = list[float](), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as folder:
        database = StateDatabase.open(Path(folder) / "state")
        for number in range(count):
            time.sleep(IDLE_SECONDS)
            started = time.perf_counter()
            row = ("latency", "position", "paced", b"%d" % number)
            database.connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
            waits.append(time.perf_counter() - started)
        database.close()
    reached = count / (time.perf_counter() - began)
    return _percentiles(waits[int(count * WARM_UP_SHARE) :], reached) | {"records": count, "due_p99_ms": None}


def _percentiles(waits: Sequence[float], reached_rate: float) -> dict[str, Any]:
    sorted_ms = sorted(1000 * wait for wait in waits)
    shares = {f"p{percent}_ms": _percentile(sorted_ms, percent) for percent in (5, 50, 99)}
    return {**shares, "reached_rate": reached_rate, "most_ms": sorted_ms[-1]}


def _percentile(sorted_values: Sequence[float], percent: int) -> float:
    return sorted_values[min(len(sorted_values) - 1, len(sorted_values) * percent // 100)]


def pace(rate: int) -> str:
    return f"{rate:,}/s" if rate else "idle"


def table(rows: Sequence[Row], *, about: bool = True) -> str:
    head = ("style", "store", "rate", "reached", "p5", "p50", "(min–max)", "p99", "longest", "p99 since due")
    lines: list[Sequence[str]] = []
    for row in rows:
        if lines and row.store == STORES[0]:
            lines.append(())
        lines.append(
            (
                row.style,
                row.store,
                pace(row.rate),
                f"{row.reached_rate:,.0f}/s",
                f"{row.p5_ms:.2f} ms",
                f"{row.p50_ms:.2f} ms",
                f"({row.p50_min_ms:.2f}–{row.p50_max_ms:.2f})",
                f"{row.p99_ms:.2f} ms",
                f"{row.most_ms:.2f} ms",
                "" if row.due_p99_ms is None else f"{row.due_p99_ms:.2f} ms",
            )
        )
    text = report.table(head, lines)
    return f"{text}\n\n'memory again' is the A/A control. {GOALS}" if about else text


if __name__ == "__main__":
    sys.exit(main())
