"""`python -m benchmarks.workers`: what processes give a processor that computes, against one process that does it all.

A function of pure Python, of a given number of microseconds, is run by one thread, by one process and by several. Every
way takes a turn in each round; the first is measured twice, and the ratio of those two is the noise. Time is that of
the run from its first record to its last, without the start of the processes. On a busy machine the quickest round and
the quickest batch of each way say more: all that they needed was free for so long. The CPU of a record is that of all
processes together. `cores` is what the machine itself gives: the function alone, in plain processes side by side,
against one. No way of sharing out records can be better.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from conduit_connectors import generator, memory

import conduit_py
from conduit_py import Destination, Pipeline, Processor, Source, processor


def burn(loops: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that computes for a while, and notes when it ended."""

    def work(fields: dict[str, Any]) -> dict[str, Any]:
        total = 0
        for number in range(loops):
            total += number * number % 7
        return {**fields, "total": total, "at": time.monotonic(), "pid": os.getpid(), "cpu": time.process_time()}

    return work


@processor
def note(fields: dict[str, Any]) -> dict[str, Any]:
    """Runs in the pipeline's process, behind the function."""
    fields["here"] = time.process_time()
    return fields


def loops_for(microseconds: float) -> int:
    """How many loops take so long, in the quickest of some tries."""
    work, best = burn(1000), float("inf")
    for _ in range(200):
        started = time.perf_counter()
        work({})
        best = min(best, time.perf_counter() - started)
    return max(1, round(1000 * microseconds / 1e6 / best))


def measure(loops: int, records: int, batch: int, workers: int, where: Any) -> tuple[float, float, float]:
    """Return the seconds from the first record to the last, those of the quickest batch, and µs of CPU for a record.

    The CPU is that of all processes from their first record on.
    """
    into: list[Any] = []
    fields = {"id": "index", "amount": "float", "name": "string", "count": "int"}
    outcome = conduit_py.run(
        Pipeline(
            "bench",
            sources=[Source("made", generator.Source(count=records, fields=fields), batch_size=batch)],
            processors=[Processor("burn", processor(burn(loops)), workers=workers, where=where), note],
            destinations=[Destination("list", memory.Destination(into=into))],
        )
    )
    assert (outcome.status.value, len(into)) == ("completed", records), outcome
    assert all(before["id"] < after["id"] for before, after in pairwise(each.payload for each in into))
    ends = [each.payload["at"] for each in into]
    here = [each.payload["here"] for each in into]
    # The first batch had come when this process noted its first record.
    cpu = (max(here) - min(here)) / (records - batch)
    for pid in {each.payload["pid"] for each in into} - {os.getpid()}:
        spent = [each.payload["cpu"] for each in into if each.payload["pid"] == pid]
        cpu += (max(spent) - min(spent)) / records
    # CLOCK_MONOTONIC is one clock for all processes.
    batches = [max(ends[start : start + batch]) for start in range(0, records, batch)]
    quickest = min(after - before for before, after in pairwise(batches))
    return max(ends) - min(ends), quickest, cpu * 1e6


def work_alone(loops: int, calls: int, begin: Any, took: Any) -> None:
    work = burn(loops)
    begin.wait()
    started = time.perf_counter()
    for _ in range(calls):
        work({})
    took.put(time.perf_counter() - started)


def measure_cores(loops: int, calls: int, processes: int) -> float:
    """Return the seconds that so many calls take in all, shared by plain processes that do nothing else."""
    context = multiprocessing.get_context("fork")
    begin, took = context.Barrier(processes), context.SimpleQueue()
    arguments = (loops, calls // processes, begin, took)
    running = [context.Process(target=work_alone, args=arguments) for _ in range(processes)]
    for each in running:
        each.start()
    seconds = max(took.get() for _ in running)
    for each in running:
        each.join()
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--microseconds", type=float, default=100.0, help="of one call of the function")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    loops = loops_for(given.microseconds)
    ways: dict[str, tuple[int, str]] = {
        "thread": (1, "thread"),
        "thread again": (1, "thread"),
        "one process": (1, "process"),
        f"{given.processes} processes": (given.processes, "process"),
    }
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    quickest: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    alone: dict[int, list[float]] = {1: [], given.processes: []}
    for number in range(given.rounds):
        # Every other round goes backwards, so that nobody always comes after the same neighbour.
        order = list(ways)[:: -1 if number % 2 else 1]
        measured = {name: measure(loops, given.records, given.batch, *ways[name]) for name in order}
        took = {name: each for name, (each, _, _) in measured.items()}
        for name in ways:
            seconds[name].append(took[name])
            quickest[name].append(measured[name][1])
            cpu[name].append(measured[name][2])
            ratios[name].append(took["thread"] / took[name])
        for count, some in alone.items():
            some.append(measure_cores(loops, given.records, count))
        loads = " ".join(f"{load:.1f}" for load in os.getloadavg()[:2])
        print(f"round {number + 1}: {json.dumps({name: round(each, 2) for name, each in took.items()})} load {loads}")
    for name in ways:
        middle, best = statistics.median(ratios[name]), min(quickest["thread"]) / min(quickest[name])
        spread = f"rounds {min(ratios[name]):.2f} to {max(ratios[name]):.2f}"
        print(f"{name:>14}: {middle:.2f} x ({spread}), quickest batch {best:.2f} x, {min(cpu[name]):.1f} µs of CPU")
    one, several = seconds["one process"], seconds[f"{given.processes} processes"]
    for name, first, other in (("several / one", one, several), ("cores", alone[1], alone[given.processes])):
        each = [before / after for before, after in zip(first, other, strict=True)]
        middle, best = statistics.median(each), min(first) / min(other)
        print(f"{name:>14}: {middle:.2f} x (rounds {min(each):.2f} to {max(each):.2f}), quickest rounds {best:.2f} x")


if __name__ == "__main__":
    main()
