"""One process at a time owns a state directory, and only as long as it lives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from warm_python import WarmPython, run_warm

from conduit_py.errors import StateLocked
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.files import StateLock
from conduit_py.store.sqlite.store import SqliteStore

CHILD = Path(__file__).with_name("store_child.py")
ADVICE = "stop that process, or choose another directory with --state"


@contextmanager
def running(action: str, directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A child that has opened the store, and the pid that it printed."""
    command = [sys.executable, str(CHILD), action, str(directory)]
    with WarmPython(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child, int(child.stdout.readline().split()[1])
        finally:
            child.kill()


async def test_a_second_process_is_refused_and_shown_who_has_the_directory(tmp_path: Path) -> None:
    with running("hold", tmp_path) as (child, pid):
        with pytest.raises(StateLocked) as refused:
            await SqliteStore.open(tmp_path)

        assert child.pid == pid
        assert str(refused.value) == f"state directory {tmp_path} is in use by process {pid}"
        assert refused.value.suggestion == ADVICE


async def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path) as store:
        with pytest.raises(StateLocked) as refused:
            await SqliteStore.open(tmp_path)
        await store.save_positions("orders", {"web": b"1"})

    expected = f"state directory {tmp_path} is in use by this process already (pid {os.getpid()})"
    assert str(refused.value) == expected


async def test_the_lock_ends_with_its_owner_even_by_kill_9(tmp_path: Path) -> None:
    with running("hold", tmp_path) as (child, _):
        child.kill()
        child.wait()

        async with await SqliteStore.open(tmp_path) as store:
            assert await store.pipelines() == []


@pytest.mark.parametrize("action", ["fork", "exec"])
async def test_a_child_that_outlives_the_owner_does_not_keep_the_lock(tmp_path: Path, action: str) -> None:
    with running(action, tmp_path) as (owner, orphan):
        try:
            with pytest.raises(StateLocked, match=f"in use by process {owner.pid}"):
                await SqliteStore.open(tmp_path)
            owner.kill()
            owner.wait()
            os.kill(orphan, 0)

            async with await SqliteStore.open(tmp_path) as store:
                assert await store.pipelines() == []
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_forked_child_that_ends_takes_neither_lock_nor_log_away(tmp_path: Path) -> None:
    # In a process of its own: forking pytest's would run pytest's exit twice.
    script = f"""
import os, sys
from pathlib import Path
from conduit_py.store.sqlite.database import StateDatabase
database = StateDatabase.open(Path({str(tmp_path)!r}))
database.connection.execute("INSERT INTO entries VALUES ('orders', 'position', 'web', '1')")
if os.fork() == 0:
    sys.exit()
os.wait()
database.connection.execute("INSERT INTO entries VALUES ('orders', 'position', 'shop', '2')")
try:
    StateDatabase.open(Path({str(tmp_path)!r}))
except Exception as error:
    print(error.code, flush=True)
os.kill(os.getpid(), 9)
"""
    ended = run_warm([sys.executable, "-c", script])
    database = StateDatabase.open(tmp_path)
    nodes = [node for (node,) in database.connection.execute("SELECT node FROM entries ORDER BY node")]
    database.close()

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGKILL, "state.locked\n", "")
    assert nodes == ["shop", "web"]


def test_a_lock_names_no_owner_when_none_is_written_yet(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path)
    (tmp_path / "lock").write_text("")
    with pytest.raises(StateLocked, match="is in use by another process"):
        StateLock.acquire(tmp_path)
    lock.release()
    lock.release()

    StateLock.acquire(tmp_path).release()
