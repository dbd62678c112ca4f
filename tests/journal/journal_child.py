"""Processes that use a journal, for tests that kill, freeze or starve them. They tell on standard output what they did.

journal_child.py crash DIRECTORY KILLS     work in forked processes, killed at every point, KILLS times in a row
journal_child.py contend DIRECTORY NAME    claim the journal again and again and append under each claim
journal_child.py obey DIRECTORY NAME       claim the journal, then append once for each line of standard input
journal_child.py too-big DIRECTORY         append until a file may not grow, then again when it may
journal_child.py no-sync DIRECTORY         append once, then twice more while the kernel fails every sync with EIO
"""

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conduit_py import crash_point
from conduit_py.errors import ConduitError, Fenced
from conduit_py.journal.disk import Disk
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import FileReader
from conduit_py.journal.registers import Selector
from tests.store.store_child import fail_syncs

POINTS = [
    f"journal.{when}_{what}"
    for what in ("write", "sync", "truncate", "rename", "remove")
    for when in ("before", "after")
] + ["journal.after_directory_sync"]


def tell(*words: object) -> None:
    # One write call per line: a line is whole or absent, wherever the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class HastyDisk(Disk):
    """Passes the points of a sync without one: the system keeps what a killed process wrote, so kills need none."""

    def sync(self, descriptor: int) -> None:
        crash_point.reach("journal.before_sync")
        crash_point.reach("journal.after_sync")

    def sync_directory(self, directory: Path) -> None:
        crash_point.reach("journal.after_directory_sync")


def work(directory: Path, acknowledged: int) -> None:
    """Append what is missing of eight numbers, one at a time; note each that was acknowledged."""
    with FileLog(directory / "journal", segment_size=400, disk=HastyDisk()) as log:
        there = [int(frame.bodies[0]) for frame in FileReader(directory / "journal", durable=False)]
        for number in range(there[-1] + 1 if there else 0, 8):
            log.append([b"%d" % number], union={"last": str(number)})
            os.write(acknowledged, b"%d\n" % number)
        log.prune(0)


def crash(directory: Path, kills: str) -> None:
    """Kill a process at every point it reaches; and for each of those, its successor at every point too."""
    runs = 0

    def attempt(name: str, plan: list[str]) -> bool:
        """Whether the last of the planned kills happened."""
        nonlocal runs
        runs += 1
        folder = directory / name
        folder.mkdir()
        killed = False
        for place in plan:
            killed = killed_at(place, folder)
        if killed:
            killed_at("", folder)
        return killed

    def enumerate_from(plan: list[str], depth: int) -> None:
        for point in POINTS:
            nth = 1
            while attempt(f"run-{runs}", [*plan, f"{point}:{nth}"]):
                if depth > 1 and nth % 4 == 1:
                    enumerate_from([*plan, f"{point}:{nth}"], depth - 1)
                nth += 1
                # A second kill is to meet the recovery from the first, which is the beginning.
                if plan and nth > 2:
                    break

    enumerate_from([], int(kills))
    tell("runs", runs)


def killed_at(place: str, folder: Path) -> bool:
    child = os.fork()
    if child == 0:
        os.environ["CONDUIT_KILL_AT"] = place
        crash_point.read_environment()
        descriptor = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        work(folder, descriptor)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"{place}: exit code {os.WEXITSTATUS(status)}")
    return os.WIFSIGNALED(status)


def contend(directory: Path, name: str) -> None:
    with FileLog(directory, sync="never", segment_size=20_000) as log:
        tell("ready")
        sys.stdin.readline()
        claims = fenced = 0
        # On a busy machine one may be done before another has its first turn: then it goes on until it meets one.
        while claims < 50 or (not fenced and claims < 400):
            claims += 1
            author = f"{name}.{claims}"
            log.append([f"{author} claims".encode()], union={"author": author})
            try:
                for number in range(5):
                    log.append([f"{author} {number}".encode()], check=Selector(include={"author": author}))
                    # Time for others to take over in the midst of it, however quick the machine is.
                    time.sleep(0.0005)
            except Fenced:
                fenced += 1
        tell(claims, fenced)


def obey(directory: Path, name: str) -> None:
    with FileLog(directory) as log:
        log.append([f"{name} claims".encode()], union={"author": name})
        tell("claimed", os.getpid())
        for line in sys.stdin:
            try:
                log.append([f"{name} {line.strip()}".encode()], check=Selector(include={"author": name}))
                log.barrier()
                tell("appended")
            except ConduitError as error:
                tell(error.code, error)


def too_big(directory: Path) -> None:
    with FileLog(directory) as log:
        log.append([b"before"])
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
        try:
            log.append([b"x" * 1_000_000])
        except ConduitError as error:
            tell(error.code, error)
        log.append([b"small"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.append([b"y" * 1_000_000])
        tell("sizes", *(len(frame.bodies[0]) for frame in log.reader()))


def no_sync(directory: Path) -> None:
    with FileLog(directory) as log:
        log.append([b"before"])
        fail_syncs()
        for body in (b"first", b"second"):
            try:
                log.append([body])
                tell("appended")
            except ConduitError as error:
                tell(error.code, error)


ACTIONS: dict[str, Callable[..., None]] = {
    "crash": crash,
    "contend": contend,
    "obey": obey,
    "too-big": too_big,
    "no-sync": no_sync,
}

if __name__ == "__main__":
    ACTIONS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
