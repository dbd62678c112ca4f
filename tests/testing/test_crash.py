"""The crash harness on small real processes: it kills, restarts, finds what gets lost, and comes to an end."""

import sys
from pathlib import Path

import pytest

from conduit_py.testing.crash import AT_RANDOM, CrashTestFailed, run_with_kills

COPY = """
import os, sys, time
from conduit_py.crash_point import reach

out, mark, careless = "out", "mark", sys.argv[1] == "careless"
done = int(open(mark).read()) if os.path.exists(mark) else 0

def keep(number):
    with open("mark.new", "w") as file:
        file.write(str(number + 1))
    os.replace("mark.new", mark)

for number in range(done, 300):
    if careless:
        keep(number)
    reach("copy.between")
    with open(out, "a") as file:
        file.write(f"{number}\\n")
    if not careless:
        keep(number)
    reach("copy.after")
    time.sleep(0.002)
print("all copied")
"""


def python(tmp_path: Path, code: str, *arguments: str) -> list[str | Path]:
    path = tmp_path / "script.py"
    path.write_text(code)
    return [sys.executable, path, *arguments]


def copied(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "out").read_text().splitlines()]


def test_a_careful_program_survives_every_kill(tmp_path: Path) -> None:
    command = python(tmp_path, COPY, "careful")

    report = run_with_kills(
        command, kills_max=9, points=["copy.between", "copy.after"], delay_max_seconds=0.1, directory=tmp_path
    )

    assert list(dict.fromkeys(copied(tmp_path))) == list(range(300))
    assert report.kills == {AT_RANDOM: 3, "copy.between": 3, "copy.after": 3}
    assert report.runs == 10
    assert report.output == "all copied\n"


def test_a_careless_program_is_found_out(tmp_path: Path) -> None:
    command = python(tmp_path, COPY, "careless")

    run_with_kills(command, kills_max=4, points=["copy.between"], delay_max_seconds=0, directory=tmp_path)

    assert len(set(copied(tmp_path))) == 298


def test_a_program_that_is_done_early_is_not_killed_any_more(tmp_path: Path) -> None:
    report = run_with_kills(python(tmp_path, ""), kills_max=9, delay_max_seconds=60)

    assert report.runs == report.kills.total() + 1
    assert report.kills.total() < 9


def test_a_program_that_fails_by_itself_fails_the_test(tmp_path: Path) -> None:
    command = python(tmp_path, "raise SystemExit('no such table')")

    with pytest.raises(CrashTestFailed, match="exited with 1; it printed\nno such table"):
        run_with_kills(command, kills_max=0)


def test_a_program_killed_by_another_hand_fails_the_test(tmp_path: Path) -> None:
    command = python(tmp_path, "import os; os.kill(os.getpid(), 9)")

    with pytest.raises(CrashTestFailed, match="exited with -9"):
        run_with_kills(command, kills_max=0)


def test_a_program_that_does_not_end_fails_the_test_in_time(tmp_path: Path) -> None:
    command = python(tmp_path, "import time; print('waiting', flush=True); time.sleep(600)")

    with pytest.raises(CrashTestFailed, match="did not end in time; it printed\nwaiting"):
        run_with_kills(command, kills_max=0, seconds_max=20)


def test_children_do_not_outlive_a_kill(tmp_path: Path) -> None:
    code = """
import fcntl, os, subprocess, sys, time
from conduit_py.crash_point import reach

second = os.path.exists("lock")
if not second and "CONDUIT_KILL_AT" not in os.environ:
    time.sleep(600)  # until it is killed at random, however late that is
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # until every process that has the file is gone
if second:
    print("the child is gone")
else:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[lock.fileno()])
    for _ in range(20):
        reach("child.started")
"""
    command, points = python(tmp_path, code), ["child.started"]

    report = run_with_kills(
        command, kills_max=2, points=points, delay_max_seconds=0, seconds_max=300, directory=tmp_path
    )

    assert report.kills == {AT_RANDOM: 1, "child.started": 1}
    assert report.output == "the child is gone\n"
