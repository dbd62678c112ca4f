"""Two hundred pipelines in one server: memory stays flat, the API answers, a stop drains them all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_two_hundred_pipelines_under_a_steady_load() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.fleet",
        "--pipelines",
        "200",
        "--rate",
        "5",
        "--seconds",
        "15",
        "--acked",
        "10000",
        "--json",
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)

    assert figures["statuses"] == {"stopped": 200}
    assert figures["lost_or_doubled"] == 0
    assert figures["acked"] >= 10_000
    # A record kept by each pipeline a second would be 20 MB a minute; tests share their machine, but not their memory.
    first, last = figures["memory_mb"][len(figures["memory_mb"]) // 2][1], figures["memory_mb"][-1][1]
    assert last - first < 8
    assert last < 400
