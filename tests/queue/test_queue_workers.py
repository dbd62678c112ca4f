"""Real processes share a queue: killed and frozen at random, they bring every object's records once and in order.

QW-I1 (duplicates are read once and acked in the end) and QW-N1 (of two who have the same work one commits) for real.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from queue_harness import NAMES, QueueHarness
from warm_python import WarmPython

CHILD = Path(__file__).with_name("worker_child.py")
OBJECTS, LINES = 10, 40
COMMIT = 20
"""At most so many records are in a transaction."""
TERMS = {"messages": "uri", "group": "workers", "lease_seconds": 2, "commit_seconds": 1}


class Workers:
    """Workers of one queue, and what they have brought."""

    def __init__(self, harness: QueueHarness, folder: Path, state: str) -> None:
        self._harness = harness
        self._folder = folder
        self._state = state
        self._out = folder / "out.db"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Asked again and again: a connection for each question would cost the server a process.
        self._connection = psycopg.connect(state, autocommit=True)

    def announce(self, count: int, lines: int, *, twice: Sequence[int] = ()) -> None:
        for number in range(count):
            content = "".join(json.dumps({"object": number, "n": n}) + "\n" for n in range(lines))
            (self._folder / f"{number}.jsonl").write_text(content)
        announced = [*range(count), *twice]
        self._harness.send([str(self._folder / f"{number}.jsonl").encode() for number in announced])

    def start(self, id: str, *, kill_at: str = "", **more: Any) -> None:
        settings = {"id": id, "plugin": self._harness.plugin, "options": self._options(), **more}
        settings |= {"state": self._state, "out": str(self._out)}
        environment = dict(os.environ) | ({"CONDUIT_KILL_AT": kill_at} if kill_at else {})
        with self.log(id).open("ab") as log:
            self._running[id] = WarmPython(
                [sys.executable, CHILD, json.dumps(settings)],
                ["conduit_connectors.nats", "conduit_connectors.redis_streams", "conduit_connectors.sqs"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def _options(self) -> dict[str, Any]:
        return self._harness.options() | TERMS | {"allowed_prefixes": [str(self._folder)]}

    def log(self, id: str) -> Path:
        return self._folder / f"{id}.log"

    def signal(self, id: str, which: signal.Signals) -> None:
        self._running[id].send_signal(which)
        if which is signal.SIGKILL:
            self._running[id].wait(300)

    def is_dead(self, id: str) -> bool:
        return self._running[id].poll() is not None

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(300)

    def close(self) -> None:
        self._connection.close()

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Object and line, in the order in which they arrived."""
        if not self._out.exists():
            return []
        connection = sqlite3.connect(self._out, timeout=300)
        try:
            return connection.execute("SELECT object, n FROM lines ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:
            return []  # the table is made with the first rows
        finally:
            connection.close()

    def by_object(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, n in self.rows:
            found.setdefault(number, []).append(n)
        return found

    def done(self) -> int:
        """How many objects are committed to their end."""
        try:
            rows = self._connection.execute("SELECT 1 FROM conduit_py.shards WHERE done <> 0").fetchall()
        except psycopg.errors.UndefinedTable:
            return 0  # nobody has opened the store yet
        return len(rows)

    def until(self, what: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self._report()
            time.sleep(0.05)

    def _report(self) -> str:
        brought = {number: len(lines) for number, lines in sorted(self.by_object().items())}
        logs = "\n".join(f"--- {id}\n{self.log(id).read_text()[-3000:]}" for id in self._running)
        return f"not in time: rows {brought}, {self._harness.left()} messages left\n{logs}"


@pytest.fixture
def make_workers(tmp_path: Path, postgres: str) -> Iterator[Callable[[QueueHarness], Workers]]:
    made: list[Workers] = []

    def make(harness: QueueHarness) -> Workers:
        made.append(Workers(harness, tmp_path, postgres))
        return made[-1]

    yield make
    for workers in made:
        workers.end()
        workers.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_qw_i1_two_workers_that_are_killed_at_random_bring_every_record_once_and_in_order(
    name: str, make_harness: Callable[[str], QueueHarness], make_workers: Callable[[QueueHarness], Workers]
) -> None:
    rng = random.Random(name)
    harness = make_harness(name)
    workers = make_workers(harness)
    workers.announce(OBJECTS, LINES, twice=rng.sample(range(OBJECTS), 4))
    names = ["one", "two"]
    for each in names:
        workers.start(each)
    for _ in range(3):
        before = len(workers.rows)
        workers.until(partial(lambda before: len(workers.rows) > before or workers.done() == OBJECTS, before))
        time.sleep(rng.random() / 5)
        killed = rng.choice(names)
        workers.signal(killed, signal.SIGKILL)
        workers.start(killed)

    workers.until(lambda: workers.done() == OBJECTS and harness.left() == 0)
    workers.end()

    assert workers.by_object() == {number: list(range(LINES)) for number in range(OBJECTS)}
    harness.close()


@pytest.mark.slow
def test_i14_a_worker_that_was_frozen_beyond_its_lease_commits_nothing_more_of_what_it_had(
    make_harness: Callable[[str], QueueHarness], make_workers: Callable[[QueueHarness], Workers]
) -> None:
    harness = make_harness("sqlite")
    workers = make_workers(harness)
    workers.announce(1, LINES)
    workers.start("late", freeze_at=25)
    workers.until(lambda: "frozen" in workers.log("late").read_text())
    assert 0 < len(workers.rows) < LINES

    workers.start("heir")
    workers.until(lambda: workers.done() == 1 and len(workers.rows) >= LINES)
    workers.signal("late", signal.SIGCONT)
    workers.until(lambda: "transaction.stale_token" in workers.log("late").read_text())
    workers.until(lambda: harness.left() == 0)
    workers.end()

    assert workers.by_object() == {0: list(range(LINES))}
    harness.close()


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
def test_what_a_worker_had_committed_and_not_shown_is_seen_in_order_though_it_never_comes_back(
    nth: int, make_harness: Callable[[str], QueueHarness], make_workers: Callable[[QueueHarness], Workers]
) -> None:
    harness = make_harness("sqlite")
    workers = make_workers(harness)
    workers.announce(1, LINES)
    workers.start("dead", kill_at=f"transaction.after_commit:{nth}")
    workers.until(lambda: workers.is_dead("dead"))
    seen = len(workers.rows)

    workers.start("heir")
    workers.until(lambda: workers.done() == 1 and harness.left() == 0)
    workers.end()

    assert seen < nth * COMMIT <= LINES
    assert workers.by_object() == {0: list(range(LINES))}
    harness.close()
