"""`new`: the package that it writes can be installed, passes its tests, and fails them when it breaks the contract."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def test_packages_pass_as_written_and_fail_when_the_contract_is_broken(command: "Command") -> None:
    for kind, name in (("connector", "my-shop"), ("connector", "bad-shop"), ("processor", "shout")):
        assert command("new", kind, name).returncode == 0
    break_contract(command.folder / "conduit-bad-shop" / "src" / "conduit_bad_shop")
    tests = command.folder / "conduit-bad-shop" / "tests"
    (tests / "test_connector.py").rename(tests / "test_broken.py")
    packages = [str(command.folder / f"conduit-{name}") for name in ("my-shop", "bad-shop", "shout")]
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", "site"]
    subprocess.run([sys.executable, *pip, *packages], cwd=command.folder, check=True, timeout=600)
    environment = os.environ | {"PYTHONPATH": str(command.folder / "site")}
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "--import-mode=importlib", "-rfE"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *packages],
        cwd=command.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE))

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert {name.partition("::")[0].rpartition("/")[2] for name in failed} == {"test_broken.py"}, ran.stdout
    rules = {name.rpartition("::")[2] for name in failed}
    assert {
        "test_resumes_after_every_position",
        "test_has_no_method_that_is_never_called",
        "test_reports_what_it_could_not_write",
    } <= rules


def break_contract(package: Path) -> None:
    """Resume one record too late, swallow errors, and never close."""
    source, destination = package / "source.py", package / "destination.py"
    source.write_text(source.read_text().replace("else _number(position)\n", "else _number(position) + 1\n"))
    text = destination.read_text().replace("    def teardown(self)", "    def close(self)")
    text = text.replace("    def write(self, batch", "    def _write(self, batch")
    destination.write_text(
        text
        + """
    def write(self, batch: Batch) -> dict[int, str] | None:
        try:
            return self._write(batch)
        except Exception:
            return None
"""
    )


def test_a_pipeline_with_a_tap_is_written_and_runs(command: "Command") -> None:
    written = command("new", "singer", "tap-shop")
    file = command.folder / "pipelines" / "tap_shop.py"
    (command.folder / "rows.json").write_text('[{"id": 1, "item": "lamp"}, {"id": 2, "item": "chair"}]')
    tap = Path(__file__).parents[1] / "connectors" / "scripted_tap.py"
    text = file.read_text().replace('["uvx", "--from", "tap-shop", "tap-shop"]', repr([sys.executable, str(tap)]))
    file.write_text(text.replace("config={},", 'config={"rows": "rows.json"},', 1).replace('["*"]', '["orders"]'))
    asked = command("check", "--connect", "pipelines/tap_shop.py")
    ran = command("run", "pipelines/tap_shop.py")

    assert written.returncode == 0
    assert "conduit-py check --connect --timeout 120 pipelines/tap_shop.py" in written.stdout
    assert "1 of 2 streams are selected" in asked.stdout
    assert ran.returncode == 0, ran.stderr
    with closing(sqlite3.connect(command.folder / "tap-shop.db")) as database:
        assert database.execute("SELECT id, item FROM orders").fetchall() == [(1, "lamp"), (2, "chair")]


def test_a_name_that_is_none_and_a_file_that_exists_are_refused(command: "Command") -> None:
    wrong = command("new", "connector", "My Shop")
    (command.folder / "conduit-shop").mkdir()
    (command.folder / "conduit-shop" / "README.md").write_text("mine")
    taken = command("new", "connector", "shop")

    assert wrong.returncode != 0
    assert "lower-case letters and digits" in wrong.stderr + wrong.stdout
    assert taken.returncode == 2
    assert "exists already, and is left as it is" in taken.stderr
    assert [each.name for each in (command.folder / "conduit-shop").iterdir()] == ["README.md"]
