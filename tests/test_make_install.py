"""`make install` says what it does while it takes its minutes, and fails when pip does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = """#!/bin/sh
case "$*" in *"pip install"*)
    echo "Collecting trio==0.35.0 (from -c constraints.txt (line 1))"
    echo "  Using cached trio.whl"
    echo "Installing collected packages: trio"
    exit {code}
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    return tmp_path


def make_install(project: Path, *, pip_exits_with: int) -> "subprocess.CompletedProcess[str]":
    python = project / ".venv" / "bin" / "python"
    python.write_text(PIP.format(code=pip_exits_with))
    python.chmod(0o755)
    # This make is no part of the one that runs the tests.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "install"]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_an_install_prints_each_package_and_its_end(project: Path) -> None:
    made = make_install(project, pip_exits_with=0)

    assert made.returncode == 0, made.stderr
    assert [line.split()[0] for line in made.stdout.splitlines()] == [
        "setting",
        "installing",
        "Collecting",
        "Installing",
        "ready:",
    ]
    assert (project / ".venv" / ".ready").exists()


def test_an_install_that_fails_is_not_ready(project: Path) -> None:
    made = make_install(project, pip_exits_with=1)

    assert made.returncode != 0
    assert "ready" not in made.stdout
    assert not (project / ".venv" / ".ready").exists()
