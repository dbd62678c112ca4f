"""Ours beside a loop by hand, in one process: how often each is run, what is timed, and how ratios are printed.

A ratio is the loop's time by ours, within one round: above 1 we are faster. Each round runs the loop twice, and the
control is the ratio of both: what it is off from 1 is noise. CPU time is that of this process and its threads. It
includes the processes that it waited for, such as the decoder of Parquet.
"""

import resource
import statistics
import time
from collections.abc import Callable

from conduit_py import sdk


class Counter(sdk.DestinationConnector[sdk.Options]):
    """Counts what arrives."""

    blocking = False
    arrived = 0

    def write(self, batch: sdk.Batch) -> None:
        type(self).arrived += len(batch)


def compare(name: str, loop: Callable[[], None], ours: Callable[[], None], *, records: int, rounds: int) -> None:
    """Time both and print the ratios: median (lowest to highest)."""
    # The loop before and after, so that a machine that becomes busier is as bad for both.
    timed = [(_timed(loop), _timed(ours), _timed(loop)) for _ in range(rounds)]
    for kind, index in (("CPU", 0), ("wall", 1)):
        ratios = [(first[index] + last[index]) / 2 / own[index] for first, own, last in timed]
        control = [first[index] / last[index] for first, _, last in timed]
        each = records / statistics.median(own[index] for _, own, _ in timed)
        print(f"{name}: {kind} {_shown(ratios)}, control {_shown(control)}, {each:,.0f} records/s")


def _timed(function: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = _cpu(), time.perf_counter()
    function()
    return _cpu() - cpu, time.perf_counter() - wall


def _cpu() -> float:
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + times.ru_utime + times.ru_stime


def _shown(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
