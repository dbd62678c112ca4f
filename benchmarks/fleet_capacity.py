"""`python -m benchmarks.fleet_capacity`: how many records 200 pipelines of a server can do, in one process and in more.

The rate of all sources is raised while the server runs. It ends when records take longer from read to ack than a bound,
or sources are read too seldom. Then the step between is searched. So both ways are compared at the same latency, each
at its own limit. At each step the CPU of the server, of its processes and of this program is shown: on a machine of two
cores they share them. One process and several take turns; one process is measured twice in the first round, and the
ratio of those two is the noise.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import fleet

PIPELINE = """
import time
from pathlib import Path

import trio

from conduit_connectors import file, generator, log
from conduit_py import Destination, Pipeline, Source, processor

RATE = Path({rate_file!r})


class Paced(generator.Source):
    '''Records at the rate that a file has, which is read once a second.'''

    asked_at = due_at = float("-inf")
    rate = 1.0

    async def read(self, n):
        await trio.lowlevel.checkpoint()
        while (now := time.monotonic()) < self.due_at:
            await trio.sleep(max(self.due_at - now, 0.001))
        if now - self.asked_at > 1:
            self.asked_at, self.rate = now, float(RATE.read_text())
        # As the generator at a rate of its own: a delay of more than a second is not made up for.
        self.due_at = max(self.due_at, now - 1)
        due = min(n, int((now - self.due_at) * self.rate) + 1)
        self.due_at += due / self.rate
        return await super().read(due)


@processor
def cents(record):
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record

pipeline = Pipeline(
    "{id}",
    sources=[Source("made", Paced(fields={{"id": "index", "amount": "float"}}))],
    processors=[cents],
    destinations=[Destination("kept", {destination})],
)
"""
SETTLE_SECONDS = 3.0
"""After a change of the rate, before anything is measured: sources see it within a second."""
FACTOR = 1.25
"""From one step to the next, until one is too much."""
SEARCHES = 2
"""So often the gap between the last good step and the first bad one is halved."""
READ_SHARE = 0.92
"""A step whose sources were read less than this share of their rate was too much."""


@dataclass
class Step:
    """What was measured at one rate: records a second of all pipelines, milliseconds, and shares of a core."""

    offered: float
    acked: float
    read_to_ack_ms: float
    server: float
    children: float
    client: float

    def good(self, latency_ms: float) -> bool:
        return self.read_to_ack_ms <= latency_ms and self.acked >= READ_SHARE * self.offered


@dataclass
class Capacity:
    """The limit of one server, with all steps of the search."""

    processes: int
    steps: list[Step] = field(default_factory=list)
    lost_or_doubled: int = 0
    exit_code: int | None = None

    def best(self, latency_ms: float) -> Step | None:
        """The step with the most records among those within the bound."""
        return max((each for each in self.steps if each.good(latency_ms)), key=lambda each: each.acked, default=None)


def main() -> int:
    given = parse_arguments()
    ratios, costs, bad, controls = list[float](), list[float](), 0, list[float]()
    for number in range(given.rounds):
        order = [0, given.processes, *([0] if given.control and number == 0 else [])][:: -1 if number % 2 else 1]
        found: dict[int, list[Step]] = {}
        for processes in order:
            capacity = search(given, processes)
            bad += bool(capacity.lost_or_doubled or capacity.exit_code)
            print_capacity(capacity, given)
            if (best := capacity.best(given.latency_ms)) is not None:
                found.setdefault(processes, []).append(best)
        if len(found) == 2:
            one, several = found[0], found[given.processes][0]
            mean = statistics.mean(each.acked for each in one)
            ratios.append(several.acked / mean)
            costs.append(cores(several) / several.acked / statistics.mean(cores(each) / each.acked for each in one))
            controls += [one[1].acked / one[0].acked] if len(one) > 1 else []
    for what, some in (("records", ratios), ("CPU for a record", costs), ("one process again", controls)):
        if some:
            print(f"{what}: {statistics.median(some):.2f} x ({min(some):.2f} to {max(some):.2f})")
    return 1 if bad else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_capacity", description=__doc__.partition("\n")[0])
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=250.0, help="the bound from read to ack, on average")
    parser.add_argument("--start", type=float, default=200.0, help="records a second of each pipeline, at first")
    parser.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        help="how long a rate is measured; counters are up to a second old, so short steps fail by chance",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--control", action="store_true", help="measure one process twice in the first round")
    parser.add_argument("--quiet-api", action="store_true", help="no page, no scrapes and no requests but for figures")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def search(given: argparse.Namespace, processes: int) -> Capacity:
    """Run one server, and find how much it can do."""
    capacity = Capacity(processes)
    with tempfile.TemporaryDirectory(prefix="conduit-fleet-") as name:
        folder = Path(name)
        rate_file = folder / "rate"

        def offer(rate: float) -> None:
            draft = folder / "rate.new"
            draft.write_text(f"{rate}")
            draft.rename(rate_file)

        offer(given.start / 4)
        write_pipelines(folder, given.pipelines, rate_file)
        figures = fleet.Figures(given.pipelines, 0, 0, processes)
        process, url = fleet.start(folder, figures)
        try:
            with httpx2.Client(base_url=url, timeout=300) as client:
                fleet.wait_for_all(client)
                done = threading.Event()
                users = [] if given.quiet_api else [fleet.watch_live, ask_often]
                threads = [threading.Thread(target=each, args=(url, figures, done), daemon=True) for each in users]
                for thread in threads:
                    thread.start()
                find_limit(given, capacity, lambda rate: measure(client, process.pid, given, rate, offer))
                done.set()
                for thread in threads:
                    thread.join(60)
                # It drains soon: what a step too many has left is small.
                offer(1)
                fleet.stop(client, process, figures)
        finally:
            process.kill()
            process.wait()
        capacity.lost_or_doubled, capacity.exit_code = fleet.count_wrong(folder), figures.exit_code
    return capacity


def write_pipelines(folder: Path, pipelines: int, rate_file: Path) -> None:
    (folder / "pipelines").mkdir()
    for number in range(pipelines):
        id = f"p{number:03}"
        destination = fleet.destination_of(number, id)
        text = PIPELINE.format(id=id, rate_file=str(rate_file), destination=destination)
        (folder / "pipelines" / f"{id}.py").write_text(text)


def find_limit(given: argparse.Namespace, capacity: Capacity, run: Callable[[float], Step]) -> None:
    """Raise the rate until a step is too much, then halve the gap."""
    rate, good = given.start, 0.0
    while True:
        capacity.steps.append(step := run(rate))
        if not step.good(given.latency_ms):
            break
        good, rate = rate, rate * FACTOR
    bad = rate
    for _ in range(SEARCHES):
        middle = math.sqrt((good or bad / FACTOR**2) * bad)
        capacity.steps.append(step := run(middle))
        good, bad = (middle, bad) if step.good(given.latency_ms) else (good, middle)


def measure(
    client: httpx2.Client, pid: int, given: argparse.Namespace, rate: float, offer: Callable[[float], None]
) -> Step:
    """Offer a rate to all pipelines, wait until it has its effect, and measure."""
    offer(rate)
    time.sleep(SETTLE_SECONDS)
    read = fleet.count_settled(client)
    began, cpu = time.monotonic(), _cpu(pid)
    time.sleep(given.seconds)
    spent, elapsed = _cpu(pid), time.monotonic() - began
    # Counters of processes are up to a second old, at both ends. The scrape itself takes a while: its own time counts.
    records, waited = (now - then for now, then in zip(fleet.count_settled(client), read, strict=True))
    counted = time.monotonic() - began
    server, children, own = ((now - then) / elapsed for now, then in zip(spent, cpu, strict=True))
    latency_ms = 1000 * waited / records if records else math.inf
    return Step(rate * given.pipelines, records / counted, latency_ms, server, children, own)


def _cpu(pid: int) -> tuple[float, float, float]:
    others = [each for each in fleet.family(pid) if each != pid]
    return fleet.cpu_seconds(pid), fleet.cpu_seconds(*others), time.process_time()


def ask_often(url: str, figures: fleet.Figures, done: threading.Event) -> None:
    """Ask for the health and for the list of pipelines, as monitoring and people do."""
    with httpx2.Client(base_url=url, timeout=300) as client:
        while not done.wait(1):
            for path in fleet.TIMED:
                with suppress(httpx2.HTTPError):
                    client.get(path)


def cores(step: Step) -> float:
    return step.server + step.children


def print_capacity(capacity: Capacity, given: argparse.Namespace) -> None:
    best = capacity.best(given.latency_ms)
    if given.json:
        facts: dict[str, Any] = {**asdict(capacity), "load": os.getloadavg()[0]}
        print(json.dumps(facts | {"best": best and asdict(best)}), flush=True)
        return
    print(f"{capacity.processes or 1} process{'es' if capacity.processes else ''}, load {os.getloadavg()[0]:.1f}")
    for step in capacity.steps:
        mark = "*" if step is best else " "
        print(
            f"{mark} offered {step.offered:>9,.0f}/s, acked {step.acked:>9,.0f}/s, read to ack "
            f"{step.read_to_ack_ms:>6.1f} ms; cores: server {step.server:.2f}, processes {step.children:.2f}, "
            f"this program {step.client:.2f}; {1e6 * cores(step) / max(step.acked, 1):.1f} µs a record",
            flush=True,
        )
    wrong = f"lost or doubled {capacity.lost_or_doubled}, exit code {capacity.exit_code}"
    print(f"  {wrong}" if capacity.lost_or_doubled or capacity.exit_code else "  nothing lost or doubled", flush=True)


if __name__ == "__main__":
    sys.exit(main())
