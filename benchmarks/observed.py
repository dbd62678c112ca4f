"""`python -m benchmarks.observed`: what `--observe otel` costs a pipeline, against an A/A control.

Every round runs the same pipeline of files three times: twice without an observer, which is the control, and once with
traces, metrics and logs, sent to a collector in another process. CPU time of the whole process is compared, with its
threads; with `--instructions` what valgrind counts, which is right on a busy machine too. A process of few records is
subtracted, so starts and imports do not count. The exit code is 1 if its quickest round costs more than 5 per cent.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import SLOWNESS_VARIABLE, report
from benchmarks.chart import Bar, bar_chart
from benchmarks.instructions import SLOWNESS, total_of

CONTROL, OFF, ON = "off, again (A/A control)", "off", "--observe otel"
FEW, RECORDS = 1024, 400_000
LIMIT = 1.05

PIPELINE = """
from conduit_connectors import file
from conduit_py import Pipeline, processor

@processor
def change(row: dict) -> dict:
    row["total"] = row["price"] * row["count"]
    return row

pipeline = Pipeline(
    "p", sources={"in": file.Source(path="in.jsonl", format="json")}, processors=[change],
    destinations={"out": file.Destination(path="out.jsonl", format="json")},
)
"""

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
    """The cost of one way to run, in CPU seconds or 10⁹ instructions, against the first one of the same round."""

    way: str
    cost: float
    ratio: float
    lowest: float
    highest: float
    quickest: float
    """The least cost of all rounds against that of the first way: what others do on the machine only adds to it."""


def main() -> int:
    arguments = parse_arguments()
    with report.Report(arguments, timed=False) as out, tempfile.TemporaryDirectory() as folder, collector() as port:
        rounds = [one_round(Path(folder), arguments, port, number) for number in range(arguments.rounds)]
        out.rows = rows = [summarise(way, rounds) for way in (OFF, CONTROL, ON)]
        out.facts |= {"records": arguments.records, "rounds": arguments.rounds}
        out.text = table(rows)
        bars = [Bar(row.way, row.ratio, row.lowest, row.highest) for row in rows]
        out.svg = bar_chart("the cost of an observer", "off = 1; less is better", bars, mark=1.0)
    return 1 if rows[-1].quickest > LIMIT else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--instructions", action="store_true", help="count them with valgrind in place of CPU time")
    report.add_arguments(parser, rounds=7)
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


def one_round(folder: Path, arguments: argparse.Namespace, port: int, number: int) -> dict[str, float]:
    """The cost of the records beyond the first few, for each way, in an order that differs between rounds."""
    ways = [OFF, CONTROL, ON]
    cost = partial(cost_of, folder, port, counted=arguments.instructions)
    return {way: cost(way, arguments.records) - cost(way, FEW) for way in ways[number % 3 :] + ways[: number % 3]}


def cost_of(folder: Path, port: int, way: str, records: int, *, counted: bool) -> float:
    """CPU seconds of a process, or how many thousand million instructions it takes."""
    (folder / "p.py").write_text(PIPELINE)
    (folder / "out.jsonl").unlink(missing_ok=True)
    with (folder / "in.jsonl").open("w") as out:
        out.writelines(f'{{"id":{n},"name":"name {n}","price":{n % 97}.5,"count":{n % 7}}}\n' for n in range(records))
    # With `benchmarks`, whose clock goes as much slower as valgrind does: else calls look slow and move to threads.
    line = "import benchmarks; from conduit_py.cli.main import main; main()"
    command = [sys.executable, "-c", line, "run", "p.py", "--fresh"]
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "PYTHONHASHSEED": "0"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    result = folder / "callgrind.out"
    if counted:
        environment |= {SLOWNESS_VARIABLE: str(SLOWNESS)}
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={result}", *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    extra = ["--observe", "otel"] if way == ON else []
    subprocess.run([*command, *extra], cwd=folder, env=environment, check=True, capture_output=True)
    if counted:
        return total_of(result) / 1e9
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def summarise(way: str, rounds: Sequence[dict[str, float]]) -> Row:
    ratios = sorted(each[way] / each[OFF] for each in rounds)
    cost = statistics.median(each[way] for each in rounds)
    quickest = min(each[way] for each in rounds) / min(each[OFF] for each in rounds)
    return Row(way, cost, statistics.median(ratios), ratios[0], ratios[-1], quickest)


def table(rows: Sequence[Row]) -> str:
    head = ("", "way", "cost", "× off", "lowest", "highest", "quickest")
    lines = [
        (
            "",
            row.way,
            f"{row.cost:.2f}",
            f"{row.ratio:.3f}",
            f"{row.lowest:.3f}",
            f"{row.highest:.3f}",
            f"{row.quickest:.3f}",
        )
        for row in rows
    ]
    return report.table(head, lines)


if __name__ == "__main__":
    sys.exit(main())
