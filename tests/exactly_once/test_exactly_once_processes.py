"""Exactly-once in real processes: killed, with writes torn and syncs that fail, until the work is done all the same.

CONDUIT_XO_RECORDS and CONDUIT_XO_KILLS make it larger; `make exactly-once` runs it in full.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import journal, memory
from warm_python import WarmPython, run_warm

from conduit_py import Destination, Pipeline, Source
from conduit_py.status import Status
from conduit_py.testing import run_to_end

CHILD = Path(__file__).with_name("exactly_once_child.py")
SHIM = Path(__file__).with_name("faulty_disk.c")
RECORDS = int(os.environ.get("CONDUIT_XO_RECORDS", "12000"))
KILLS = int(os.environ.get("CONDUIT_XO_KILLS", "10"))
SECONDS_MAX = 600.0 + 60.0 * KILLS
POINTS = [
    "transaction.recovered",
    "dispatcher.after_register",
    "writer.after_write",
    "transaction.before_stage",
    "transaction.before_commit",
    "transaction.before_home_commit",
    "transaction.after_home_commit",
    "transaction.after_commit",
    "transaction.after_apply",
    "settler.after_ack",
    "store.before_commit",
    "store.after_commit",
]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The faulty disk, where there is a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = tmp_path_factory.mktemp("shim") / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


class Ordeal:
    """Starts the process again and again, with another misfortune each time, each in its turn."""

    def __init__(self, folder: Path, shim: Path | None, seed: int) -> None:
        self._folder = folder
        self._shim = shim
        self._rng = random.Random(seed)
        self._turn = 0
        self.records = 0
        self.suffered: Counter[str] = Counter()

    def endure(self, misfortunes: int) -> None:
        """Give it work, and more whenever that is done, until it has suffered so much; then let it finish."""
        self._fill()
        while self.suffered.total() < misfortunes:
            if self._suffer():
                self._fill()
        assert self._start({}, 300.0) == 0

    def _fill(self) -> None:
        numbers = str(self.records), str(self.records + RECORDS)
        run_warm([sys.executable, CHILD, "fill", self._folder, *numbers], check=True)
        self.records += RECORDS

    def _suffer(self) -> bool:
        """One more start; True when the work was done before the misfortune came."""
        kinds = ["killed at random", *(["torn write", "sync fails"] if self._shim else []), *POINTS]
        kind = kinds[self._turn % len(kinds)]
        self._turn += 1
        seconds = self._rng.uniform(0.8, 3.0) if kind == "killed at random" else 60.0
        code = self._start(self._fate(kind), seconds)
        assert code in (0, 3, -signal.SIGKILL)
        if code != 0:
            self.suffered[kind] += 1
        return code == 0

    def _fate(self, kind: str) -> dict[str, str]:
        nth = self._rng.choice((1, 2, 3, 5, 8))
        if kind in POINTS:
            return {"CONDUIT_KILL_AT": f"{kind}:{1 if kind == 'transaction.recovered' else nth}"}
        if kind in ("torn write", "sync fails"):
            name = "FAULT_TORN_AT" if kind == "torn write" else "FAULT_EIO_AT"
            return {"LD_PRELOAD": str(self._shim), "FAULT_ROOT": str(self._folder), name: str(5 * nth)}
        return {}

    def _start(self, fate: dict[str, str], seconds: float) -> int:
        # The faulty disk is loaded at the start of a process.
        start = subprocess.Popen if "LD_PRELOAD" in fate else WarmPython
        process = start(
            [sys.executable, str(CHILD), "run", str(self._folder)],
            env=os.environ | fate,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            assert "EIO_AT" in str(fate), output
        return process.returncode


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
async def test_sums_are_exact_and_seen_once_in_order(tmp_path: Path, shim: Path | None) -> None:
    ordeal = Ordeal(tmp_path, shim, seed=4)
    await trio.to_thread.run_sync(ordeal.endure, KILLS)
    print(f"{ordeal.records} records, {ordeal.suffered.total()} misfortunes: {dict(ordeal.suffered)}")

    expected = list(enumerate(accumulate(range(ordeal.records))))
    assert rows(tmp_path) == expected
    assert await read_committed(tmp_path) == expected


def rows(folder: Path) -> list[tuple[int, int]]:
    with sqlite3.connect(folder / "out.db") as connection:
        return connection.execute("SELECT n, sum FROM sums ORDER BY rowid").fetchall()


async def read_committed(folder: Path) -> list[tuple[int, int]]:
    """What a reader of committed messages sees in the journal."""
    seen: list[Any] = []
    outcome = await run_to_end(
        Pipeline(
            "reader",
            sources=[Source("out", journal.Source(path=folder / "out", until="end"))],
            destinations=[Destination("seen", memory.Destination(into=seen))],
        )
    )
    assert outcome.status is Status.COMPLETED, outcome.error
    return [(record.payload["n"], record.payload["sum"]) for record in seen]
