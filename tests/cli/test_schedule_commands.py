"""Schedules in the commands: what `run` says and does, and what a server shows of the next run."""

import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Serving

Until: TypeAlias = "Callable[[subprocess.Popen[str], Callable[[dict[str, Any]], bool]], dict[str, Any]]"

LEAP_DAY = 'Count(to=3), schedule="0 0 29 2 *", timezone="Europe/Berlin"'


def test_run_waits_for_the_next_time_says_so_and_stops_at_once(command: "Command", until: Until) -> None:
    command.pipeline(LEAP_DAY)
    process = command.start("run", "orders.py", "--json")
    said = until(process, lambda fields: fields["type"] == "scheduled")
    waiting = until(process, lambda fields: fields["type"] == "progress" and fields["status"] == "waiting")
    process.send_signal(signal.SIGTERM)
    result = until(process, lambda fields: fields["type"] == "result")

    assert said["message"] == (
        "numbers: runs at 0 0 29 2 * (Europe/Berlin) until it is stopped, with Ctrl-C or SIGTERM; "
        "--once runs it now and ends"
    )
    assert waiting["blocked_on"].startswith("the next run, at 20")
    assert waiting["blocked_on"].endswith("-02-29 00:00 Europe/Berlin")
    assert process.wait(300) == 0
    assert (result["status"], result["read"], result["error"]) == ("stopped", 0, None)


def test_once_runs_now_and_ends_and_goes_on_after_the_last_position(command: "Command") -> None:
    command.pipeline(LEAP_DAY)
    first = command("run", "orders.py", "--once")
    command.pipeline(LEAP_DAY.replace("to=3", "to=5"))
    second = command("run", "orders.py", "--once")

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.startswith("numbers: completed: 3 read")
    assert second.stdout.startswith("numbers: completed: 2 read")
    assert command.numbers() == [1, 2, 3, 4, 5]


def test_a_server_shows_the_next_run_and_starts_it_when_asked(serving: "Serving") -> None:
    serving.add("yearly", LEAP_DAY)
    serving.start()
    shown = serving.until("yearly", lambda shown: shown["status"] == "waiting")
    listed = serving("pipelines", "list")
    started = serving("pipelines", "start", "yearly", "--wait", "0")
    serving.until("yearly", lambda shown: shown["status"] == "waiting" and shown["progress"]["acked"] == 3)
    described = serving("pipelines", "describe", "yearly")

    assert shown["next_run"] > shown["since"]
    assert "waits for the next run, at 20" in listed.stdout
    assert started.returncode == 0
    assert described.stdout.startswith("yearly: waiting since ")
    assert "3 read, 3 acked" in described.stdout
    assert "-02-29 00:00 Europe/Berlin" in described.stdout
