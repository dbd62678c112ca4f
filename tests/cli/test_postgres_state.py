"""The commands with a state in PostgreSQL: runs go on where the last one ended, two servers share the work."""

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside, Serving


def test_a_second_run_goes_on_where_the_first_one_ended(inside: "CommandInside", postgres: str) -> None:
    inside.pipeline("Count(to=5)")
    first = inside("run", "orders.py", "--state", postgres)
    inside.pipeline("Count(to=8)")
    second = inside("run", "orders.py", "--state", postgres)

    assert (first.returncode, second.returncode) == (0, 0)
    assert inside.numbers() == list(range(1, 9))
    assert not (inside.folder / ".conduit").exists()
    assert not list(inside.folder.glob("postgresql*"))


def test_a_database_that_cannot_be_reached_is_an_environment_that_cannot_be_used(inside: "CommandInside") -> None:
    inside.pipeline("Count(to=5)")
    done = inside("run", "orders.py", "--state", "postgresql://me:secret@127.0.0.1:1/orders")

    assert done.returncode == 3
    assert "postgresql://127.0.0.1:1/orders cannot be used" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_a_server_takes_over_from_one_that_was_killed(serving: "Serving", command: "Command", postgres: str) -> None:
    serving.add("numbers")
    first = serving.start("--state", postgres)
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 20)
    second = serving.start("--state", postgres)
    waiting = serving.until("numbers", lambda shown: shown["error"])
    first.send_signal(signal.SIGKILL)
    first.communicate()
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 20)
    second.send_signal(signal.SIGTERM)
    second.communicate()
    numbers = [int(line) for line in (command.folder / "numbers.txt").read_text().splitlines()]

    assert waiting["error"]["code"] == "run.elsewhere"
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    assert second.returncode == 0
