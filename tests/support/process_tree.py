"""Process tree: a process and everything below it, with what they used of the machine, as Linux tells it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PEAK = "VmHWM:"


class Process(NamedTuple):
    """One process at one moment."""

    pid: int
    parent: int
    cpu_seconds: float
    """Its own, without those of children that have ended."""
    command: str


def processes(*roots: int) -> list[Process]:
    """These processes, if they are there, and all that are below one of them."""
    known = {each.pid: each for path in Path("/proc").iterdir() if path.name.isdecimal() and (each := _process(path))}
    return [each for each in known.values() if _is_below(each, set(roots), known)]


def reset_peaks(of: Iterable[Process]) -> None:
    """Have the peak of each be counted from what it holds now."""
    for each in of:
        try:
            Path(f"/proc/{each.pid}/clear_refs").write_text("5")
        except OSError:
            continue  # It has ended.


def peak_mb(pid: int) -> float:
    """The most that it held at a time, in MB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(_PEAK)), 0.0)


def _process(path: Path) -> Process | None:
    try:
        stat = path.joinpath("stat").read_text()
        command = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None  # It has ended meanwhile.
    # The name before the last parenthesis may have any characters in it.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(int(path.name), int(fields[1]), sum(map(int, fields[11:13])) / _TICKS, command)


def _is_below(process: Process, roots: set[int], known: dict[int, Process]) -> bool:
    at: Process | None = process
    while at is not None:
        if at.pid in roots:
            return True
        at = known.get(at.parent)
    return False
