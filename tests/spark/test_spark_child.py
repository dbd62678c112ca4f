"""A pipeline in a process of its own, as servers run those on Spark; here without Java, which makes no difference.

Invariants C1 to C4 of `conduit_py/child/supervisor.py`.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, generator
from warm_python import WarmPython

from conduit_py import Destination, Pipeline, Recovery, Source, processor, sdk
from conduit_py.child.supervisor import ChildSupervisor
from conduit_py.errors import StateFailed
from conduit_py.status import Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import StoredEntry
from conduit_py.stream.meter import Progress

SOON = Recovery(delay_seconds=0.05, delay_max_seconds=0.1)


def pipeline(folder: Path, *, count: int | None = None, **more: Any) -> Pipeline:
    pace = {"rate": 400} if count is None else {"count": count}
    made = generator.Source(**pace, fields={"id": "index"})  # type: ignore[arg-type]
    kept = Destination("kept", file.Destination(path=folder / "kept.jsonl", format="json"))
    return Pipeline("made", sources=[Source("made", made)], **{"destinations": [kept], **more})


def kept(folder: Path) -> list[int]:
    lines = (folder / "kept.jsonl").read_text().splitlines()
    return [json.loads(line)["id"] for line in lines]


async def until(supervisor: ChildSupervisor, wanted: Callable[[Progress], object]) -> Progress:
    with trio.fail_after(300):
        while not wanted(seen := supervisor.progress()):  # noqa: ASYNC110 - another process changes it
            await trio.sleep(0.02)
        return seen


def pid(supervisor: ChildSupervisor) -> int:
    assert supervisor.child is not None
    return supervisor.child.pid


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_bounded_pipeline_completes_and_the_server_has_its_state(tmp_path: Path) -> None:
    store = MemoryStore()
    supervisor = ChildSupervisor(pipeline(tmp_path, count=1000), store)
    state = await supervisor.run()
    seen = supervisor.progress()

    assert (state.status, state.error) == (Status.COMPLETED, None)
    assert await store.state("made") == state
    assert kept(tmp_path) == list(range(1000))
    assert (seen.read, seen.acked, seen.in_flight, seen.blocked_on, seen.status) == (1000, 1000, 0, None, "completed")
    assert {meter.node: meter.records for meter in seen.nodes} == {"made": 1000, "kept": 1000, "dead-letters": 0}
    assert await store.positions("made") == {"made": b"generator:1:999"}
    assert supervisor.child is None


async def test_a_graceful_stop_drains_and_the_next_start_goes_on_there(tmp_path: Path) -> None:
    store = MemoryStore()
    for goal in (100, 200):
        supervisor = ChildSupervisor(pipeline(tmp_path), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            assert supervisor.progress().blocked_on is None
            await until(supervisor, lambda seen, goal=goal: seen.acked > goal)  # type: ignore[misc]
            number = pid(supervisor)
            supervisor.stop()
            assert supervisor.state.status is Status.STOPPING

        assert (supervisor.state.status, supervisor.state.stopped_by) == (Status.STOPPED, Stopper.USER)
        assert not alive(number)
        assert kept(tmp_path) == list(range(len(kept(tmp_path))))
        assert (await store.positions("made"))["made"] == b"generator:1:%d" % (len(kept(tmp_path)) - 1)


async def test_a_child_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    store = MemoryStore()
    supervisor = ChildSupervisor(pipeline(tmp_path, delivery="exactly_once"), store, recovery=SOON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(supervisor, lambda seen: seen.acked > 100)
        first = pid(supervisor)
        os.kill(first, signal.SIGKILL)
        await until(supervisor, lambda seen: seen.recoveries == 1)
        error = supervisor.state.error
        before = supervisor.progress().acked
        await until(supervisor, lambda seen: seen.acked > before + 100)
        assert (supervisor.state.status, supervisor.state.error) == (Status.RUNNING, error)
        assert not alive(first)
        supervisor.stop()

    assert error is not None
    assert (error.code, error.message) == (
        "process.lost",
        "the process in which made runs on Spark was ended by SIGKILL",
    )
    assert before > 100
    assert kept(tmp_path) == list(range(len(kept(tmp_path))))
    assert supervisor.progress().recoveries == 1


async def test_a_child_that_ends_by_itself_is_reported_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    @processor
    def exits(record: Any) -> Any:
        print("cannot go on", file=sys.stderr, flush=True)
        os._exit(3)

    store = MemoryStore()
    state = await ChildSupervisor(pipeline(tmp_path, processors=[exits]), store, recovery=Recovery(retries=0)).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.message == (
        "the process in which made runs on Spark ended by itself with exit code 3; its last line was: cannot go on"
    )
    assert await store.state("made") == state


async def test_nobody_who_waits_for_a_child_is_held_up_by_one_that_is_frozen(tmp_path: Path) -> None:
    supervisor = ChildSupervisor(pipeline(tmp_path), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(supervisor, lambda seen: seen.acked > 1)
        number = pid(supervisor)
        os.kill(number, signal.SIGSTOP)
        nursery.cancel_scope.cancel()

    assert not alive(number)


class Stuck(sdk.DestinationConnector[sdk.Options]):
    """A destination that never answers."""

    async def write(self, batch: Any) -> None:
        await trio.sleep_forever()


async def test_a_forceful_stop_ends_what_would_not_end(tmp_path: Path) -> None:
    supervisor = ChildSupervisor(pipeline(tmp_path, destinations=[Destination("kept", Stuck())]), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        seen = await until(supervisor, lambda seen: seen.in_flight > 10)
        supervisor.force()

    assert seen.acked == 0
    assert (supervisor.state.status, supervisor.state.error) == (Status.STOPPED, None)
    assert (supervisor.progress().in_flight, supervisor.child) == (0, None)


async def test_a_child_that_does_not_answer_is_reported_and_killed_by_force(tmp_path: Path) -> None:
    supervisor = ChildSupervisor(pipeline(tmp_path), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(supervisor, lambda seen: seen.acked > 1)
        number = pid(supervisor)
        os.kill(number, signal.SIGSTOP)
        seen = await until(supervisor, lambda seen: seen.blocked_on)
        supervisor.stop()
        supervisor.force()

    assert seen.blocked_on == "its process, which has sent nothing for 5 s"
    assert (supervisor.state.status, supervisor.state.error) == (Status.STOPPED, None)
    assert not alive(number)


class FailingStore(MemoryStore):
    """A disk that fails while the test says so."""

    failing = False

    async def _save(self, rows: list[StoredEntry]) -> None:
        if self.failing and rows[0].kind == "position":
            raise StateFailed("the disk is full")
        await super()._save(rows)


async def test_an_error_of_the_store_is_the_same_error_in_the_child(tmp_path: Path) -> None:
    store = FailingStore()
    supervisor = ChildSupervisor(pipeline(tmp_path), store, recovery=SOON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(supervisor, lambda seen: seen.acked > 1)
        first = pid(supervisor)
        store.failing = True
        await until(supervisor, lambda seen: seen.recoveries)
        error = supervisor.state.error
        store.failing = False
        acked = supervisor.progress().acked
        await until(supervisor, lambda seen: seen.acked > acked + 10)
        assert pid(supervisor) == first, "what the child can make good needs no other one"
        supervisor.stop()

    assert error is not None
    assert (error.code, error.message) == ("state.failed", "the disk is full")
    assert set(kept(tmp_path)) == set(range(max(kept(tmp_path)) + 1))


async def test_what_cannot_be_sent_to_a_child_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()

    @processor
    def locked(record: Any) -> Any:
        with lock:
            return record

    supervisor = ChildSupervisor(pipeline(tmp_path, processors=[locked]), MemoryStore(), recovery=SOON)
    state = await supervisor.run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert "processors.locked: cannot be sent to a process of its own: TypeError: cannot pickle" in state.error.message


async def test_what_a_child_logs_and_says_is_in_the_log_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @processor
    def chatty(record: Any) -> Any:
        logging.getLogger("conduit_py.chatty").warning("number %d", record.payload["id"])
        print("out of the blue", file=sys.stderr, flush=True)
        return record

    caplog.set_level(logging.INFO)
    await ChildSupervisor(pipeline(tmp_path, count=1, processors=[chatty]), MemoryStore()).run()

    assert ("conduit_py.chatty", logging.WARNING, "made: number 0") in caplog.record_tuples
    assert ("conduit_py", logging.INFO, "made: out of the blue") in caplog.record_tuples


async def test_the_user_has_the_last_word_when_the_system_stops_it_too(tmp_path: Path) -> None:
    store = MemoryStore()
    supervisor = ChildSupervisor(pipeline(tmp_path), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(supervisor, lambda seen: seen.acked > 1)
        supervisor.stop(Stopper.SYSTEM)
        supervisor.stop(Stopper.USER)

    assert (await store.state("made")).stopped_by is Stopper.USER


SERVER = """
import sys
from pathlib import Path
import trio
from conduit_connectors import file, generator
from conduit_py import Destination, Pipeline, Source
from conduit_py.child.supervisor import ChildSupervisor
from conduit_py.store.sqlite.store import SqliteStore

async def main():
    made = Pipeline(
        "made",
        sources=[Source("made", generator.Source(rate=400, fields={"id": "index"}))],
        destinations=[Destination("kept", file.Destination(path="kept.jsonl", format="json"))],
        delivery="exactly_once",
    )
    async with await SqliteStore.open(Path("state")) as store, trio.open_nursery() as nursery:
        supervisor = ChildSupervisor(made, store)
        nursery.start_soon(supervisor.run)
        while supervisor.progress().acked < int(sys.argv[1]):
            await trio.sleep(0.02)
        print(supervisor.child.pid, flush=True)

trio.run(main)
"""


def test_no_child_outlives_its_server_and_nothing_is_lost_with_it(tmp_path: Path) -> None:
    for acked in ("100", "50"):
        command = [sys.executable, "-c", SERVER, acked]
        with WarmPython(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            child = int(server.stdout.readline())
            assert alive(child)
            server.kill()
        deadline = time.monotonic() + 300
        while alive(child):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    assert len(kept(tmp_path)) >= 150
    assert kept(tmp_path) == list(range(len(kept(tmp_path))))
