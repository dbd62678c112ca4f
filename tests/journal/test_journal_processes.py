"""Journals and real processes: killed at every point, frozen and thawed, fighting for the same journal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from warm_python import WarmPython, run_warm

from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import FileReader
from conduit_py.journal.segment import Damage, Segment, bases
from tests.store.store_child import NO_SECCOMP

CHILD = Path(__file__).parent / "journal_child.py"


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(CHILD), *map(str, arguments)]


def bodies(directory: Path) -> list[str]:
    return [body.decode() for frame in FileReader(directory, durable=False) for body in frame.bodies]


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_anywhere_a_journal_keeps_what_was_acknowledged_and_goes_on(tmp_path: Path, kills: int) -> None:
    # It forks itself for each kill: from a small process that is cheaper than from a warm one.
    ran = subprocess.run(command("crash", tmp_path, kills), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr

    folders = list(tmp_path.iterdir())
    assert int(ran.stdout.split()[-1]) == len(folders) > (60 if kills == 1 else 200)
    for folder in folders:
        # The last process of each run was not killed, so all eight are there; none twice, all in order.
        assert bodies(folder / "journal") == [str(number) for number in range(8)], folder
        acknowledged = (folder / "acknowledged").read_text().split()
        assert acknowledged == sorted(set(acknowledged), key=int)
        assert damages(folder / "journal") == []


def damages(directory: Path) -> list[Damage]:
    found = []
    for base in bases(directory):
        segment = Segment.open(directory, base)
        found += [each for each in segment.walk() if isinstance(each, Damage)]
        segment.close()
    return found


def test_gz_h1_after_a_hand_over_nothing_of_the_former_writer_gets_in(tmp_path: Path) -> None:
    writers = [
        WarmPython(command("contend", tmp_path, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "ABC"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    counts = [tuple(map(int, writer.communicate(timeout=300)[0].split())) for writer in writers]

    assert sum(fenced for _, fenced in counts) > 0
    author, claims = "", 0
    for body in bodies(tmp_path):
        name, what = body.split()
        if what == "claims":
            author, claims = name, claims + 1
        assert name == author
    assert claims == sum(each for each, _ in counts)


@contextmanager
def obeying(directory: Path, name: str) -> Iterator["Obeying"]:
    process = Obeying(directory, name)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


class Obeying:
    """A process that holds a claim and appends on request."""

    def __init__(self, directory: Path, name: str) -> None:
        self.process: subprocess.Popen[str] = WarmPython(
            command("obey", directory, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = int(self.answer().split()[1])

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def test_gz_h2_a_frozen_writer_that_is_thawed_after_a_take_over_is_fenced(tmp_path: Path) -> None:
    with obeying(tmp_path, "old") as old:
        old.tell("first")
        assert old.answer() == "appended"
        os.kill(old.pid, signal.SIGSTOP)
        old.tell("late")
        with obeying(tmp_path, "new") as new:
            new.tell("second")
            assert new.answer() == "appended"
            os.kill(old.pid, signal.SIGCONT)

            assert old.answer().startswith("run.fenced")
            new.tell("third")
            assert new.answer() == "appended"
    assert bodies(tmp_path) == ["old claims", "old first", "new claims", "new second", "new third"]


def test_when_the_kernel_fails_a_sync_nothing_is_appended_until_the_journal_is_opened_again(tmp_path: Path) -> None:
    ran = run_warm(command("no-sync", tmp_path))
    if ran.returncode == NO_SECCOMP:
        pytest.skip("this kernel lets no process filter its own system calls")

    first, second = ran.stdout.splitlines()
    assert first.startswith("journal.failed")
    assert "Input/output error" in first
    assert second.startswith("journal.failed")
    assert "takes no more appends" in second
    with FileLog(tmp_path) as log:
        log.append([b"after"])
    assert bodies(tmp_path) == ["before", "after"]


def test_a_file_that_may_not_grow_refuses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    ran = run_warm(command("too-big", tmp_path))

    refused, sizes = ran.stdout.splitlines()
    assert refused.startswith("journal.full")
    assert sizes == "sizes 6 5 1000000"
