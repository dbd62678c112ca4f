"""`make bench-fleet`: many pipelines in one server under a steady load: does memory stay flat, does the API answer?

A real `conduit-py serve` runs as many pipelines as asked for, each at a steady rate. Meanwhile a page is open (the live
stream), Prometheus scrapes, and two addresses of the API are timed. At the end SIGTERM must drain everything: every
record that was made is in the output once.

With `--processes N --compare ROUNDS` one process and N take turns. At a rate that one process cannot hold, the ratio of
their records is what N give. The ratio of CPU for a record says what they could give, also on a busy machine.
"""

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

PIPELINE = """
from conduit_connectors import file, generator, log
from conduit_py import Destination, Pipeline, Source, processor

@processor
def cents(record):
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record

pipeline = Pipeline(
    "{id}",
    sources=[Source("made", generator.Source(rate={rate}, fields={{"id": "index", "amount": "float"}}))],
    processors=[cents],
    destinations=[Destination("kept", {destination})],
)
"""
FILES_EVERY = 10
"""One pipeline in so many writes a file, every batch of it fsynced; the others log what nobody reads."""
TIMED = ("/healthz", "/api/v1/pipelines")
TIMED_SECONDS = 0.25
SCRAPE_SECONDS = 15.0
CPU_GOAL_MS = 1.5
SETTLING = "conduit_pipeline_execution_duration_seconds"


@dataclass
class Figures:
    """What was measured."""

    pipelines: int
    rate: float
    seconds: float
    processes: int = 0
    start_seconds: float = 0.0
    memory_mb: list[tuple[float, float]] = field(default_factory=list)
    """Resident memory, by the seconds since everything ran."""
    cpu_share: float = 0.0
    """Of one core: the server and its processes."""
    server_share: float = 0.0
    """Of one core: the server alone."""
    latencies: dict[str, list[float]] = field(default_factory=lambda: {path: [] for path in TIMED})
    live_events: int = 0
    acked: int = 0
    acked_per_second: float = 0.0
    """While it was observed, without the start and the end."""
    settling_seconds: float = 0.0
    """From the read of a record to its ack, on average, meanwhile."""
    drain_seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    lost_or_doubled: int = 0
    exit_code: int | None = None

    def plain(self) -> dict[str, Any]:
        """Everything for a program, with the latencies summed up."""
        summed = {
            f"p{percent}_seconds": {path: self.percentile(path, percent) for path in TIMED} for percent in (50, 99)
        }
        fields = {name: value for name, value in asdict(self).items() if name != "latencies"}
        own = {"growth_mb_per_minute": self.growth_mb_per_minute(), "cpu_ms_per_pipeline": self.cpu_ms_per_pipeline()}
        return {**fields, **summed, **own}

    def percentile(self, path: str, percent: int) -> float:
        """NaN if there are fewer than two answers, as on a machine that is too busy."""
        answers = self.latencies[path]
        return statistics.quantiles(answers, n=100)[percent - 1] if len(answers) > 1 else math.nan

    def cpu_ms_per_pipeline(self) -> float:
        """Of each second. The server, the page and Prometheus have their part in it."""
        return 1000 * self.cpu_share / self.pipelines

    def cpu_us_per_record(self) -> float:
        return 1e6 * self.cpu_share / self.acked_per_second if self.acked_per_second else math.nan

    def growth_mb_per_minute(self) -> float:
        """The slope of memory over the second half: the first is allowed to warm up. NaN with fewer than two points."""
        half = [(at, mb) for at, mb in self.memory_mb if at >= self.seconds / 2]
        return 60 * statistics.linear_regression(*zip(*half, strict=True)).slope if len(half) > 1 else math.nan


def main() -> int:
    arguments = parse_arguments()
    if arguments.compare:
        return compare(arguments)
    figures = measure(arguments.pipelines, arguments.rate, arguments.seconds, arguments.acked, arguments.processes)
    if arguments.json:
        print(json.dumps(figures.plain()))
    else:
        print_figures(figures)
    return figures.exit_code or 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.partition("\n")[0])
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="records a second of each")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--acked", type=int, default=0, help="go on until so many records are acked in all")
    parser.add_argument("--processes", type=int, default=0, help="as of `serve`")
    parser.add_argument("--compare", type=int, default=0, metavar="ROUNDS", help="one process and several in turns")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def compare(arguments: argparse.Namespace) -> int:
    """Let one process and several take turns, and print the ratios of each round."""
    speeds, costs, bad = list[float](), list[float](), 0
    for number in range(arguments.compare):
        # Every other round goes backwards: the machine may have more to do at one end of it.
        order = (0, arguments.processes)[:: -1 if number % 2 else 1]
        found = {each: measure(arguments.pipelines, arguments.rate, arguments.seconds, 0, each) for each in order}
        one, several = found[0], found[arguments.processes]
        speeds.append(several.acked_per_second / one.acked_per_second)
        costs.append(several.cpu_us_per_record() / one.cpu_us_per_record())
        bad += sum(each.lost_or_doubled or each.exit_code != 0 for each in found.values())
        for name, each in (("one process", one), (f"{arguments.processes} processes", several)):
            print(
                f"round {number + 1}, {name}: {each.acked_per_second:,.0f} records/s, "
                f"read to ack {1000 * each.settling_seconds:.0f} ms, {each.cpu_us_per_record():.1f} µs of CPU each, "
                f"{each.cpu_share:.2f} cores, {each.server_share:.2f} of them by the server, "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    print(f"records: {statistics.median(speeds):.2f} x ({min(speeds):.2f} to {max(speeds):.2f})")
    print(f"CPU for a record: {statistics.median(costs):.2f} x ({min(costs):.2f} to {max(costs):.2f})")
    return 1 if bad else 0


def measure(pipelines: int, rate: float, seconds: float, acked: int = 0, processes: int = 0) -> Figures:
    """Run the whole experiment in a folder of its own."""
    figures = Figures(pipelines, rate, seconds, processes)
    with tempfile.TemporaryDirectory(prefix="conduit-fleet-") as name:
        folder = Path(name)
        write_pipelines(folder, pipelines, rate)
        process, url = start(folder, figures)
        try:
            with httpx2.Client(base_url=url, timeout=300) as client:
                wait_for_all(client)
                observe(client, process.pid, figures)
                wait_for(client, acked)
                stop(client, process, figures)
        finally:
            process.kill()
            process.wait()
        figures.lost_or_doubled = count_wrong(folder)
        figures.statuses = count_statuses(folder)
    return figures


def write_pipelines(folder: Path, pipelines: int, rate: float) -> None:
    (folder / "pipelines").mkdir()
    for number in range(pipelines):
        id = f"p{number:03}"
        text = PIPELINE.format(id=id, rate=rate, destination=destination_of(number, id))
        (folder / "pipelines" / f"{id}.py").write_text(text)


def destination_of(number: int, id: str) -> str:
    return 'log.Destination(level="debug")' if number % FILES_EVERY else f'file.Destination(path="{id}.jsonl")'


def start(folder: Path, figures: Figures) -> tuple["subprocess.Popen[str]", str]:
    """Start the server and wait until it says that it serves."""
    began = time.monotonic()
    command = [sys.executable, "-m", "conduit_py.cli.main", "serve", "--pipelines", "pipelines", "--state", "state"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", "0", "--stop-timeout", "300", "--processes", str(figures.processes)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if " on http" not in line:
        raise SystemExit(f"the server did not start:\n{(folder / 'log').read_text()}")
    figures.start_seconds = time.monotonic() - began
    return process, line.split()[-1]


def observe(client: httpx2.Client, pid: int, figures: Figures) -> None:
    """Time the API, note memory once a second, scrape, and keep a page open, for as long as asked."""
    done = threading.Event()
    page = threading.Thread(target=watch_live, args=(str(client.base_url), figures, done), daemon=True)
    page.start()
    began, busy, read = time.monotonic(), [cpu_seconds(*family(pid)), cpu_seconds(pid)], count_settled(client)
    scraped = noted = 0.0
    while (elapsed := time.monotonic() - began) < figures.seconds:
        if elapsed >= noted:
            figures.memory_mb.append((elapsed, memory_mb(pid)))
            noted = elapsed + 1
        if elapsed >= scraped:
            ask(client, "/metrics")
            scraped = elapsed + SCRAPE_SECONDS
        for path in TIMED:
            asked = time.perf_counter()
            ask(client, path)
            figures.latencies[path].append(time.perf_counter() - asked)
        time.sleep(TIMED_SECONDS)
    elapsed = time.monotonic() - began
    figures.cpu_share = (cpu_seconds(*family(pid)) - busy[0]) / elapsed
    figures.server_share = (cpu_seconds(pid) - busy[1]) / elapsed
    records, waited = (now - then for now, then in zip(count_settled(client), read, strict=True))
    figures.acked_per_second = records / elapsed
    figures.settling_seconds = waited / records if records else math.nan
    done.set()
    page.join(300)


def wait_for_all(client: httpx2.Client) -> None:
    """Wait until every pipeline has delivered something: their processes may still be starting."""
    while not all((each["progress"] or {"acked": 0})["acked"] for each in shown(client)):
        time.sleep(TIMED_SECONDS)


def wait_for(client: httpx2.Client, acked: int) -> None:
    while count_acked(client) < acked:
        time.sleep(TIMED_SECONDS)


def count_acked(client: httpx2.Client) -> int:
    return sum(each["progress"]["acked"] for each in shown(client) if each["progress"])


def shown(client: httpx2.Client) -> list[dict[str, Any]]:
    pipelines: list[dict[str, Any]] = ask(client, "/api/v1/pipelines").json()["pipelines"]
    return pipelines


def count_settled(client: httpx2.Client) -> tuple[float, float]:
    """How many records were acked, and the seconds from the read of each to its ack, summed up."""
    text = ask(client, "/metrics").text
    both = [re.findall(rf"^{SETTLING}_{part}\{{.*\}} (\S+)$", text, re.MULTILINE) for part in ("count", "sum")]
    count, total = (sum(map(float, found)) for found in both)
    return count, total


def ask(client: httpx2.Client, path: str) -> httpx2.Response:
    """Get a page, again if the server cut it off: it takes a client that a busy machine does not run for a slow one."""
    while True:
        with suppress(httpx2.RemoteProtocolError):
            return client.get(path).raise_for_status()


def watch_live(url: str, figures: Figures, done: threading.Event) -> None:
    while not done.is_set():
        # As a browser does, it connects again if it was cut off.
        with (
            suppress(httpx2.RemoteProtocolError),
            httpx2.stream("GET", f"{url}/api/v1/live", timeout=300) as response,
        ):
            for line in response.iter_lines():
                figures.live_events += line.startswith("data:")
                if done.is_set():
                    return


def stop(client: httpx2.Client, process: "subprocess.Popen[str]", figures: Figures) -> None:
    figures.acked = count_acked(client)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    figures.exit_code = process.wait(600)
    figures.drain_seconds = time.monotonic() - asked


def count_wrong(folder: Path) -> int:
    """How many records of the files are missing, doubled or out of order."""
    wrong = 0
    for file in sorted(folder.glob("*.jsonl")):
        ids = [json.loads(line)["payload"]["after"]["id"] for line in file.read_text().splitlines()]
        wrong += sum(id != number for number, id in enumerate(ids))
    return wrong


def count_statuses(folder: Path) -> dict[str, int]:
    """The statuses in which the log says that pipelines ended."""
    ended = re.findall(r"pipeline \S+ is (stopped)\b", (folder / "log").read_text())
    return {status: ended.count(status) for status in set(ended)}


def memory_mb(pid: int) -> float:
    """Of the server and its processes."""
    lines = [line for each in family(pid) for line in Path(f"/proc/{each}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_seconds(*pids: int) -> float:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and its children."""
    found = [pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended meanwhile.
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
    return found


def print_figures(figures: Figures) -> None:
    where = f" in {figures.processes} processes" if figures.processes else ""
    print(f"{figures.pipelines} pipelines × {figures.rate:g} records/s for {figures.seconds:g} s{where}")
    print(f"served after      {figures.start_seconds:.1f} s")
    by_minute = {int(at // 60): mb for at, mb in figures.memory_mb}
    print("memory by minute  " + " ".join(f"{mb:.0f}" for mb in by_minute.values()) + " MB")
    print(f"growth            {figures.growth_mb_per_minute():+.2f} MB a minute over the second half")
    print(f"CPU for a record  {figures.cpu_us_per_record():.1f} µs")
    each = f"{figures.cpu_ms_per_pipeline():.2f} ms a second for each pipeline (goal: {CPU_GOAL_MS} ms at 200 × 20)"
    print(f"processor         {figures.cpu_share:.0%} of a core, {each}")
    if figures.processes:
        print(f"                  of that the server itself {figures.server_share:.0%}")
    for path in TIMED:
        p50, p99 = figures.percentile(path, 50), figures.percentile(path, 99)
        print(f"{path:17} p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, {len(figures.latencies[path])} requests")
    print(f"live stream       {figures.live_events} events")
    print(f"acked             {figures.acked:,}, {figures.acked_per_second:,.0f} a second")
    print(f"read to ack       {figures.settling_seconds * 1000:.1f} ms on average")
    print(f"drained in        {figures.drain_seconds:.1f} s, exit code {figures.exit_code}, {figures.statuses}")
    print(f"lost or doubled   {figures.lost_or_doubled}")


if __name__ == "__main__":
    sys.exit(main())
