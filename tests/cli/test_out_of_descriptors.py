"""A process that is out of file descriptors: whatever meets it, the pipeline waits, starts again and loses nothing."""

import json
import sqlite3
from pathlib import Path

import pytest
from command_folder import Folder

HEAD = """
import errno
import logging
import os
import resource
from conduit_connectors import file, sqlite, stdio
from conduit_py import DeadLetters, Destination, Pipeline, Processor, RecordRefused, Recovery, Source, sdk

taken = []
done = []

def take_all():
    '''Take every descriptor, once.'''
    if not done:
        done.append(True)
        # Near enough that 100 more are taken at once, far enough for what is open.
        limit = len(os.listdir("/proc/self/fd")) + 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE

class FreeThem(logging.Handler):
    '''Frees the descriptors when the pipeline has failed for the lack of them: they come back by themselves.'''

    def emit(self, record):
        if getattr(record, "facts", {}).get("event") == "recovering":
            while taken:
                os.close(taken.pop())

logging.getLogger("conduit_py").addHandler(FreeThem())

class Greedy:
    '''Leaves itself nothing to open.'''

    def open(self, *position):
        take_all()
        super().open(*position)

class LinesSource(Greedy, file.Source): ...
class LinesDestination(Greedy, file.Destination): ...
class RowsDestination(Greedy, sqlite.Destination): ...

class Early(sdk.DestinationConnector[sdk.Options]):
    '''Opened first, it leaves nothing to the others.'''

    async def open(self):
        take_all()

    async def write(self, batch):
        pass

def take_then_open(record):
    if record.payload.after["n"] == 7:
        take_all()
        with open("in.jsonl"):
            pass
    return record

def take_then_refuse(record):
    if record.payload.after["n"] == 7:
        take_all()
        raise RecordRefused("seven")
    return record

EARLY = Destination("early", Early())
SOURCE = Source("in", file.Source(path="in.jsonl", format="json"))
GREEDY_SOURCE = Source("in", LinesSource(path="in.jsonl", format="json"))
LINES = Destination("out", file.Destination(path="out.jsonl", format="json"))
GREEDY_LINES = Destination("out", LinesDestination(path="out.jsonl", format="json"))
GREEDY_ROWS = Destination("out", RowsDestination(path="out.db", table="numbers"))
SECONDS = Recovery(retries=5, delay_seconds=0.01, delay_max_seconds=0.01)

"""


def run(tmp_path: Path, definition: str, source: str = "SOURCE") -> list[str]:
    """Run a pipeline of the numbers 0 to 19 to a good end, and return its recoveries."""
    folder = Folder(tmp_path)
    folder.numbers(*range(20))
    folder.write("p.py", f'{HEAD}p = Pipeline("p", sources=[{source}], recovery=SECONDS, {definition})\n')
    answer = folder.run()

    assert answer.code == 0, answer.stderr
    return [line for line in answer.stderr.splitlines() if "next try in" in line]


def numbers(tmp_path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("source", "destinations"),
    [("GREEDY_SOURCE", "[LINES]"), ("SOURCE", "[GREEDY_LINES]"), ("SOURCE", "[EARLY, LINES]")],
)
def test_while_connectors_are_opened(source: str, destinations: str, tmp_path: Path) -> None:
    recoveries = run(tmp_path, f"destinations={destinations}", source)

    assert len(recoveries) == 1
    assert "out of file descriptors" in recoveries[0]
    assert "[run.exhausted]" in recoveries[0]
    assert numbers(tmp_path) == list(range(20))


def test_while_a_database_is_opened(tmp_path: Path) -> None:
    """SQLite hides why it cannot open a file."""
    recoveries = run(tmp_path, "destinations=[GREEDY_ROWS]")

    assert len(recoveries) == 1
    assert "[run.exhausted]" in recoveries[0]
    with sqlite3.connect(tmp_path / "out.db") as database:
        assert [row[0] for row in database.execute("SELECT n FROM numbers ORDER BY n")] == list(range(20))


def test_in_a_processor(tmp_path: Path) -> None:
    recoveries = run(tmp_path, "processors=[take_then_open], destinations=[LINES], dead_letters=DeadLetters.keep()")

    assert len(recoveries) == 1
    assert "[run.exhausted]" in recoveries[0]
    assert set(numbers(tmp_path)) == set(range(20))


def test_while_a_dead_letter_is_kept(tmp_path: Path) -> None:
    letters = 'DeadLetters(lambda letter: open("letters.txt", "a").write(letter.error + "\\n"))'
    recoveries = run(tmp_path, f"processors=[take_then_refuse], destinations=[LINES], dead_letters={letters}")

    assert len(recoveries) == 1
    assert "[run.exhausted]" in recoveries[0]
    assert set(numbers(tmp_path)) == set(range(20)) - {7}
    assert (tmp_path / "letters.txt").read_text() == "seven\n"


def test_while_a_dead_letter_is_kept_in_the_state(tmp_path: Path) -> None:
    run(tmp_path, "processors=[take_then_refuse], destinations=[LINES], dead_letters=DeadLetters.keep()")

    assert set(numbers(tmp_path)) == set(range(20)) - {7}
    (database,) = tmp_path.rglob("letters.db")
    with sqlite3.connect(database) as letters:
        assert letters.execute("SELECT count(*) FROM letters").fetchone() == (1,)
