"""A process that writes transactions to a file and is killed in the middle of each of its writes, one after the other.

`FOLDER INLINE_MAX` with the faulty disk preloaded. Every scenario is a fork of this process: it is killed halfway
through its nth write, or at a moment between two of them; then it is started again and goes on to the end. Prints
how many scenarios there were and, for every one that broke the promise, what was seen.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from conduit_connectors.file.appender import Appender
from conduit_connectors.file.staging import Staging

# Small ones, which their intents carry, among large ones of several blocks to copy.
TRANSACTIONS = [
    [b"1" * 70_000 + b"\n", b"2" * 70_000 + b"\n"],
    [b"small\n"],
    [b"3" * 1_500_000 + b"\n", b"4\n", b"5" * 900_000 + b"\n"],
    [b"6" * 50_000 + b"\n", b"last\n"],
]
MOMENTS = ["stage", "commit", "apply", "after"]


class World:
    def __init__(self, folder: Path, inline_max: int) -> None:
        self.out = folder / "out" / "file"
        self.commits = folder / "commits"
        self.inline_max = inline_max

    def run(self, dies_at: tuple[int, str] | None) -> None:
        """Go on after the last commit, to the end."""
        committed, intents = self.committed()
        appender = Appender(self.out)
        staging = Staging(appender, self.inline_max)
        staging.recover(intents)
        for number in range(committed, len(TRANSACTIONS)):
            for piece in TRANSACTIONS[number]:
                staging.add([piece])
            for moment in MOMENTS:
                if dies_at == (number, moment):
                    os.kill(os.getpid(), signal.SIGKILL)
                if moment == "stage":
                    intent = staging.stage() or b""
                elif moment == "commit":
                    self.commit(number + 1, intent)
                elif moment == "apply":
                    staging.apply(intent)
        staging.close()
        appender.close()

    def committed(self) -> tuple[int, list[bytes]]:
        numbers = sorted(int(name) for name in os.listdir(self.commits) if name.isdecimal())
        return (numbers[-1], [(self.commits / str(numbers[-1])).read_bytes()]) if numbers else (0, [])

    def commit(self, number: int, intent: bytes) -> None:
        (self.commits / "draft").write_bytes(intent)
        (self.commits / "draft").rename(self.commits / str(number))

    def broken(self, *, ended: bool) -> str | None:
        """What is wrong with what a reader sees, who passes over an open last line."""
        seen = self.out.read_bytes() if self.out.exists() else b""
        committed = b"".join(b"".join(pieces) for pieces in TRANSACTIONS[: self.committed()[0]])
        whole = seen[: seen.rfind(b"\n") + 1]
        if ended and (seen, os.listdir(self.out.parent)) != (committed, ["file"]):
            return f"{len(seen)} bytes and {os.listdir(self.out.parent)} at the end"
        return None if committed.startswith(whole) else f"{len(whole)} bytes where {len(committed)} are committed"


def forked(work: Callable[[], None]) -> int:
    """How a copy of this process ended that does the work."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def scenario(folder: Path, inline_max: int, torn_at: int, dies_at: tuple[int, str] | None) -> bool:
    """Kill it once, and let it go on; False when it came to its end before that."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "out").mkdir(parents=True)
    (folder / "commits").mkdir()
    world, name = World(folder, inline_max), f"write {torn_at}" if torn_at else str(dies_at)

    def die() -> None:
        if torn_at:
            os.environ.update(FAULT_ROOT=str(folder / "out"), FAULT_TORN_AT=str(torn_at))
        world.run(dies_at)

    code = forked(die)
    found = [world.broken(ended=code == 0)]
    if code == -signal.SIGKILL:
        code = forked(lambda: world.run(None))
        found.append(world.broken(ended=True))
        for each in filter(None, found):
            print(f"killed at {name}: {each}")
        assert code == 0, name
        return True
    assert (code, found) == (0, [None]), name
    return False


def main(folder: Path, inline_max: int) -> None:
    torn_at = 1
    while scenario(folder, inline_max, torn_at, None):
        torn_at += 1
    points = [(number, moment) for number in range(len(TRANSACTIONS)) for moment in MOMENTS]
    for point in points:
        assert scenario(folder, inline_max, 0, point), f"{point} was not reached"
    print(f"{torn_at - 1} writes, {len(points)} moments")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
