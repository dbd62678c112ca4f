"""The file destination killed at every write and between any two calls: committed lines are there once, in order."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from killed_copies import killed_copies

from conduit_py.testing.crash import AT_RANDOM

CHILD = Path(__file__).with_name("file_staged_child.py")
SHIM = Path(__file__).parents[1] / "exactly_once" / "faulty_disk.c"


# Of each transaction: its mark, its lines beside the file if they go there, and the blocks in which they are appended.
@pytest.mark.parametrize(
    ("inline_max", "writes"), [(0, 19), (100_000, 16), (10_000_000, 9)], ids=["beside", "both", "carried"]
)
def test_i4_i8_killed_in_the_middle_of_any_write(tmp_path: Path, inline_max: int, writes: int) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("tearing writes takes a compiler")
    library = tmp_path / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)

    run = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path / "world"), str(inline_max)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert run.stdout == f"{writes} writes, 16 moments\n"


RECORDS = 120_000
KILLS = 12
POINTS = [
    "writer.after_write",
    "transaction.before_stage",
    "transaction.before_commit",
    "transaction.after_commit",
    "transaction.after_apply",
]
# Transactions of some 300 KB, which are too large for their intents.
PIPELINE = """
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "copy",
    sources=[Source("in", file.Source(path="in.jsonl", format="json"))],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    delivery="exactly_once",
)
"""


@pytest.mark.slow
def test_i8_killed_again_and_again_a_copy_is_exact(tmp_path: Path) -> None:
    expected = "".join(json.dumps({"n": n, "text": "x" * 60}, separators=(",", ":")) + "\n" for n in range(RECORDS))
    kills: Counter[str] = Counter()
    for directory, report in killed_copies(tmp_path, PIPELINE, expected, kills=KILLS, points=POINTS, seconds_max=180):
        kills += report.kills
        assert (directory / "out.jsonl").read_text() == expected
        assert not list(directory.glob(".*conduit*"))

    assert set(kills) == {AT_RANDOM, *POINTS}
