"""Servers that replace each other on one state: an exactly-once pipeline loses and repeats nothing."""

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Serving

PIPELINE = """
from conduit_connectors import file, generator
from conduit_py import Pipeline, TransactionLimits

pipeline = Pipeline(
    "numbers",
    sources={"in": generator.Source(rate=2000, fields={"n": "index"})},
    destinations={"out": file.Destination(path="out.jsonl", format="json")},
    delivery="exactly_once",
    transaction=TransactionLimits(max_records=64),
)
"""


def delivered(folder: Path) -> list[int]:
    return [json.loads(line)["n"] for line in (folder / "out.jsonl").read_text().splitlines()]


def stop(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate()
    return process.returncode


def test_servers_one_after_the_other_on_one_directory(serving: "Serving") -> None:
    """As a StatefulSet and systemd restart it: the old one ends, then the new one starts."""
    (serving.folder / "numbers.py").write_text(PIPELINE)
    for _ in range(3):
        server = serving.start("--state", "state")
        serving.until("numbers", lambda shown: shown["progress"]["acked"] > 100)
        assert stop(server) == 0
    numbers = delivered(serving.command.folder)

    assert len(numbers) > 300
    assert numbers == list(range(len(numbers)))


def test_the_next_server_waits_beside_the_last_on_one_database(serving: "Serving", postgres: str) -> None:
    """As a Deployment restarts it: the new one starts, waits for the old one to end, and goes on."""
    (serving.folder / "numbers.py").write_text(PIPELINE)
    old = serving.start("--state", postgres)
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 100)
    new = serving.start("--state", postgres)
    serving.until("numbers", lambda shown: (shown["error"] or {}).get("code") == "run.elsewhere")
    assert stop(old) == 0
    before = len(delivered(serving.command.folder))
    serving.until("numbers", lambda shown: shown["progress"]["acked"] > 100)
    assert stop(new) == 0
    numbers = delivered(serving.command.folder)

    assert len(numbers) > before
    assert numbers == list(range(len(numbers)))
