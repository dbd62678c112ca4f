"""A process kills itself at the chosen point, at the chosen time, and nowhere else."""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
from conduit_py import crash_point
for step in range(4):
    crash_point.reach("one")
    print(f"one {step}", flush=True)
    crash_point.reach("two")
"""


def run(kill_at: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CONDUIT_KILL_AT"}
    if kill_at is not None:
        environment["CONDUIT_KILL_AT"] = kill_at
    return subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize(
    ("kill_at", "steps"), [("one", 0), ("one:1", 0), ("one:3", 2), ("two", 1), ("two:4", 4), ("one:4", 3)]
)
def test_the_process_dies_at_the_nth_time_that_it_reaches_the_point(kill_at: str, steps: int) -> None:
    ended = run(kill_at)

    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.splitlines() == [f"one {step}" for step in range(steps)]


@pytest.mark.parametrize("kill_at", [None, "three", "one:5", "two:5"])
def test_the_process_lives_when_the_point_is_not_reached_that_often(kill_at: str | None) -> None:
    ended = run(kill_at)

    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [f"one {step}" for step in range(4)]


@pytest.mark.parametrize("kill_at", ["one:", "one:0", "one:x", "one:-1"])
def test_a_malformed_choice_is_an_error_rather_than_a_test_without_a_crash(kill_at: str) -> None:
    ended = run(kill_at)

    assert ended.returncode == 1
    assert f"CONDUIT_KILL_AT is {kill_at!r}: write `name` or `name:nth`" in ended.stderr
