"""Every example runs as a user would run it, and produces exactly what it says."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import run_command

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/expected"))

# Sources run side by side, so only the order within each of them is promised.
ORDER_BETWEEN_SOURCES_IS_FREE = {"fan_in_fan_out"}


def test_there_are_at_least_five() -> None:
    assert len(NAMES) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_its_output_is_what_it_says(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    ran = run_command("run", "pipeline.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    for expected in (tmp_path / "expected").iterdir():
        lines = (tmp_path / expected.name).read_text().splitlines()
        wanted = expected.read_text().splitlines()
        assert (sorted(lines) if name in ORDER_BETWEEN_SOURCES_IS_FREE else lines) == (
            sorted(wanted) if name in ORDER_BETWEEN_SOURCES_IS_FREE else wanted
        )


def test_the_unparsable_and_the_refused_orders_are_dead_letters_that_keep_what_was_read(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "orders", tmp_path, dirs_exist_ok=True)
    run_command("run", "pipeline.py", cwd=tmp_path).check_returncode()

    letters = (tmp_path / "dead.jsonl").read_text().splitlines()
    assert len(letters) == 2
    assert '"node":"web"' in letters[0]
    assert '"after":"dGhpcyBsaW5lIGlzIG5vdCBKU09O"' in letters[0]
    assert '"node":"cents"' in letters[1]
    assert "KeyError: 'amount'" in letters[1]


def test_the_demo_delivers_every_order_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, str(EXAMPLES / "demo" / "run.py"), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    assert "65,000 read, 65,000 acked, 50 filtered, 11 dead letters" in ran.stdout
    assert ran.stdout.endswith("`make demo-page`, then open http://127.0.0.1:8080\n")
    orders = [json.loads(line) for line in (folder / "lake.jsonl").open()]
    web = [order["order"] for order in orders if order["shop"] == "web"]
    till = [order["order"] for order in orders if order["shop"] == "till"]
    assert web == list(range(60_000))
    assert till == [n for n in range(5000) if n % 100 and n % 500 != 250 and n != 1234]
    large = [json.loads(line) for line in (folder / "large-orders.jsonl").open()]
    assert large == [order for order in orders if order["cents"] > 49_000]
