"""The benchmarks run, and every contender does the same work."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_small_round_of_every_work_gives_ratios_for_every_contender() -> None:
    command = [sys.executable, "-m", "benchmarks", "--records", "2000", "--rounds", "1", "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {(row["work"], row["contender"]) for row in rows} >= {
        ("W1", "loop"),
        ("W1", "conduit-py"),
        ("W1", "bytewax"),
        ("W2", "conduit-py"),
        ("W2", "bytewax"),
        ("W3", "conduit-py, message by message"),
        ("W4", "conduit-py"),
        ("W5", "conduit-py, exactly once"),
    }
    assert all(row["ratio"] > 0 for row in rows)


def test_every_message_of_a_queue_is_tracked_and_arrives_once() -> None:
    command = [sys.executable, "-m", "benchmarks.queue", "--messages", "2000"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    assert "tracked messages/s" in ran.stdout
