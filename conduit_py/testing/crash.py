"""Crashes: of a real process, killed again and again, and inside one process, at a chosen operation.

`run_with_kills` kills a real process until it has done its work nevertheless. SIGKILL ends a process between two
instructions but leaves what it wrote to the operating system. So this shows that a restart continues correctly. It
cannot show that an fsync is missing.

`FaultyRun` runs code in which every durable operation stands in a `durable` block. It can kill the run right
before or right after one of them, or freeze it there. A frozen run that continues after another run has taken
over is a zombie.

`run_with_outage` works with scripted connectors. Every event of their log, and every write of an `OutageStore`,
is a moment. At the chosen one the power is cut: it and all later ones never happen, and the run is cancelled.
Log and store then hold what a restart would find. Trying every moment shows that none loses a record:

    for moment in itertools.count():
        log, store = EventLog(), …
        struck = await run_with_outage(pipeline_of(log), log=log, moment=moment)
        await pipeline_of(log)()
        assert log.numbers() …
        if not struck: break
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import trio

from conduit_py.errors import StateFailed
from conduit_py.store.memory import MemoryDeadLetterStore, MemoryStore
from conduit_py.store.store import Kind, StoredEntry
from conduit_py.testing.event_log import EventLog

AT_RANDOM = "at random"
KILL_VARIABLE = "CONDUIT_KILL_AT"
_NTH = (1, 1, 2, 3, 5, 8, 13)
StartProcess: TypeAlias = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a process as `subprocess.Popen` does."""


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
    popen: StartProcess = subprocess.Popen,
) -> CrashReport:
    """Run `command` until it exits with 0, killing it and starting it again up to `kills_max` times.

    It is killed at a random moment, within `delay_max_seconds` of its start. So it is at each of the named `points`
    (see conduit_py.crash_point), early or late as the seed decides. After the last kill it runs to its end. Any other
    exit code, and more than `seconds_max` in all, raise CrashTestFailed. `popen` starts the process, and takes and
    returns what `subprocess.Popen` does.
    """
    rng = random.Random(seed)
    started = time.monotonic()
    kills: Counter[str] = Counter()
    variables = {key: value for key, value in (environment or os.environ).items() if key != KILL_VARIABLE}
    turns = [AT_RANDOM, *points]
    runs = 0
    while True:
        # Every kind of moment in turn, so that none is left out.
        moment = _Moment(turns[runs % len(turns)], rng.choice(_NTH), rng.uniform(0, delay_max_seconds))
        if kills.total() >= kills_max:
            moment = _Moment(None, 0, 0)
        runs += 1
        with start_command(command, variables | moment.variables, directory, popen) as (process, output):
            if _wait_for_end(process, output, moment, started + seconds_max - time.monotonic()):
                return CrashReport(kills, runs, time.monotonic() - started, output_tail(output))
        kills[moment.point or ""] += 1


@dataclass(frozen=True)
class _Moment:
    """When a run is killed: the nth time it reaches a crash point, after a delay (AT_RANDOM), or never (None)."""

    point: str | None
    nth: int
    delay_seconds: float

    @property
    def variables(self) -> dict[str, str]:
        return {} if self.point in (None, AT_RANDOM) else {KILL_VARIABLE: f"{self.point}:{self.nth}"}


@contextmanager
def start_command(
    command: Sequence[str | Path], variables: Mapping[str, str], directory: Path | None, popen: StartProcess
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The command as a process group of its own. Nothing of it is left afterwards."""
    # A file, not a pipe: nobody reads while it runs, and a full pipe would stop the command.
    with tempfile.TemporaryFile() as output:
        process = popen(
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
            raise CrashTestFailed(f"the command did not end in time; it printed\n{output_tail(output)}") from None
    if process.returncode == 0:
        return True
    if process.returncode == -signal.SIGKILL and moment.point is not None:
        return False
    raise CrashTestFailed(f"the command exited with {process.returncode}; it printed\n{output_tail(output)}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Also when the process itself has ended: children that it left would write on beside the next run.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def output_tail(output: IO[bytes], size: int = 4000) -> str:
    """The last that was printed."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - size))
    return output.read().decode(errors="replace")


When: TypeAlias = Literal["before", "after"]

_RUN: ContextVar["FaultyRun"] = ContextVar("run")


class FaultPoint(NamedTuple):
    """A moment of a run: right before or right after its nth durable operation, counted from 0."""

    operation: int
    when: When


class FaultyRun:
    """One run that may be killed or frozen at a durable operation. It lists its operations."""

    def __init__(self, *, killed_at: FaultPoint | None = None, frozen_at: FaultPoint | None = None) -> None:
        self.killed_at = killed_at
        self.frozen_at = frozen_at
        self.dead = False
        self.frozen = trio.Event()
        self.thawed = trio.Event()
        self.operations: list[str] = []
        self.on_operation: Callable[[], None] = lambda: None
        """Called after every durable operation."""
        self.scope = trio.CancelScope()

    async def run(self, work: Callable[[], Awaitable[Any]]) -> bool:
        """Do the work as this run. Return False when it was killed."""
        token = _RUN.set(self)
        try:
            with self.scope:
                await work()
        finally:
            _RUN.reset(token)
        return not self.dead

    async def reach(self, point: FaultPoint) -> None:
        """Go past this point, unless the run is killed or frozen there."""
        if self.dead or point == self.killed_at:
            self.dead = True
            self.scope.cancel()
            # Tasks that are shielded from the cancellation must not continue either: a dead process does nothing.
            await trio.sleep_forever()
        if point == self.frozen_at:
            self.frozen.set()
            await self.thawed.wait()


@asynccontextmanager
async def durable(name: str) -> AsyncIterator[None]:
    """A durable operation: what the block does, without waiting. Outside of a FaultyRun it is not interrupted."""
    run = _RUN.get(None)
    await trio.lowlevel.checkpoint()
    if run is None:
        yield
        return
    number = len(run.operations)
    run.operations.append(name)
    await run.reach(FaultPoint(number, "before"))
    yield
    run.on_operation()
    await run.reach(FaultPoint(number, "after"))


class Outage:
    """A power cut at the moment with this number, counted from 0. It cancels its scope."""

    def __init__(self, moment: int) -> None:
        self.scope = trio.CancelScope()
        self.struck = False
        self._left = moment

    def pass_moment(self) -> bool:
        """Count one moment. Return False if it does not happen any more."""
        if self._left == 0:
            self.struck = True
            self.scope.cancel()
        else:
            self._left -= 1
        return not self.struck


async def run_with_outage(main: Callable[..., Awaitable[Any]], *args: Any, log: EventLog, moment: int) -> bool:
    """Run `main(*args)` up to this moment of the log. Return False when it ended by itself before that."""
    outage = Outage(moment)
    log.outage = outage
    try:
        with outage.scope:
            await main(*args)
    except Exception:
        # A killed process raises nothing.
        if not outage.struck:
            raise
    finally:
        log.outage = None
    return outage.struck


class OutageStore(MemoryStore):
    """A memory store whose writes are moments of an event log, so that an outage can cut them off."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log
        self.letters = MemoryDeadLetterStore(self._enter, self._enter_letters)

    async def _save(self, rows: list[StoredEntry]) -> None:
        await trio.lowlevel.checkpoint()
        what = [f"{row.kind}:{row.node}={row.value.decode()}" for row in rows if row.kind == "position"]
        if self._log.note("store", "save", *(what or [row.kind for row in rows])):
            await super()._save(rows)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await trio.lowlevel.checkpoint()
        if self._log.note("store", "forget", kind):
            await super()._forget(pipeline, kind, node)

    async def _enter_letters(self) -> None:
        await trio.lowlevel.checkpoint()
        # An error, because the change happens if this returns.
        if not self._log.note("store", "letters"):
            raise StateFailed("the power is cut")

    async def close(self) -> None:
        """Stay open: the next run uses it again."""
        await trio.lowlevel.checkpoint()
