"""Crash harness: kill a real process again and again until it has done its work nevertheless.

SIGKILL ends a process between two instructions but leaves what it wrote to the operating system. So
this shows that a restart continues correctly. It cannot show that an fsync is missing.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

AT_RANDOM = "at random"
_VARIABLE = "CONDUIT_KILL_AT"
_NTH = (1, 1, 2, 3, 5, 8, 13)


class CrashTestFailed(AssertionError):
    """The command failed by itself, or did not end in time; the message has what it printed last."""


@dataclass(frozen=True)
class CrashReport:
    """What a command went through before it was done, and what its last run printed."""

    kills: Counter[str]
    """How often it was killed: by crash point, and AT_RANDOM."""
    runs: int
    seconds: float
    output: str


def run_with_kills(
    command: Sequence[str | Path],
    *,
    kills_max: int,
    points: Sequence[str] = (),
    seed: int = 0,
    delay_max_seconds: float = 1.0,
    seconds_max: float = 300.0,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> CrashReport:
    """Run `command` until it exits with 0, killing it and starting it again up to `kills_max` times.

    It is killed in turn at a random moment, within `delay_max_seconds` of its start, and at each of the
    named `points` (see conduit_py.crash_point), early or late as the seed decides. After the last kill it
    runs to its end. Any other exit code, and more than `seconds_max` in all, raise CrashTestFailed.
    """
    rng = random.Random(seed)
    started = time.monotonic()
    kills: Counter[str] = Counter()
    variables = {key: value for key, value in (environment or os.environ).items() if key != _VARIABLE}
    turns = [AT_RANDOM, *points]
    runs = 0
    while True:
        # Every kind of moment in turn, so that none is left out.
        moment = _Moment(turns[runs % len(turns)], rng.choice(_NTH), rng.uniform(0, delay_max_seconds))
        if kills.total() >= kills_max:
            moment = _Moment(None, 0, 0)
        runs += 1
        with _start(command, variables | moment.variables, directory) as (process, output):
            if _wait_for_end(process, output, moment, started + seconds_max - time.monotonic()):
                return CrashReport(kills, runs, time.monotonic() - started, _tail(output))
        kills[moment.point or ""] += 1


@dataclass(frozen=True)
class _Moment:
    """When a run is killed: the nth time it reaches a crash point, after a delay (AT_RANDOM), or never (None)."""

    point: str | None
    nth: int
    delay_seconds: float

    @property
    def variables(self) -> dict[str, str]:
        return {} if self.point in (None, AT_RANDOM) else {_VARIABLE: f"{self.point}:{self.nth}"}


@contextmanager
def _start(
    command: Sequence[str | Path], variables: Mapping[str, str], directory: Path | None
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The command as a process group of its own. Nothing of it is left afterwards."""
    # A file, not a pipe: nobody reads while it runs, and a full pipe would stop the command.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=variables,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own, so that its children are killed with it.
            start_new_session=True,
        )
        try:
            yield process, output
        finally:
            _kill(process)


def _wait_for_end(process: subprocess.Popen[bytes], output: IO[bytes], moment: _Moment, left_seconds: float) -> bool:
    """Wait for the end: True when the command ended by itself, False when it was killed at its moment."""
    at_random = moment.point == AT_RANDOM and moment.delay_seconds < left_seconds
    try:
        process.wait(max(0.0, moment.delay_seconds if at_random else left_seconds))
    except subprocess.TimeoutExpired:
        _kill(process)
        if not at_random:
            raise CrashTestFailed(f"the command did not end in time; it printed\n{_tail(output)}") from None
    if process.returncode == 0:
        return True
    if process.returncode == -signal.SIGKILL and moment.point is not None:
        return False
    raise CrashTestFailed(f"the command exited with {process.returncode}; it printed\n{_tail(output)}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Also when the process itself has ended: children that it left would write on beside the next run.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: IO[bytes], size: int = 4000) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - size))
    return output.read().decode(errors="replace")
