"""`python -m benchmarks.observed`: what observers cost a pipeline, and what it costs that there can be any.

Valgrind counts the instructions of a run, those of all threads included, so the load of the machine does not matter.
Each way runs twice, with few and with more records: the difference, divided by the records that were more, is what a
record costs. The ways are: a run without the hooks of observers, one with hooks and no observer, and observers that
send to a server in another process. How many batches of a second have the spans of nodes depends on the clock, which
means nothing under valgrind. So traces are counted twice: with one span for each batch, and with all spans. The row of
full speed mixes both, by the batches of a second that a run without valgrind could do. The exit code is 1 above a
limit, 1 per cent off and 5 on; 2 without valgrind.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import SLOWNESS_VARIABLE, report
from benchmarks.chart import Bar, bar_chart, stack
from benchmarks.instructions import SLOWNESS, total_of
from benchmarks.observed_once import ALL_SPANS, OFF, ONE_SPAN, WITHOUT
from benchmarks.once import WARM_UP_RECORDS
from benchmarks.styles import STYLES
from benchmarks.works import WORKS
from conduit_py.defaults import BATCH_SIZE
from conduit_py.telemetry import open_telemetry

FEW, MORE = 20_480, 102_400
FULL_SPEED, AGAIN = "otel at full speed", "off again"
LIMITS: dict[str, tuple[str, float | None]] = {
    OFF: (WITHOUT, 1.01),
    AGAIN: (OFF, None),
    "openlineage": (OFF, 1.05),
    ONE_SPAN: (OFF, None),
    ALL_SPANS: (OFF, None),
    FULL_SPEED: (OFF, 1.05),
}
"""What each way is compared with, and how much it may cost against that."""
TITLES = {"W1m": "generated records, counted", "W2m": "file to file", "W4m": "file to file, exactly once"}

COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class Row:
    """What a record costs one way to run a work."""

    work: str
    style: str
    way: str
    instructions: float
    ratio: float
    """Against the way that `LIMITS` names; above 1 is more."""
    limit: float | None


def main() -> int:
    arguments = parse_arguments()
    if shutil.which("valgrind") is None:
        print("this needs valgrind, which is not installed: apt-get install valgrind", file=sys.stderr)
        return 2
    # Else every process compiles every module, under valgrind for minutes.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with report.Report(arguments, timed=False) as out, collector() as port:
        pairs = [(work, style) for work in arguments.works for style in arguments.styles]
        out.rows = rows = [row for pair in pairs for row in count_ways(*pair, arguments, port)]
        out.facts |= {"few": arguments.few, "more": arguments.more}
        out.text = table(rows)
        out.svg = stack([draw(*pair, rows) for pair in pairs])
    return 1 if any(row.limit is not None and row.ratio > row.limit for row in rows) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description=__doc__.partition("\n")[0])
    parser.add_argument("works", nargs="*", default=[*TITLES], help=f"{', '.join(TITLES)} by default")
    parser.add_argument("--styles", nargs="*", default=["dict"], choices=list(STYLES))
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--more", type=int, default=MORE)
    report.add_arguments(parser)
    return parser.parse_args()


@contextmanager
def collector() -> Iterator[int]:
    """A process that takes everything and keeps nothing; its port."""
    with subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def count_ways(work: str, style: str, arguments: argparse.Namespace, port: int) -> list[Row]:
    few, more = arguments.few, arguments.more
    counted = {
        way: (count_run(way, work, style, more, port) - count_run(way, work, style, few, port)) / (more - few)
        for way in (WITHOUT, *LIMITS)
        if way != FULL_SPEED
    }
    batches = records_per_second(work, style, more) / BATCH_SIZE
    with_all = min(1.0, open_telemetry.DETAILED[1] / batches)
    counted[FULL_SPEED] = counted[ONE_SPAN] + with_all * (counted[ALL_SPANS] - counted[ONE_SPAN])
    rows = []
    for way, count in counted.items():
        base, limit = LIMITS.get(way, (WITHOUT, None))
        shown = f"{way}, {batches:.0f} batches a second" if way == FULL_SPEED else way
        rows.append(Row(work, style, shown, count, count / counted[base], limit))
    return rows


def records_per_second(work: str, style: str, records: int) -> float:
    """What a core does without valgrind and without an observer, by its CPU time."""
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as name:
        prepare(records, Path(name))
        command = [sys.executable, "-m", "benchmarks.observed_once", OFF, work, style, str(records), name]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return records / float(ran.stdout)


def prepare(records: int, folder: Path) -> None:
    """Write what is read: in the run, and in the warm-up before it."""
    for part, count in (("run", records), ("warm-up", WARM_UP_RECORDS)):
        (folder / part).mkdir()
        WORKS["W2m"].prepare(count, folder / part)


def count_run(way: str, work: str, style: str, records: int, port: int) -> int:
    """The instructions of one run after a warm-up, from its start until everything was sent."""
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as name:
        prepare(records, Path(name))
        server = f"http://127.0.0.1:{port}"
        environment = os.environ | {
            # The order of sets and dicts of text would be another in every process.
            "PYTHONHASHSEED": "0",
            SLOWNESS_VARIABLE: str(SLOWNESS),
            "OTEL_EXPORTER_OTLP_ENDPOINT": server,
            "OPENLINEAGE_URL": server,
            # What waits for five seconds sends as often as at full speed.
            "OTEL_BSP_SCHEDULE_DELAY": str(5000 * SLOWNESS),
            "OTEL_BLRP_SCHEDULE_DELAY": str(5000 * SLOWNESS),
        }
        result = Path(name) / "callgrind.out"
        watched = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={result}"]
        ran_way = OFF if way == AGAIN else way
        command = [sys.executable, "-m", "benchmarks.observed_once", ran_way, work, style, str(records), name]
        ran = subprocess.run([*watched, *command], capture_output=True, text=True, env=environment)
        if ran.returncode:
            raise SystemExit(f"{work}, {way} failed under valgrind:\n{ran.stderr[-4000:]}")
        return total_of(result)


def table(rows: Sequence[Row]) -> str:
    head = ("", "work", "functions take", "way", "instructions/record", "ratio", "limit")
    lines: list[Sequence[str]] = []
    for row in rows:
        limit = "" if row.limit is None else f"{row.limit:.2f}"
        lines.append(
            ("", TITLES[row.work], row.style, row.way, f"{row.instructions:,.0f}", f"{row.ratio:.4f}", limit),
        )
    compared = f"{OFF!r} is compared with {WITHOUT!r}, the others with {OFF!r}; {AGAIN!r} is the A/A control."
    return f"{report.table(head, lines)}\n\n{compared}"


def draw(work: str, style: str, rows: Sequence[Row]) -> str:
    chosen = [row for row in rows if (row.work, row.style) == (work, style)]
    bars = [Bar(row.way, row.ratio, row.ratio, row.ratio) for row in chosen]
    return bar_chart(f"{TITLES[work]}: {style}", "less is better", bars, mark=1.0)


if __name__ == "__main__":
    sys.exit(main())
