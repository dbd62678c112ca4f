"""Measuring on Spark: what a call costs in all processes of a session, and ratios of contenders that take turns."""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from process_tree import Process, processes

Measure = Literal["seconds", "cpu_seconds"]


Role = Literal["driver", "Java", "workers"]
ROLES: tuple[Role, ...] = ("driver", "Java", "workers")


class Used(msgspec.Struct, frozen=True):
    """What one contender took in one round."""

    seconds: float
    cpu_seconds: float
    by_role: dict[Role, float] = {}
    """The CPU of the driver's Python, of all Java, and of all Python workers."""


class Line(msgspec.Struct, frozen=True):
    """One line of the result: what was measured, in all rounds, and the goal, if there is one."""

    name: str
    values: list[float]
    unit: str = "x"
    most: float | None = None
    least: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def goal(self) -> str:
        return (
            f"≤ {self.most:.4g}" if self.most is not None else f"≥ {self.least:.4g}" if self.least is not None else ""
        )

    @property
    def met(self) -> bool:
        return (self.most is None or self.median <= self.most) and (self.least is None or self.median >= self.least)


class Meter:
    """Counts the CPU of this process and all below it, and of other roots, such as the workers of a cluster."""

    def __init__(self, *roots: int) -> None:
        self._roots = (os.getpid(), *roots)

    def used(self, call: Callable[[], object]) -> Used:
        before = {each.pid: each for each in processes(*self._roots)}
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        by_role = dict.fromkeys(ROLES, 0.0)
        after = {each.pid: each for each in processes(*self._roots)}
        # A Python worker that has ended is counted with its daemon, with all that it had used before.
        gone = [each for pid, each in before.items() if pid not in after]
        by_role["workers"] -= sum(each.cpu_seconds + each.ended_seconds for each in gone if role_of(each) == "workers")
        for pid, each in after.items():
            known = before.get(pid, each._replace(cpu_seconds=0.0, ended_seconds=0.0))
            by_role[role_of(each)] += each.cpu_seconds - known.cpu_seconds
            # Below Java too: what it starts and outlives are the daemons of Python workers.
            if role_of(each) != "driver":
                by_role["workers"] += each.ended_seconds - known.ended_seconds
        return Used(seconds, sum(by_role.values()), by_role)


def role_of(process: Process) -> Role:
    """What a process is for, of those of a session that this one drives."""
    if process.pid == os.getpid():
        return "driver"
    return "Java" if "java" in process.command.split(" ")[0] else "workers"


def in_own_process(name: str, source: Path, out: Path) -> Used:
    """What a loop took, in a process in which nothing else is."""
    command = [sys.executable, "-m", "benchmarks.spark_work", name, str(source), str(out)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(ran.stdout, type=Used)


Round = Mapping[str, Used]


def rounds(
    contenders: Mapping[str, Callable[[], Used]], count: int, warm_up: int, ready: Collection[str] = ()
) -> Sequence[Round]:
    """Let all take turns, after some rounds that do not count for all but those that are ready: Java gets faster."""
    for _ in range(warm_up):
        for name, contender in contenders.items():
            if name not in ready:
                contender()
    return [{name: contender() for name, contender in contenders.items()} for _ in range(count)]


def ratio(of: Sequence[Round], measure: Measure, above: str, below: str) -> list[float]:
    """In each round what one took in relation to what the other took."""
    return [getattr(each[above], measure) / getattr(each[below], measure) for each in of]


def absolute(of: Sequence[Round], records: int) -> list[Line]:
    """What each took for a record, which means something on this machine only."""
    return [
        Line(f"{name}: CPU a record{_shares(of, name)}", [1e6 * each[name].cpu_seconds / records for each in of], "µs")
        for name in of[0]
    ]


def _shares(of: Sequence[Round], name: str) -> str:
    """Where most of it went, if to more than one."""
    shares = {
        role: statistics.median(each[name].by_role[role] / each[name].cpu_seconds for each in of)
        for role in of[0][name].by_role
    }
    said = ", ".join(f"{role} {100 * share:.0f} %" for role, share in shares.items())
    return f" ({said})" if said else ""


def digest(paths: Iterable[Path]) -> str:
    """Of the bytes of these files, one after another."""
    known = hashlib.sha256()
    for path in paths:
        known.update(path.read_bytes())
    return known.hexdigest()


def say(what: str) -> None:
    """Tell a person who waits."""
    print(what, file=sys.stderr, flush=True)


def report(lines: Sequence[Line]) -> None:
    """Hand lines to the process that has started this one."""
    print(json.dumps(msgspec.to_builtins(lines)), flush=True)
