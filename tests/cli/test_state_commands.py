"""The commands `state`: what a person sees of a backup, a restore, an old and a newer state."""

import json
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from conduit_py.store.sqlite.database import STATE

if TYPE_CHECKING:
    from tests.cli.conftest import CommandInside, Serving

ROOT = Path(__file__).parent.parent.parent
FORMATS = ROOT / "tests" / "store" / "formats"
PAGE = ROOT / "docs" / "operate" / "upgrade.md"
NEWEST = FORMATS / "2-records-2"
NAMES = sorted(file.parent.name for file in FORMATS.glob("*/state.db"))


def copy_of(state: Path, folder: Path) -> Path:
    shutil.copytree(state, folder)
    return folder


def set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("name", NAMES)
def test_upgrade_says_from_which_version_to_which(inside: "CommandInside", tmp_path: Path, name: str) -> None:
    old = copy_of(FORMATS / name, tmp_path / "old")
    code, (answer,) = inside.json("state", "upgrade", "--state", str(old))

    assert code == 0
    assert answer["before"][0]["version"] == int(name[0])
    assert answer["after"][0]["version"] == STATE.version
    assert inside("state", "upgrade", "--state", str(old)).stdout.startswith(f"state.db is version {STATE.version}\n")


@pytest.mark.parametrize("name", NAMES)
def test_inspect_reads_an_old_state_and_changes_nothing(inside: "CommandInside", tmp_path: Path, name: str) -> None:
    old = copy_of(FORMATS / name, tmp_path / "old")
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    code, (answer,) = inside.json("state", "inspect", "--state", str(old))

    assert code == 0
    assert answer["pipelines"][0] | {"transactions": 0, "letters": 0} == {
        "pipeline": "orders", "status": "completed", "positions": 1, "letters": 0, "transactions": 0,
    }  # fmt: skip
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_a_page_shows_how_the_next_format_is_refused(inside: "CommandInside") -> None:
    shown = PAGE.read_text().partition("```text\n")[2].partition("```")[0]
    copy_of(NEWEST, inside.folder / "state")
    set_version(inside.folder / "state" / "state.db", STATE.version + 1)
    done = inside("state", "upgrade", "--state", "state")

    assert done.stderr == shown


@pytest.mark.parametrize("name", ["state.db", "letters.db"])
def test_a_later_format_is_refused_and_left_as_it_is(inside: "CommandInside", tmp_path: Path, name: str) -> None:
    later = copy_of(NEWEST, tmp_path / "later")
    set_version(later / name, 99)
    before = (later / name).read_bytes()
    done = inside("state", "upgrade", "--state", str(later))

    assert done.returncode != 0
    assert f"{name} has format version 99; this conduit-py can read version" in done.stderr
    assert "use the version of conduit-py that wrote it" in done.stderr
    assert (later / name).read_bytes() == before


def test_a_backup_of_a_server_that_is_then_killed_loses_no_record(serving: "Serving", inside: "CommandInside") -> None:
    serving.add("numbers")
    first = serving.start("--state", "state")
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 20)
    taken = inside("state", "backup", "backup", "--state", "state")
    seen = inside.json("state", "inspect", "--state", "state")
    in_use = inside("state", "restore", "backup", "--state", "state", "--force")
    upgraded = inside("state", "upgrade", "--state", "state")
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 40)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    shutil.rmtree(inside.folder / "state")
    restored = inside("state", "restore", "backup", "--state", "state")
    second = serving.start("--state", "state")
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 60)
    second.send_signal(signal.SIGTERM)
    second.communicate()
    numbers = [int(line) for line in (inside.folder / "numbers.txt").read_text().splitlines()]

    assert (taken.returncode, restored.returncode, second.returncode) == (0, 0, 0)
    assert taken.stdout.startswith("backup has the state in state at ")
    assert upgraded.stdout.startswith(f"state.db is version {STATE.version}\n")
    assert seen[1][0]["pipelines"][0] | {"positions": 1, "status": "running"} == seen[1][0]["pipelines"][0]
    assert in_use.returncode == 3
    assert "is in use by process" in in_use.stderr
    assert set(numbers) == set(range(1, max(numbers) + 1))
    assert "what was delivered since is delivered again" in restored.stdout


SUMS = """
from conduit_connectors import file, generator, journal, sqlite
from conduit_py import Pipeline

pipeline = Pipeline(
    "sums",
    sources={{"in": generator.Source(count={count}, seed=1, fields={{"n": "index"}})}},
    destinations={{"out": {destination}}},
    delivery="exactly_once",
)
"""


def run_sums(inside: "CommandInside", destination: str, count: int, state: str = "state") -> None:
    (inside.folder / "sums.py").write_text(SUMS.format(count=count, destination=destination))
    done = inside("run", "sums.py", "--state", state)
    assert done.returncode == 0, done.stderr


def restore_older(inside: "CommandInside", destination: str) -> None:
    """Deliver 5 numbers, back up, deliver 3 more in two runs, and put the backup back."""
    run_sums(inside, destination, 5)
    inside("state", "backup", "backup", "--state", "state")
    run_sums(inside, destination, 6)
    run_sums(inside, destination, 8)
    refused = inside("state", "restore", "backup", "--state", "state", "--force")
    assert refused.returncode == 3
    assert "exactly-once pipelines ('sums')" in refused.stderr
    done = inside("state", "restore", "backup", "--state", "state", "--force", "--allow-repeats")
    assert done.returncode == 0, done.stderr


def test_an_older_state_repeats_records_at_a_destination_that_stages(inside: "CommandInside") -> None:
    destination = 'file.Destination(path="out.jsonl", format="json")'
    restore_older(inside, destination)
    run_sums(inside, destination, 8)
    numbers = [json.loads(line)["n"] for line in (inside.folder / "out.jsonl").read_text().splitlines()]

    assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]


def test_an_older_state_repeats_records_in_a_journal(inside: "CommandInside") -> None:
    destination = 'journal.Destination(path="log")'
    restore_older(inside, destination)
    run_sums(inside, destination, 8)
    _, messages = inside.json("journal", "cat", "log")

    assert [each["record"]["payload"]["after"]["n"] for each in messages] == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]


def test_an_older_state_is_refused_by_a_destination_that_carries_the_commit(inside: "CommandInside") -> None:
    destination = 'sqlite.Destination(path="out.db", table="sums")'
    restore_older(inside, destination)
    done = inside("run", "sums.py", "--state", "state")
    with closing(sqlite3.connect(inside.folder / "out.db")) as connection:
        numbers = sorted(number for (number,) in connection.execute("SELECT n FROM sums"))

    assert done.returncode == 1
    assert "has transaction 3 of pipeline 'sums' as its last, but the state store has 1" in done.stderr
    assert "restore the other from the same time" in done.stderr
    assert numbers == list(range(8))


def test_a_state_in_postgresql_is_inspected_and_says_what_backs_it_up(inside: "CommandInside", postgres: str) -> None:
    nothing = inside("state", "inspect", "--state", postgres)
    inside.pipeline("Count(to=5)")
    inside("run", "orders.py", "--state", postgres)
    code, (found,) = inside.json("state", "inspect", "--state", postgres)
    refused = inside("state", "backup", "backup", "--state", postgres)
    upgraded = inside("state", "upgrade", "--state", postgres)

    assert nothing.returncode == 3
    assert "there is no state in postgresql://" in nothing.stderr
    assert code == 0
    assert found["pipelines"] == [
        {"pipeline": "numbers", "status": "completed", "positions": 1, "letters": 0, "transactions": 0}
    ]
    assert refused.returncode == 3
    assert "pg_dump --format=custom --schema=conduit_py" in refused.stderr
    assert upgraded.stdout == "schema conduit_py is version 1\n"


def test_tools_of_postgresql_back_up_and_restore_a_state(inside: "CommandInside", postgres: str) -> None:
    """The three commands of docs/operate/backup-and-restore.md."""
    [tools, *_] = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    destination = 'file.Destination(path="out.jsonl", format="json")'
    run_sums(inside, destination, 5, postgres)
    dump = ["--format=custom", "--schema=conduit_py", "--file=state.dump", postgres]
    subprocess.run([tools / "pg_dump", *dump], check=True, cwd=inside.folder, timeout=300)
    run_sums(inside, destination, 8, postgres)
    restore = ["--clean", "--if-exists", f"--dbname={postgres}", "state.dump"]
    subprocess.run([tools / "pg_restore", *restore], check=True, cwd=inside.folder, timeout=300)
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE conduit_py.claims SET fence = fence + 1000000")
    run_sums(inside, destination, 8, postgres)
    numbers = [json.loads(line)["n"] for line in (inside.folder / "out.jsonl").read_text().splitlines()]

    assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]
