"""Tests change data capture on a real database: a load, kills at named points, then the copy must equal the origin.

`check_cdc` says what is done and what is checked. `CdcDatabase` has what differs between databases; `cdc_tables` has
the tables, the load and the checks.
"""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, NamedTuple, NoReturn, Protocol, TypeAlias

import msgspec

from conduit_py.testing.cdc_tables import (
    ANCHOR,
    LEAD_MAX,
    TABLES,
    WRITERS,
    CdcDatabase,
    CdcWriter,
    Tables,
    find_gap,
    find_mangled,
    find_step_back,
    find_torn_pair,
    find_torn_sum,
    first_difference,
)
from conduit_py.testing.crash import AT_RANDOM, KILL_VARIABLE, StartProcess, output_tail, start_command

__all__ = ["CdcApplied", "CdcCheckFailed", "CdcCopy", "CdcDatabase", "CdcReport", "check_cdc"]

Delivery: TypeAlias = Literal["at_least_once", "exactly_once"]

SNAPSHOT_KILLS: Mapping[str, Mapping[str, str]] = {
    "at_least_once": {
        "mid-snapshot": "dispatcher.after_register",
        "mid-chunk": "writer.after_write",
        "mid-position-write": "settler.before_persist",
    },
    "exactly_once": {
        "mid-snapshot": "dispatcher.after_register",
        "mid-chunk": "writer.after_write",
        "mid-position-write": "transaction.before_commit",
    },
}
"""Where the process is killed while the first snapshot is read: the name of the moment, and its crash point."""
HANDOFF = "mid-handoff"
"""It is killed when the last row of that snapshot has arrived: from then on there are only changes."""
STREAM_KILLS: Mapping[str, Mapping[str, str]] = {
    "at_least_once": {"mid-transaction": "writer.after_write", "before-ack": "settler.after_persist"},
    "exactly_once": {"mid-transaction": "writer.after_write", "before-ack": "transaction.after_commit"},
}
"""Where it is killed afterwards."""
_NTH = (1, 2, 3, 5, 8)
_LOOK_SECONDS = 0.2


class CdcCheckFailed(AssertionError):
    """The copy is not what it must be. The message has the seed, the last kill, and what both sides have."""


class CdcApplied(NamedTuple):
    """A row that was written to the copy."""

    table: str
    id: int
    version: int
    """`version` of a row of `cdc_rows`, `n` of a row of `cdc_ledger`."""


class CdcCopy(Protocol):
    """What the kit needs of the copy. `CdcDatabase` has both methods; a lake or a file needs a class of its own."""

    def read(self) -> Tables:
        """All rows of the tables by their id, in one consistent look. A table that is missing has no rows."""
        ...

    def add_column(self, name: str) -> None:
        """Make room for whole numbers in `cdc_rows`, if the destination does not do so by itself."""
        ...


class CdcReport(msgspec.Struct):
    """What the pipeline went through."""

    kills: Counter[str] = msgspec.field(default_factory=Counter)
    """Of the process, by the name of the moment."""
    server_kills: int = 0
    snapshots: int = 0
    """How often a snapshot was requested."""
    transactions: int = 0
    looks: int = 0
    """How often the copy was checked."""
    seconds: float = 0.0


def check_cdc(
    command: Sequence[str | Path],
    *,
    origin: CdcDatabase,
    copy: CdcCopy,
    delivery: Delivery = "at_least_once",
    atomic: bool = False,
    seed: int = 0,
    random_kills: int = 0,
    server_kills: int = 1,
    request_snapshot: Callable[[int], None] | None = None,
    history: Callable[[], Iterable[CdcApplied]] | None = None,
    patience_seconds: float = 300.0,
    popen: StartProcess = subprocess.Popen,
) -> CdcReport:
    """Run a pipeline from `origin` to `copy`, kill it again and again under load, and compare both.

    `command` runs the pipeline until it is killed. The tables are created in `origin`; those of the copy are the
    caller's. The process is killed at each named point, then `random_kills` times at random moments.
    `origin.restart` is called `server_kills` times, which the process must survive. Columns are added meanwhile.
    `request_snapshot` asks the pipeline with this process id for a snapshot of `cdc_rows`, before every random kill.

    At many moments the copy is read. With `atomic` it never has half of a transaction. After the first snapshot its
    ledger never has a gap; exactly once, its rows also have the right checksums and never go back to an older version.
    In the end both sides are equal. `history` returns what was written to the copy, in order: the versions of each row
    come first in their order; exactly once, a transaction after the first snapshot is written once.

    `popen` starts the process, and takes and returns what `subprocess.Popen` does.
    Raises CdcCheckFailed, also if nothing arrives for `patience_seconds`. The seed decides what the load does and
    where it is killed, not how the processes interleave.
    """
    started = time.monotonic()
    check = _Check(command, origin, copy, delivery, atomic, seed, patience_seconds, popen)
    origin.create_tables()
    for writer in check.writers:
        writer.fill()
    with check.load():
        for name, point in SNAPSHOT_KILLS[delivery].items():
            check.kill_at(name, point)
        check.kill_at_handoff()
    check.settle()
    check.is_past_snapshot = True
    known = {index: writer.number for index, writer in enumerate(check.writers)}
    with check.load():
        for name, point in STREAM_KILLS[delivery].items():
            check.kill_at(name, point)
            check.add_column()
        for turn in range(max(random_kills, server_kills)):
            check.kill_at_random(origin.restart if turn < server_kills else None, request_snapshot)
    check.settle()
    if history is not None:
        check.check_history(history(), known)
    check.report.transactions = sum(writer.number for writer in check.writers)
    check.report.seconds = time.monotonic() - started
    return check.report


class _Check:
    """A pipeline under load: the process, what was last done to it, and what was last seen in the copy."""

    def __init__(
        self,
        command: Sequence[str | Path],
        origin: CdcDatabase,
        copy: CdcCopy,
        delivery: Delivery,
        atomic: bool,
        seed: int,
        patience_seconds: float,
        popen: StartProcess,
    ) -> None:
        self._command, self._origin, self._copy = command, origin, copy
        self._exactly_once, self._atomic = delivery == "exactly_once", atomic
        self._seed, self._rng = seed, random.Random(seed)
        self._patience_seconds = patience_seconds
        self._popen = popen
        self._event = "the start"
        self._output: IO[bytes] | None = None
        self._seen: Tables = {table: {} for table in TABLES}
        self._columns = 0
        self._writing: list[Future[None]] = []
        self.writers = [CdcWriter(origin, seed, index) for index in range(WRITERS)]
        self.report = CdcReport()
        self.is_past_snapshot = False

    @contextmanager
    def load(self) -> Iterator[None]:
        """Transactions in the background."""
        ended = threading.Event()
        with ThreadPoolExecutor(WRITERS) as pool:
            self._writing = [pool.submit(writer.run, ended) for writer in self.writers]
            try:
                yield
            finally:
                ended.set()
        for each in self._writing:
            each.result()

    def kill_at(self, name: str, point: str) -> None:
        chosen = f"{point}:{self._rng.choice(_NTH)}"
        with self._pipeline(chosen) as process:

            def is_dead() -> bool:
                self._look()
                return process.poll() is not None

            self._wait(is_dead, lambda: f"the pipeline does not reach {name} ({chosen})")
            if process.returncode != -signal.SIGKILL:
                self._fail(f"the pipeline exited with {process.returncode} before it reached {name} ({chosen})")
        self._note_kill(name, chosen)

    def kill_at_handoff(self) -> None:
        with self._pipeline() as process:
            self._wait_for_copy(
                process,
                lambda: all(ANCHOR in self._seen[table] for table in TABLES),
                lambda: "the first snapshot does not end",
            )
        self._note_kill(HANDOFF)

    def kill_at_random(self, restart: Callable[[], None] | None, request: Callable[[int], None] | None) -> None:
        with self._pipeline() as process:
            self._wait_for_transaction(process)
            if request is not None:
                request(process.pid)
                self.report.snapshots += 1
            if restart is not None:
                restart()
                self.report.server_kills += 1
                self._event = f"restart {self.report.server_kills} of the server"
                self._wait_for_transaction(process)
            ends_at = time.monotonic() + self._rng.uniform(0.1, 2)
            self._wait_for_copy(process, lambda: time.monotonic() > ends_at, str)
        self._note_kill(AT_RANDOM)

    def add_column(self) -> None:
        """While no pipeline runs, so that changes from before and after it wait to be read."""
        self._columns += 1
        for side in (self._copy, self._origin):
            side.add_column(f"added_{self._columns}")

    def settle(self) -> None:
        """Without load: wait until both sides are equal."""
        origin = self._origin.read()
        with self._pipeline() as process:
            self._wait_for_copy(
                process,
                lambda: first_difference(origin, self._seen) is None,
                lambda: f"the copy is not equal to the origin: {first_difference(origin, self._seen)}",
            )
        self._fail_if(find_mangled(self._seen))

    def check_history(self, applied: Iterable[CdcApplied], known: Mapping[int, int]) -> None:
        self._fail_if(find_disorder(applied, known if self._exactly_once else None))

    @contextmanager
    def _pipeline(self, kill_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
        environment = os.environ | {KILL_VARIABLE: kill_at}
        with start_command(self._command, environment, None, self._popen) as (process, self._output):
            yield process

    def _note_kill(self, name: str, point: str = "") -> None:
        self.report.kills[name] += 1
        self._event = f"kill {self.report.kills.total()}, {name}{point and f' ({point})'}"

    def _wait_for_transaction(self, process: subprocess.Popen[bytes]) -> None:
        known = len(self._copy.read()["cdc_ledger"])
        self._wait_for_copy(
            process, lambda: len(self._seen["cdc_ledger"]) > known, lambda: "no transaction arrives any more"
        )

    def _wait_for_copy(
        self, process: subprocess.Popen[bytes], condition: Callable[[], bool], problem: Callable[[], str]
    ) -> None:
        def is_reached() -> bool:
            if process.poll() is not None:
                self._fail(f"the pipeline exited with {process.returncode}")
            self._look()
            return condition()

        self._wait(is_reached, problem)

    def _wait(self, condition: Callable[[], bool], problem: Callable[[], str]) -> None:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            began = time.monotonic()
            if condition():
                return
            for each in self._writing:
                if each.done():
                    each.result()
            if time.monotonic() > deadline:
                self._fail(problem())
            # At most half of the time goes into looks: where they are slow, the pipeline needs the machine more.
            time.sleep(max(_LOOK_SECONDS, time.monotonic() - began))

    def _look(self) -> None:
        """Read the copy and check it."""
        now, before = self._copy.read(), self._seen
        self.report.looks += 1
        self._seen = now
        for row in now["cdc_ledger"].values():
            if row["writer"] >= 0:
                writer = self.writers[row["writer"]]
                writer.number_max = max(writer.number_max, row["n"] + LEAD_MAX)
        if self._atomic:
            self._fail_if(find_torn_pair(now))
        if self.is_past_snapshot:
            self._fail_if(find_gap(now))
            if self._atomic:
                self._fail_if(find_torn_sum(now))
            if self._exactly_once:
                self._fail_if(find_mangled(now))
                self._fail_if(find_step_back(before, now))

    def _fail_if(self, problem: str | None) -> None:
        if problem is not None:
            self._fail(problem)

    def _fail(self, problem: str) -> NoReturn:
        printed = "" if self._output is None or self._output.closed else output_tail(self._output)
        raise CdcCheckFailed(f"{problem}\nseed {self._seed}, after {self._event}\nthe pipeline printed\n{printed}")


def find_disorder(applied: Iterable[CdcApplied], known: Mapping[int, int] | None) -> str | None:
    """A version that came after a newer one for the first time, or a transaction after those known that came twice."""
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    for table, key, version in applied:
        versions = seen[table, key]
        if version not in versions and version < max(versions, default=version):
            return f"version {version} of the row {key} of {table} was written first after {max(versions)}"
        if known is not None and table == "cdc_ledger" and version in versions and version > known[key % WRITERS]:
            return f"transaction {version} of writer {key % WRITERS} was written twice"
        versions.add(version)
    return None
