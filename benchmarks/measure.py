"""Measures contenders in processes of their own that take turns, and sums up what came of it.

The ratio of a round is taken within that round, so that a machine that slows down slows all of them; the order of a
round is the reverse of that of the one before. A machine whose speed changes within a round shakes that ratio. So there
are many short rounds, and beside the median stands the ratio of the best ones: the least CPU of the loop in any round
by the least of the contender. It needs only one undisturbed round of each, whichever.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.once import WARM_UP_RECORDS, Measurement
from benchmarks.work import CONTROL, LOOP, prepare_nothing
from benchmarks.works import WORKS


@dataclass(frozen=True)
class Row:
    """What is known about a contender after all rounds. Ratios are speed against the loop of the same round."""

    work: str
    contender: str
    records: int
    cpu_ratio: float
    cpu_ratio_min: float
    cpu_ratio_max: float
    cpu_ratio_best: float
    """Of the best rounds: the least CPU of the loop by the least of the contender."""
    wall_ratio: float
    cpu_microseconds: float
    """Of a record."""
    records_per_second: float
    memory_mb: float


def chosen_contenders(work: str, words: Sequence[str] | None) -> list[str]:
    """The contenders that have one of these words in their names, or all of them; always the loop and the control."""
    names = WORKS[work].contenders
    return [name for name in names if not words or name in (LOOP, CONTROL) or any(word in name for word in words)]


def run_rounds(work: str, names: Sequence[str], records: int, rounds: int) -> list[dict[str, Measurement]]:
    """Measure these contenders in every round. Ends the program if they did not do the same."""
    with prepared(work, records) as folder:
        # Every other round goes backwards, so that nobody always comes after the same neighbour.
        orders = [names[:: -1 if number % 2 else 1] for number in range(rounds)]
        return [same_work(work, {name: measure(work, name, records, folder) for name in names}) for names in orders]


def same_work(work: str, round_: dict[str, Measurement]) -> dict[str, Measurement]:
    """The round, if all contenders counted the same and wrote the same bytes; else the program ends."""
    sinks = {name: each.at_sink for name, each in round_.items()}
    if len(set(sinks.values())) != 1:
        raise SystemExit(f"{work}: the contenders did not do the same work: {sinks}")
    digests = {name: each.output_digest[:12] for name, each in round_.items()}
    if len(set(digests.values())) != 1:
        raise SystemExit(f"{work}: the contenders wrote different bytes: {digests}")
    return round_


@contextmanager
def prepared(work: str, records: int, *, warm_up: int = WARM_UP_RECORDS) -> Iterator[Path]:
    """A folder with the input of a work, for the run and for the warm-up before it."""
    with tempfile.TemporaryDirectory(prefix="conduit-bench-") as name:
        for part, count in (("run", records), ("warm-up", warm_up)):
            (Path(name) / "input" / part).mkdir(parents=True)
            WORKS[work].prepare(count, Path(name) / "input" / part)
        if WORKS[work].prepare is not prepare_nothing:
            # What is still on its way to the disk would be paid for by the first who syncs.
            os.sync()
        yield Path(name)


def measure(work: str, name: str, records: int, folder: Path) -> Measurement:
    """Run one contender in a process of its own, with its own copy of what is in `folder`."""
    with own_copy(folder) as own:
        ran = subprocess.run(command(work, name, records, own), stdout=subprocess.PIPE, check=True, text=True)
    return Measurement(**json.loads(ran.stdout))


@contextmanager
def own_copy(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        # Links: nobody changes its input, and bytes that are written again would have to be synced.
        shutil.copytree(folder / "input", own, copy_function=os.link, dirs_exist_ok=True)
        yield Path(own)


def command(work: str, name: str, records: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.once", work, name, str(records), str(folder)]


def summarise(work: str, rounds: Sequence[dict[str, Measurement]]) -> list[Row]:
    records, rows = rounds[0][LOOP].records, []
    least = {name: min(each[name].cpu_seconds for each in rounds) for name in rounds[0]}
    for name in (name for name in WORKS[work].contenders if name in least):
        ratios = [each[LOOP].cpu_seconds / each[name].cpu_seconds for each in rounds]
        rows.append(
            Row(
                work=work,
                contender=name,
                records=records,
                cpu_ratio=statistics.median(ratios),
                cpu_ratio_min=min(ratios),
                cpu_ratio_max=max(ratios),
                cpu_ratio_best=least[LOOP] / least[name],
                wall_ratio=statistics.median(each[LOOP].seconds / each[name].seconds for each in rounds),
                cpu_microseconds=1e6 * statistics.median(each[name].cpu_seconds for each in rounds) / records,
                records_per_second=records / statistics.median(each[name].seconds for each in rounds),
                memory_mb=max(each[name].memory_mb for each in rounds),
            )
        )
    return rows
