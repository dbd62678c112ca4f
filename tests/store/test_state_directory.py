"""What the SQLite store makes of a state directory: reopened, foreign, damaged, unusable."""

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from warm_python import run_warm

from conduit_py.errors import EnvironmentUnfit
from conduit_py.status import PipelineState, Status
from conduit_py.store.claim import Changes, ClaimState
from conduit_py.store.sqlite.database import APPLICATION_ID, FORMAT_VERSION, SCHEMA, StateDatabase
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import ConnectorEntry

CHILD = Path(__file__).with_name("store_child.py")


async def refusal(directory: Path) -> EnvironmentUnfit:
    with pytest.raises(EnvironmentUnfit) as refused:
        await SqliteStore.open(directory)
    assert refused.value.suggestion
    return refused.value


async def make(directory: Path) -> Path:
    """A store with something in it, closed; returns its file."""
    async with await SqliteStore.open(directory) as store:
        for number in range(100):
            await store.save_positions("orders", {f"source-{number}": b"%d" % number * 100})
    return directory / "state.db"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    state = PipelineState(Status.COMPLETED, since=2.0)
    entry = ConnectorEntry("source", "file", {"path": "a"}, "01")
    async with await SqliteStore.open(tmp_path) as store:
        await store.save_positions("orders", {"web": b"1"})
        await store.save_state("orders", state)
        await store.save_connector("orders", "web", entry)

    async with await SqliteStore.open(tmp_path) as store:
        assert await store.positions("orders") == {"web": b"1"}
        assert await store.state("orders") == state
        assert await store.connectors("orders") == {"web": entry}


async def test_a_new_directory_is_for_nobody_else_and_one_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    for name in ("old", "new"):
        async with await SqliteStore.open(tmp_path / name):
            pass

    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "new")] == [0o755, 0o700]


async def test_a_missing_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "a" / "b"):
        pass

    assert names(tmp_path / "a" / "b") == ["lock", "state.db"]


async def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    # A test cannot pull the plug; that FULL and WAL are really on is the next best thing.
    database = StateDatabase.open(tmp_path)
    pragmas = [database.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    database.close()

    assert pragmas == ["wal", 2]


async def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = await make(tmp_path)
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    connection.close()
    before = file.read_bytes()

    refused = await refusal(tmp_path)

    assert str(refused) == (
        f"{file} has format version {FORMAT_VERSION + 1}; this conduit-py can read versions 1 to {FORMAT_VERSION}"
    )
    assert refused.suggestion == "use the version of conduit-py that wrote it, or choose another directory with --state"
    assert file.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = file.read_bytes()

    assert str(await refusal(tmp_path)) == f"{file} was not written by conduit-py"
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"hello", b"not a database " * 1000])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(content)

    assert str(await refusal(tmp_path)) == f"{file} is damaged: file is not a database"
    assert file.read_bytes() == content


async def test_an_emptied_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    file = await make(tmp_path)
    file.write_bytes(b"")

    assert str(file) in str(await refusal(tmp_path))
    assert file.read_bytes() == b""


@pytest.mark.parametrize("start", [1, 3])
async def test_a_damaged_page_is_found_when_opening(tmp_path: Path, start: int) -> None:
    file = await make(tmp_path)
    content = bytearray(file.read_bytes())
    content[4096 * start : 4096 * (start + 1)] = b"\xa5" * 4096
    file.write_bytes(content)

    refused = await refusal(tmp_path)

    assert str(refused).startswith(f"{file} is damaged: ")
    assert "put back a copy" in str(refused.suggestion)


async def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = await make(tmp_path)
    file.write_bytes(file.read_bytes()[:-4096])

    assert str(await refusal(tmp_path)).startswith(f"{file} is damaged: ")


async def test_a_log_without_its_database_is_refused_rather_than_replayed_into_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "state.db-wal").write_bytes(b"left over")

    assert str(await refusal(tmp_path)) == (
        f"{tmp_path / 'state.db'} is missing, but state.db-wal, which belongs to it, is there"
    )


async def test_what_a_crash_left_of_an_unfinished_creation_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "state.db.new").write_bytes(b"half a da")
    await make(tmp_path)

    async with await SqliteStore.open(tmp_path) as store:
        assert len(await store.positions("orders")) == 100
    assert names(tmp_path) == ["lock", "state.db"]


async def test_a_refused_directory_is_not_left_locked(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"hello")
    await refusal(tmp_path)
    (tmp_path / "state.db").unlink()

    async with await SqliteStore.open(tmp_path) as store:
        assert await store.pipelines() == []


async def test_a_file_open_in_another_program_is_refused(tmp_path: Path) -> None:
    file = await make(tmp_path)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")

    refused = await refusal(tmp_path)
    connection.close()

    assert str(refused) == f"{file} is open in another program"


async def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()

    assert str(await refusal(tmp_path)) == f"{tmp_path / 'state.db'} cannot be used: Is a directory"


@pytest.mark.parametrize("below", ["", "deeper"])
async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    directory = tmp_path / "file" / below

    assert str(await refusal(directory)) == (
        f"state directory {directory} cannot be used: it is, or lies below, a file that is not a directory"
    )


async def test_a_value_of_unknown_form_is_refused_by_name(tmp_path: Path) -> None:
    file = await make(tmp_path)
    connection = sqlite3.connect(file)
    connection.execute("INSERT INTO entries VALUES ('orders', 'state', '', '{\"status\": \"asleep\"}')")
    connection.commit()
    connection.close()

    async with await SqliteStore.open(tmp_path) as store:
        with pytest.raises(EnvironmentUnfit, match="state of pipeline 'orders' in a form that cannot be read"):
            await store.state("orders")


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users can reach, which pytest's own is not."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def as_nobody(directory: Path) -> str:
    command = [sys.executable, str(CHILD), "as-nobody", str(directory)]
    return run_warm(command, check=True).stdout.strip()


def test_a_directory_that_may_not_be_written_is_refused(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)

    advice = "choose a directory that this user may write to with --state"
    for directory in (open_to_all, open_to_all / "new"):
        expected = f"environment.unfit state directory {directory} cannot be used: Permission denied {advice}"
        assert as_nobody(directory) == expected


def test_a_file_that_may_only_be_read_is_refused(open_to_all: Path) -> None:
    file = trio.run(make, open_to_all)
    (open_to_all / "lock").chmod(0o666)
    file.chmod(0o444)
    os.chown(open_to_all, 65534, -1)

    assert as_nobody(open_to_all).startswith(f"environment.unfit {file} cannot be used: Permission denied")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
async def test_a_directory_that_anybody_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(mode)

    error = await refusal(directory)
    assert str(error).startswith(f"state directory {directory} can be written to by anybody")
    assert list(directory.iterdir()) == []


async def test_its_files_are_for_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    async with await SqliteStore.open(tmp_path / "state") as store:
        await store.save_positions("orders", {"web": b"1"})
        modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "state").iterdir()}

    assert set(modes) >= {"state.db", "state.db-wal", "lock"}
    assert set(modes.values()) == {0o600}


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    file = await make(tmp_path)
    file.chmod(0o644)
    await make(tmp_path)

    assert file.stat().st_mode & 0o777 == 0o640


def make_version_1(directory: Path) -> None:
    """A state directory as the first version left it."""
    directory.mkdir()
    connection = sqlite3.connect(directory / "state.db", isolation_level=None)
    connection.execute(SCHEMA)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("INSERT INTO entries VALUES ('orders', 'position', 'web', x'31')")
    connection.close()


async def test_a_database_of_an_earlier_version_is_brought_up_to_date_with_all_it_holds(tmp_path: Path) -> None:
    make_version_1(tmp_path / "state")
    async with await SqliteStore.open(tmp_path / "state") as store:
        claim = await store.claim("orders")
        await claim.commit(Changes(1, b"one"))
    async with await SqliteStore.open(tmp_path / "state") as store:
        assert await store.positions("orders") == {"web": b"1"}
        assert await store.claim_state("orders") == ClaimState(1, 1, b"one")

    connection = sqlite3.connect(tmp_path / "state" / "state.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)
    connection.close()


@pytest.mark.parametrize("point", ["before_migration", "within_migration", "after_migration"])
async def test_a_kill_while_it_is_brought_up_to_date_leaves_either_version(tmp_path: Path, point: str) -> None:
    make_version_1(tmp_path / "state")
    command = [sys.executable, str(CHILD), "hold", str(tmp_path / "state")]
    environment = os.environ | {"CONDUIT_KILL_AT": f"store.{point}"}
    killed = await trio.to_thread.run_sync(partial(run_warm, command, env=environment))

    assert killed.returncode == -signal.SIGKILL
    async with await SqliteStore.open(tmp_path / "state") as store:
        assert (await store.claim("orders")).fence == 1
        assert await store.positions("orders") == {"web": b"1"}
