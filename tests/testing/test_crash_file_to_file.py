"""Invariant 11 on real processes: `kill -9` at named and random moments, and every record arrives, in order."""

import json
from collections import Counter
from pathlib import Path

import pytest
from killed_copies import killed_copies

from conduit_py.testing.crash import AT_RANDOM

RECORDS = 200_000
KILLS = 50
WINDOW = 1024
POINTS = [
    "dispatcher.after_register",
    "writer.after_write",
    "writer.after_flush",
    "settler.before_persist",
    "store.before_commit",
    "store.after_commit",
    "settler.after_persist",
    "settler.after_ack",
]
PIPELINE = f"""
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "copy",
    sources=[Source("in", file.Source(path="in.jsonl", format="json"), batch_size=64, window={WINDOW})],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
)
"""


@pytest.mark.slow
def test_killed_again_and_again_a_copy_still_has_every_record_in_order(tmp_path: Path) -> None:
    kills: Counter[str] = Counter()
    content = "".join(f'{{"n": {number}}}\n' for number in range(RECORDS))
    for directory, report in killed_copies(tmp_path, PIPELINE, content, kills=KILLS, points=POINTS, seconds_max=400):
        kills += report.kills
        check(directory / "out.jsonl", report.kills.total())

    assert kills.total() >= KILLS
    assert set(kills) == {AT_RANDOM, *POINTS}


def check(path: Path, kills: int) -> None:
    """Every record is there, whole, first seen in order; a kill repeats at most what was in flight."""
    expected = 0
    lines = 0
    with path.open("rb") as file:
        for line in file:
            number = json.loads(line)["n"]
            assert number <= expected, f"{expected} is missing before {number}"
            expected = max(expected, number + 1)
            lines += 1
    assert expected == RECORDS
    assert lines - RECORDS <= kills * WINDOW
