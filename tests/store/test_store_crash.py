"""What the SQLite store has acknowledged is there after kill -9 and after a failing disk."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from warm_python import WarmPython

from conduit_py.store.sqlite.store import SqliteStore

CHILD = Path(__file__).with_name("store_child.py")
CALLERS = 8
NO_SECCOMP = 77


def start(action: str, *arguments: object, kill_at: str | None = None) -> subprocess.Popen[str]:
    environment = os.environ | ({"CONDUIT_KILL_AT": kill_at} if kill_at else {})
    command = [sys.executable, str(CHILD), action, *map(str, arguments)]
    return WarmPython(command, stdout=subprocess.PIPE, text=True, env=environment)


def acknowledged(lines: Iterable[str]) -> dict[str, int]:
    """The newest position of every pipeline that the child printed."""
    return {pipeline: int(number) for pipeline, number in (line.split() for line in lines)}


async def read_stored(directory: Path) -> dict[str, int]:
    """The newest position of every pipeline, after checking that both sources of a save are there or neither."""
    newest = {}
    async with await SqliteStore.open(directory) as store:
        for pipeline in await store.pipelines():
            positions = await store.positions(pipeline)
            assert positions["web"] == positions["shop"]
            newest[pipeline] = int(positions["web"])
    return newest


async def test_what_was_acknowledged_survives_kill_9_again_and_again(tmp_path: Path) -> None:
    before: dict[str, int] = {}
    for lines in (1, 50, 333, 1000, 2500):
        with start("write", tmp_path, CALLERS) as child:
            assert child.stdout is not None
            first = [child.stdout.readline() for _ in range(lines)]
            child.kill()
            told = acknowledged([*first, *child.stdout])

        kept = await read_stored(tmp_path)
        # At most one more than was printed: durable, but killed before its caller got the answer.
        for pipeline, number in (before | told).items():
            assert kept[pipeline] - number in (0, 1)
        before = kept
    assert len(before) == CALLERS


@pytest.mark.parametrize("nth", [1, 2, 40])
async def test_killed_before_a_commit_nothing_of_it_is_there(tmp_path: Path, nth: int) -> None:
    with start("write", tmp_path, 1, kill_at=f"store.before_commit:{nth}") as child:
        assert child.stdout is not None
        told = acknowledged(child.stdout)

    assert child.returncode == -signal.SIGKILL
    assert told == ({"pipeline-0": nth - 1} if nth > 1 else {})
    assert await read_stored(tmp_path) == told


@pytest.mark.parametrize("nth", [1, 2, 40])
async def test_killed_after_a_commit_all_of_it_is_there(tmp_path: Path, nth: int) -> None:
    with start("write", tmp_path, 1, kill_at=f"store.after_commit:{nth}") as child:
        assert child.stdout is not None
        told = acknowledged(child.stdout)

    assert child.returncode == -signal.SIGKILL
    assert told == ({"pipeline-0": nth - 1} if nth > 1 else {})
    assert await read_stored(tmp_path) == {"pipeline-0": nth}


async def test_after_a_failed_write_later_ones_go_to_a_renewed_file(tmp_path: Path) -> None:
    with start("too-big", tmp_path) as child:
        assert child.stdout is not None
        failed, again, read = child.stdout.read().splitlines()

    file = tmp_path / "state.db"
    assert failed == f"state.failed {file} could not be written: OperationalError: disk I/O error OperationalError"
    assert again == "saved"
    assert read == "read after"
    assert sorted(os.listdir(tmp_path)) == ["lock", "state.db"]
    async with await SqliteStore.open(tmp_path) as store:
        assert await store.positions("orders") == {"web": b"after"}
        await store.save_positions("orders", {"web": b"later"})
        assert await store.positions("orders") == {"web": b"later"}


@pytest.mark.parametrize("point", ["store.within_renewal", "store.within_adoption", "store.before_commit"])
@pytest.mark.parametrize("nth", [1, 2, 7])
async def test_killed_while_the_file_is_renewed_nothing_acknowledged_is_lost(
    tmp_path: Path, point: str, nth: int
) -> None:
    with start("renew", tmp_path, kill_at=f"{point}:{nth}") as child:
        assert child.stdout is not None
        told = [int(line.split()[1]) for line in child.stdout]

    assert child.returncode == -signal.SIGKILL
    async with await SqliteStore.open(tmp_path) as store:
        positions = await store.positions("orders")
        if told:
            assert positions["web"] == b"%d" % told[-1]
            assert len(positions["size"]) == 5000
        await store.save_positions("orders", {"web": b"after"})
    assert set(os.listdir(tmp_path)) - {"state.db.new"} == {"lock", "state.db"}


async def test_a_copy_that_is_whole_counts_and_the_log_of_the_old_file_does_not(tmp_path: Path) -> None:
    """As a power cut may leave it: the copy is there, and so are the old file and its log, newer than the copy."""
    async with await SqliteStore.open(tmp_path) as store:
        await store.save_positions("orders", {"web": b"copied"})
    (tmp_path / "state.db.whole").write_bytes((tmp_path / "state.db").read_bytes())
    with start("write", tmp_path / "other", 1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
    for name in ("state.db", "state.db-wal"):
        (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())

    async with await SqliteStore.open(tmp_path) as store:
        assert await store.positions("orders") == {"web": b"copied"}
        assert await store.pipelines() == ["orders"]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="system call numbers of Linux differ")
async def test_a_save_is_not_acknowledged_unless_the_disk_confirms_it(tmp_path: Path) -> None:
    with start("no-sync", tmp_path) as child:
        assert child.stdout is not None
        told = child.stdout.read().splitlines()
    if child.returncode == NO_SECCOMP:
        pytest.skip("the kernel lets no process filter its own system calls")
    failed, disbelieved, commits = told

    assert failed.startswith(f"state.failed {tmp_path / 'state.db'} could not be written: OperationalError: disk I/O")
    assert disbelieved.startswith(f"state.failed {tmp_path / 'state.db'} takes no more writes")
    assert commits == "commits 0"
    async with await SqliteStore.open(tmp_path) as store:
        assert await store.positions("orders") in ({"web": b"0"}, {"web": b"first"})
