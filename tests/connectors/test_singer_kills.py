"""A tap that is killed at some row, and the process that reads it: no row is skipped, and each is there once."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmCommand

ROWS = 200
DEATHS = 8
TAP = [sys.executable, "-S", "-E", str(Path(__file__).parent / "scripted_tap.py")]
PIPELINE = """
from conduit_connectors import file, singer
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "tap",
    sources=[Source("tap", singer.Source(command={command}, config={config}, select=["orders"]), batch_size=20)],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    delivery="exactly_once",
)
"""


def run_until_done(folder: Path, **config: Any) -> tuple[Counter[int], Counter[int]]:
    """Run the pipeline until it ends well. Returns how often each row was written, and how the runs ended."""
    (folder / "rows.json").write_text(json.dumps([{"id": number} for number in range(ROWS)]))
    whole = {"rows": str(folder / "rows.json"), "every": 7, "deaths": {"file": "deaths", "count": DEATHS}, **config}
    (folder / "tap.py").write_text(PIPELINE.format(command=TAP, config=whole))
    ended: Counter[int] = Counter()
    while not ended[0]:
        assert ended.total() <= DEATHS, "it ends well once nothing kills it"
        with WarmCommand("run", "tap.py", "--state", "state", cwd=folder, stderr=subprocess.PIPE) as process:
            process.communicate(timeout=300)
        ended[process.returncode] += 1
    lines = (folder / "out.jsonl").read_text().splitlines()
    return Counter(json.loads(line)["id"] for line in lines), ended


@pytest.mark.parametrize("inclusive", [False, True])
def test_each_row_is_there_once(tmp_path: Path, inclusive: bool) -> None:
    written, ended = run_until_done(tmp_path, inclusive=inclusive)

    assert written == Counter(range(ROWS))
    # Both were killed: the reader, and the tap under a reader that lived.
    assert ended[-signal.SIGKILL] > 0
    assert ended.total() - ended[0] - ended[-signal.SIGKILL] > 0


def test_a_tap_with_another_order_each_time_skips_nothing(tmp_path: Path) -> None:
    written, _ = run_until_done(tmp_path, shuffle=True)

    assert set(written) == set(range(ROWS))
