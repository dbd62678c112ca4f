"""`dlq` and `positions` without a server, on the state that a run left behind."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cli.conftest import CommandInside

STATE = ("--state", ".conduit/state")
PIPELINE = """\
from pathlib import Path
from conduit_py import DeadLetters, Destination, Pipeline, RecordRefused, Source
from ends import Count, Lines

def pick(record):
    if record.payload["number"] in (3, 7) and not Path("mended").exists():
        raise RecordRefused("not this one")
    return record

numbers = Pipeline(
    "numbers",
    sources=[Source("count", Count(to=10))],
    processors=[pick],
    destinations=[Destination("lines", Lines(path="out.txt"))],
    dead_letters=DeadLetters.keep(),
)
"""


def answer(inside: "CommandInside", *arguments: str) -> dict[str, Any]:
    done = inside(*arguments, *STATE, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_letters_of_a_run_are_listed_shown_and_sent_by_the_next_run(inside: "CommandInside") -> None:
    inside.write(PIPELINE)
    assert inside("run", "orders.py").returncode == 0
    letters = answer(inside, "dlq", "list")["letters"]
    shown = inside("dlq", "show", letters[0]["id"], *STATE)
    (inside.folder / "record.json").write_text(json.dumps(answer(inside, "dlq", "show", letters[0]["id"])["record"]))
    edited = inside("dlq", "edit", letters[0]["id"], "--record", "record.json", *STATE)
    replayed = inside("dlq", "replay", "--all", *STATE)
    queued = answer(inside, "dlq", "list", "--letter-state", "queued")["total"]
    (inside.folder / "mended").touch()
    again = inside("run", "orders.py")

    assert [letter["error"] for letter in letters] == ["not this one"] * 2
    assert '"number": 7' in shown.stdout
    assert f"`conduit-py dlq replay {letters[0]['id']} --state .conduit/state` sends it" in edited.stdout
    assert replayed.stdout.startswith("2 letters are sent again\n")
    assert queued == 2
    assert again.returncode == 0
    assert sorted(inside.numbers()) == list(range(1, 11))
    assert answer(inside, "dlq", "list")["letters"] == []


def test_letters_are_discarded(inside: "CommandInside") -> None:
    inside.write(PIPELINE)
    inside("run", "orders.py")

    assert inside("dlq", "discard", "--all", "--yes", *STATE).stdout == "2 letters discarded\n"
    assert answer(inside, "dlq", "list")["total"] == 0


def test_positions_are_shown_and_set_and_the_next_run_goes_on_there(inside: "CommandInside") -> None:
    inside.write(PIPELINE)
    inside("run", "orders.py")
    shown = inside("positions", "show", "numbers", *STATE)
    changed = inside("positions", "set", "numbers", "count", "8", "--text", *STATE)
    inside("run", "orders.py")

    assert shown.stdout.splitlines()[1].split() == ["count", "MTA=", "10"]
    assert changed.returncode == 0
    assert inside.numbers()[-2:] == [9, 10]
    assert inside("positions", "reset", "numbers", "count", *STATE).returncode == 0
    assert answer(inside, "positions", "show", "numbers")["positions"] == {"count": None}


def test_a_state_that_was_named_needs_the_file_of_its_pipelines_for_positions_only(inside: "CommandInside") -> None:
    inside.write(PIPELINE)
    inside("run", "orders.py", "--state", "mine")
    without = inside("positions", "show", "numbers", "--state", "mine")
    given = inside("positions", "show", "numbers", "--state", "mine", "--pipelines", "orders.py")

    assert inside("dlq", "list", "--state", "mine").stdout.count("not this one") == 2
    assert (without.returncode, given.returncode) == (1, 0)
    assert "[pipeline.unknown]" in without.stderr


def test_a_directory_without_a_state_is_not_created(inside: "CommandInside") -> None:
    done = inside("dlq", "list", "--state", "nowhere")

    assert done.returncode == 3
    assert done.stderr.startswith("error: there is no state in nowhere")
    assert not (inside.folder / "nowhere").exists()


def test_without_a_server_the_error_names_the_state(inside: "CommandInside") -> None:
    for command in (("dlq", "list"), ("positions", "show", "numbers")):
        done = inside(*command, "--url", "http://127.0.0.1:1")

        assert done.returncode == 3
        assert "what `run` left behind needs no server: give --state .conduit/state" in done.stderr
