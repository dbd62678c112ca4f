"""Dead letters on a real disk, in processes that are killed around their commits: none is lost, none is doubled."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

from warm_python import run_command

from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.stored_letter import LetterFilter, LetterState

RECORDS = 20
REFUSED = [5, 10, 15, 20]
PIPELINE = """
from pathlib import Path

from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, RecordRefused, Source, processor


@processor
def check(record):
    if record.payload["n"] % 5 == 0 and not Path("mended").exists():
        raise RecordRefused("divisible by five")
    return record


pipeline = Pipeline(
    "p",
    sources=[Source("in", file.Source(path="in.jsonl", format="json"))],
    processors=[check],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    dead_letters=DeadLetters("journal"),
)
"""


def run(directory: Path, kill_at: str | None = None) -> int:
    """The exit code of one run."""
    environment = os.environ | ({"CONDUIT_KILL_AT": kill_at} if kill_at else {})
    done = run_command("run", "p.py", "--state", "state", cwd=directory, env=environment)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


async def queue_all(state: Path) -> list[bytes]:
    """Queue every letter; the positions of those there are."""
    async with await SqliteStore.open(state) as store:
        page = await store.letters.page(LetterFilter())
        await store.letters.queue("p", {summary.id: summary.nodes for summary in page.letters})
        return sorted([(await store.letters.letter(summary.id)).position for summary in page.letters])


async def count_queued(state: Path) -> int:
    async with await SqliteStore.open(state) as store:
        return (await store.letters.page(LetterFilter(state=LetterState.QUEUED))).total


async def test_letters_survive_kill_9_when_they_are_stored_and_when_they_are_sent_again(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(1, RECORDS + 1)))
    storing = [run(tmp_path, point) for point in ("letters.before_commit", "letters.after_commit", None)]
    kept = await queue_all(tmp_path / "state")
    (tmp_path / "mended").touch()
    sending = [run(tmp_path, point) for point in ("replay.before_settle", "letters.before_commit")]
    still_queued = await count_queued(tmp_path / "state")
    last = [run(tmp_path, point) for point in ("letters.after_commit", None)]
    numbers = Counter(json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines())

    assert storing == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert len(kept) == len(REFUSED)
    assert sending == [-signal.SIGKILL, -signal.SIGKILL]
    assert still_queued == len(REFUSED)
    assert last == [-signal.SIGKILL, 0]
    assert set(numbers) == set(range(1, RECORDS + 1))
    assert [numbers[number] for number in REFUSED] == [3] * len(REFUSED)
    assert await queue_all(tmp_path / "state") == []
