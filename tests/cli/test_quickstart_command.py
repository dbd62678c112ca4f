"""`quickstart`: records at once, without any file, and a file to go on from."""

import json
from typing import TYPE_CHECKING

from conduit_py.cli.templates import PIPELINE

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def test_quickstart_shows_records_and_what_to_do_next(command: "Command") -> None:
    done = command("quickstart", "--records", "6")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    assert done.returncode == 0
    assert [record["id"] for record in records] == [0, 1, 2, 3, 5]
    assert all(record["cents"] == round(record["amount"] * 100) >= 10 for record in records)
    assert "conduit-py run first.py" in done.stdout
    assert done.stderr.startswith("orders: completed: 6 read, 6 acked, 1 filtered, 0 dead letters in ")


def test_quickstart_leaves_nothing_behind(command: "Command") -> None:
    before = sorted(command.folder.iterdir())
    command("quickstart", "--records", "1")

    assert sorted(command.folder.iterdir()) == before


def test_the_pipeline_of_quickstart_can_be_kept_checked_and_run(command: "Command") -> None:
    written = command("quickstart", "--write", "orders.py")
    checked, ran = command("check", "orders.py"), command("run", "orders.py")

    assert written.stdout == "wrote orders.py; next: conduit-py run orders.py\n"
    assert (command.folder / "orders.py").read_text() == PIPELINE
    assert checked.stdout.splitlines()[0] == "orders: ok, 1 source, 1 processor, 1 destination"
    assert ran.returncode == 0


def test_quickstart_overwrites_nothing(command: "Command") -> None:
    command.write("mine\n")
    done = command("quickstart", "--write", "orders.py")

    assert done.returncode == 2
    assert "orders.py: exists already, and is left as it is (choose another name)" in done.stderr
    assert (command.folder / "orders.py").read_text() == "mine\n"
