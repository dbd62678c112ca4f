"""Process tree: a process and everything below it, with what they used of the machine, as Linux tells it."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PEAK = "VmHWM:"
_LISTENS = "0A"


class Process(NamedTuple):
    """One process at one moment."""

    pid: int
    parent: int
    cpu_seconds: float
    """Its own, without those of children that have ended."""
    command: str
    ended_seconds: float = 0.0
    """Those of its children that have ended, and of theirs."""


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
    own, ended = (sum(map(int, fields[start : start + 2])) / _TICKS for start in (11, 13))
    return Process(int(path.name), int(fields[1]), own, command, ended)


def _is_below(process: Process, roots: set[int], known: dict[int, Process]) -> bool:
    at: Process | None = process
    while at is not None:
        if at.pid in roots:
            return True
        at = known.get(at.parent)
    return False


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, of TCP; none if it has ended."""
    try:
        held = {os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir() if descriptor.is_symlink()}
        tables = {
            family: Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
            for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
        }
    except OSError:
        return set()
    rows = [(family, line.split()) for family, lines in tables.items() for line in lines]
    return {
        _address(family, row[1].partition(":")[0])
        for family, row in rows
        if row[3] == _LISTENS and f"socket:[{row[9]}]" in held
    }


def _address(family: socket.AddressFamily, written: str) -> str:
    """An address as Linux writes it there: four bytes at a time, each four from the last to the first."""
    raw = bytes.fromhex(written)
    return socket.inet_ntop(family, b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
