"""`init`: a project that runs and whose test passes at once, and that never overwrites anything."""

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from warm_python import run_command

if TYPE_CHECKING:
    from tests.cli.conftest import Command


@pytest.mark.parametrize(("flags", "name", "lake"), [([], "orders.py", [1, 2]), (["--yaml"], "orders.yaml", [1, 2, 3])])
def test_the_project_runs_and_its_test_passes(command: "Command", flags: list[str], name: str, lake: list[int]) -> None:
    written = command("init", "shop", *flags)
    project = command.folder / "shop"
    ran = run_command("run", f"pipelines/{name}", cwd=project)
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(test, cwd=project, capture_output=True, text=True, timeout=300, check=False)

    assert written.stdout.splitlines()[-1] == f"next: cd shop && conduit-py run pipelines/{name}"
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)["id"] for line in (project / "data/lake.jsonl").read_text().splitlines()] == lake
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout


def test_nothing_is_overwritten_and_nothing_is_written_by_halves(command: "Command") -> None:
    (command.folder / "tests").mkdir()
    (command.folder / "tests/test_orders.py").write_text("mine\n")
    before = sorted(command.folder.rglob("*"))
    done = command("init")

    assert done.returncode == 2
    assert "tests/test_orders.py: exists already, and is left as it is (choose another folder)" in done.stderr
    assert sorted(command.folder.rglob("*")) == before


def test_for_programs(command: "Command") -> None:
    code, answers = command.json("init", "shop")

    assert code == 0
    assert answers[0]["folder"] == "shop"
    assert {"pipelines/orders.py", "tests/test_orders.py", "README.md", ".gitignore"} <= set(answers[0]["files"])
    assert all((command.folder / "shop" / file).is_file() for file in answers[0]["files"])


def test_a_refusal_for_programs(command: "Command") -> None:
    command("init", "shop")
    code, answers = command.json("init", "shop")

    assert code == 2
    assert answers[0]["error"]["code"] == "file.invalid"
    assert "shop/README.md: exists already" in answers[0]["error"]["message"]
