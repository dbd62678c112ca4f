"""Backups of a state that is in use: each is what was committed at one moment. Restores: whole, or refused."""

import itertools
import math
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from conduit_py import crash_point
from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import ConduitError, EnvironmentUnfit, StateFailed, StateLocked
from conduit_py.record import Record
from conduit_py.store.claim import Changes
from conduit_py.store.sqlite import backup as backup_module
from conduit_py.store.sqlite.backup import FENCE_STEP, back_up, read_backup, restore
from conduit_py.store.sqlite.files import hold_checkpoints
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.sqlite.tables import SqliteSession

OFTEN = "PRAGMA wal_autocheckpoint = 4"


def letter(number: int) -> DeadLetter:
    record = Record.of({"n": number}, position=b"%d" % number)
    return DeadLetter("p", MessageId("web", number, ()), b"%d" % number, record, [Failure("lake", "bad")], at=1000.0)


async def save(store: SqliteStore, number: int) -> None:
    """As the settler does: the letter first, then the position behind it. The padding makes pages to checkpoint."""
    await store.letters.store([letter(number)])
    await store.save_positions("p", {"web": b"%d" % number, "padding": os.urandom(20_000)})


def content(backup: Path) -> tuple[int, int]:
    """The position and the number of letters in a backup."""
    with closing(sqlite3.connect(backup / "state.db")) as connection:
        rows = connection.execute("SELECT value FROM entries WHERE kind = 'position' AND node = 'web'").fetchall()
    letters = 0
    if (backup / "letters.db").exists():
        with closing(sqlite3.connect(backup / "letters.db")) as connection:
            [(letters,)] = connection.execute("SELECT count(*) FROM letters")
    return int(rows[0][0]) if rows else 0, letters


def files_of(state: Path) -> list[tuple[bytes, bytes]]:
    """Each database file, and the header of its log, which differs when the log was begun again."""
    names = ("state.db", "letters.db")
    return [((state / name).read_bytes(), (state / f"{name}-wal").read_bytes()[:32]) for name in names]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def checkpoint_often(store: SqliteStore) -> None:
    """Checkpoint after nearly every commit, which is the worst case for a backup."""
    await store.transact(lambda tables: cast(SqliteSession, tables.sql).connection.execute(OFTEN))
    await store.letters._change(lambda letters: cast(SqliteSession, letters.sql).connection.execute(OFTEN))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_backups_under_load_have_all_that_was_committed_and_no_position_without_its_letter(
    state: Path, tmp_path: Path
) -> None:
    committed = 0
    give, take = trio.open_memory_channel[int](math.inf)
    async with await SqliteStore.open(state) as store, trio.open_nursery() as nursery:

        async def write() -> None:
            nonlocal committed
            while True:
                await save(store, committed + 1)
                committed += 1
                give.send_nowait(committed)

        await checkpoint_often(store)
        nursery.start_soon(write)
        for number in range(8):
            for _ in range(5):
                await take.receive()
            before = committed
            target = tmp_path / f"backup{number}"
            await trio.to_thread.run_sync(back_up, state, target)
            position, letters = content(target)

            assert before <= position <= letters
            assert read_backup(target)
        nursery.cancel_scope.cancel()


async def test_while_a_backup_copies_commits_only_append(state: Path) -> None:
    async with await SqliteStore.open(state) as store:
        await checkpoint_often(store)
        await save(store, 1)
        await save(store, 2)
        with hold_checkpoints(state):
            # The first commit may begin the log again, if all of it was in the file before.
            await save(store, 3)
            held = files_of(state)
            await save(store, 4)
            await save(store, 5)
            now = files_of(state)
        await save(store, 6)
        await save(store, 7)
        after = files_of(state)

    assert now == held
    assert all(file != before for (file, _), (before, _) in zip(after, held, strict=True))


async def test_an_owner_that_ignores_the_lock_spoils_no_backup(state: Path, tmp_path: Path) -> None:
    """An earlier version, or one without descriptors left, checkpoints under the copy: that is noticed."""
    async with await SqliteStore.open(state) as store:
        await save(store, 1)
    ended = threading.Event()

    def write_rudely() -> None:
        with closing(sqlite3.connect(state / "state.db", isolation_level=None)) as connection:
            for number in itertools.count():
                if ended.is_set():
                    return
                # The two rows are far from each other in the file, and always have one value.
                rows = [("rude", "position", "a", number), ("rude", "position", "z", number)]
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)
                connection.execute("INSERT OR REPLACE INTO entries VALUES ('rude', 'position', 'm', randomblob(90000))")
                connection.execute("COMMIT")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    writer = threading.Thread(target=write_rudely)
    writer.start()
    try:
        for number in range(3):
            with suppress(StateFailed):
                back_up(state, tmp_path / f"backup{number}")
    finally:
        ended.set()
        writer.join()
    back_up(state, tmp_path / "last")
    for name in names_in(tmp_path):
        if name != "state":
            with closing(sqlite3.connect(tmp_path / name / "state.db")) as connection:
                found = connection.execute("SELECT value FROM entries WHERE node IN ('a', 'z')").fetchall()
            assert len(set(found)) <= 1


async def test_what_is_committed_after_the_moment_is_not_in_a_copy_of_a_log_that_began_again(
    state: Path, tmp_path: Path
) -> None:
    """Its file is as long as it was before, so the length does not say where its commits end."""
    async with await SqliteStore.open(state) as store:
        for number in range(1, 20):
            await save(store, number)
        await store.look(lambda tables: cast(SqliteSession, tables.sql).connection.execute("PRAGMA wal_checkpoint"))
        await save(store, 20)
        with hold_checkpoints(state):
            cuts = [backup_module._Cut(state / name, tmp_path / name) for name in ("state.db", "letters.db")]
            await save(store, 21)
            for cut in cuts:
                cut.copy_file()
            assert all(cut.holds() for cut in cuts)

    assert content(tmp_path) == (20, 20)


async def test_a_cut_notices_a_checkpoint_and_a_log_that_began_again(state: Path, tmp_path: Path) -> None:
    async with await SqliteStore.open(state) as store:
        await save(store, 1)
        cut = backup_module._Cut(state / "state.db", tmp_path / "state.db")
        await save(store, 2)
        assert cut.holds()
        await store.look(lambda tables: cast(SqliteSession, tables.sql).connection.execute("PRAGMA wal_checkpoint"))
        assert not cut.holds()
        cut = backup_module._Cut(state / "state.db", tmp_path / "state.db")
        await save(store, 3)
        assert not cut.holds()


async def test_a_damaged_state_is_an_error_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    async with await SqliteStore.open(state) as store:
        await save(store, 1)
    data = bytearray((state / "state.db").read_bytes())
    data[4096:5000] = bytes(904)
    (state / "state.db").write_bytes(data)
    with pytest.raises(StateFailed, match=r"state\.db is damaged"):
        back_up(state, tmp_path / "backup")

    assert names_in(tmp_path) == ["state"]


async def test_the_log_of_a_killed_process_is_in_the_backup(state: Path, tmp_path: Path) -> None:
    async with await SqliteStore.open(state) as store:
        await save(store, 1)
        # What a killed process leaves: files that nobody has closed.
        shutil.copytree(state, tmp_path / "killed")
    back_up(tmp_path / "killed", tmp_path / "backup")

    assert (tmp_path / "killed" / "state.db-wal").exists()
    assert content(tmp_path / "backup") == (1, 1)
    assert names_in(tmp_path / "backup") == ["backup.json", "letters.db", "state.db"]
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "backup").iterdir()} == {0}


async def make_backup(state: Path, target: Path, number: int = 1) -> Path:
    async with await SqliteStore.open(state) as store:
        await save(store, number)
    back_up(state, target)
    return target


async def position(state: Path) -> bytes | None:
    async with await SqliteStore.open(state) as store:
        return (await store.positions("p")).get("web")


async def test_a_restore_goes_to_an_empty_place_or_is_forced(state: Path, tmp_path: Path) -> None:
    backup = await make_backup(state, tmp_path / "backup")
    async with await SqliteStore.open(state) as store:
        await save(store, 2)
        with pytest.raises(StateLocked, match="is in use"):
            restore(backup, state, replace=True)
    with pytest.raises(EnvironmentUnfit, match="has a state already"):
        restore(backup, state)
    assert await position(state) == b"2"
    assert restore(backup, tmp_path / "empty") is None
    assert await position(tmp_path / "empty") == b"1"
    replaced = restore(backup, state, replace=True)

    assert await position(state) == b"1"
    assert replaced is not None
    assert await position(replaced) == b"2"


async def test_a_damaged_or_incomplete_backup_is_refused_before_anything_changes(state: Path, tmp_path: Path) -> None:
    backup = await make_backup(state, tmp_path / "backup")
    (tmp_path / "none").mkdir()
    with pytest.raises(EnvironmentUnfit, match="is not a backup"):
        restore(tmp_path / "none", tmp_path / "new")
    data = bytearray((backup / "letters.db").read_bytes())
    data[len(data) // 2] ^= 1
    (backup / "letters.db").write_bytes(data)
    with pytest.raises(EnvironmentUnfit, match=r"letters\.db is not what was backed up"):
        restore(backup, tmp_path / "new")
    (backup / "letters.db").unlink()
    with pytest.raises(EnvironmentUnfit, match=r"letters\.db cannot be read"):
        restore(backup, tmp_path / "new")
    text = (backup / "backup.json").read_text()
    (backup / "backup.json").write_text(text.replace("letters.db", "../../x"))
    with pytest.raises(EnvironmentUnfit, match="no file of a state"):
        restore(backup, tmp_path / "new")
    (backup / "backup.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(EnvironmentUnfit, match="has version 2 of backups") as newer:
        restore(backup, tmp_path / "new")
    (backup / "backup.json").write_text(text.replace('"format_version": 2', '"format_version": 9'))
    with pytest.raises(EnvironmentUnfit, match="has format version 9; this conduit-py can read versions 1 to 2"):
        restore(backup, tmp_path / "new")

    assert "pip install --upgrade conduit-dataflow" in (newer.value.suggestion or "")
    assert not (tmp_path / "new").exists()


def killed_at(point: str, work: Callable[[], object]) -> bool:
    """Do this in a fork that is killed at a point; returns whether it was."""
    child = os.fork()
    if child == 0:
        os.environ["CONDUIT_KILL_AT"] = point
        crash_point.read_environment()
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("point", ["restore.before_move", "restore.after_move", "restore.before_end"])
async def test_half_a_restore_refuses_to_run_and_can_be_repeated(state: Path, tmp_path: Path, point: str) -> None:
    backup = await make_backup(state, tmp_path / "backup")
    async with await SqliteStore.open(state) as store:
        await save(store, 2)
    assert killed_at(point, partial(restore, backup, state, replace=True))
    with pytest.raises(EnvironmentUnfit, match="holds half of a restored state"):
        await SqliteStore.open(state)
    restore(backup, state)

    assert await position(state) == b"1"
    assert 2 in {content(state / name)[0] for name in names_in(state) if name.startswith("replaced-")}


async def test_a_backup_that_is_killed_leaves_no_backup_and_can_be_repeated(state: Path, tmp_path: Path) -> None:
    async with await SqliteStore.open(state) as store:
        await save(store, 1)
    assert killed_at("backup.before_rename", partial(back_up, state, tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()
    back_up(state, tmp_path / "backup")

    assert content(tmp_path / "backup") == (1, 1)
    assert names_in(tmp_path) == ["backup", "state"]


async def test_a_restored_claim_fences_everything_that_ran_before(state: Path, tmp_path: Path) -> None:
    async with await SqliteStore.open(state) as store:
        claim = await store.claim("sums")
        await claim.commit(Changes(number=1, checkpoint=b"", positions={"web": b"1"}))
    back_up(state, tmp_path / "backup")
    with pytest.raises(EnvironmentUnfit, match=r"exactly-once pipelines \('sums'\)") as refused:
        restore(tmp_path / "backup", tmp_path / "new")
    restore(tmp_path / "backup", tmp_path / "new", allow_repeats=True)
    async with await SqliteStore.open(tmp_path / "new") as store:
        later = await store.claim("sums")

    assert "--allow-repeats" in (refused.value.suggestion or "")
    assert later.fence == claim.fence + FENCE_STEP + 1
    assert later.committed == 1


async def test_a_backup_needs_a_state_and_a_new_name(state: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="there is no state in"):
        back_up(tmp_path / "nowhere", tmp_path / "backup")
    await make_backup(state, tmp_path / "backup")
    with pytest.raises(ConduitError, match="backup exists"):
        back_up(state, tmp_path / "backup")
