"""`doctor`: each trouble is found, named, and comes with what mends it; a sound machine gets a clean bill."""

import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from conduit_py.store.sqlite.files import StateLock

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside

ROOT = Path(__file__).parent.parent.parent


def found(done: "subprocess.CompletedProcess[str]") -> dict[str, list[dict[str, Any]]]:
    """The findings that are not ok, by check."""
    findings: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["checks"]:
        if finding["verdict"] != "ok":
            findings.setdefault(finding["check"], []).append(finding)
    return findings


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def doctor(inside: "CommandInside", *arguments: str) -> "subprocess.CompletedProcess[str]":
    return inside("doctor", "--port", free_port(), *arguments, "--json")


def test_a_sound_machine(inside: "CommandInside") -> None:
    inside.pipeline()
    done = doctor(inside, "--pipelines", "orders.py")
    answer = json.loads(done.stdout)

    assert done.returncode == 0
    assert answer["ok"] is True
    checks = {finding["check"] for finding in answer["checks"]}
    assert checks >= {"python", "packages", "extras", "plugins", "java", "open files", "clock", "time zones", "state"}
    assert not {"fail"} & {finding["verdict"] for finding in answer["checks"]}
    assert not (inside.folder / ".conduit").exists()


def test_it_says_so_for_people_and_counts(inside: "CommandInside") -> None:
    done = inside("doctor", "--port", free_port())

    assert done.returncode == 0
    assert "ok    python" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 0 to fix")


def test_all_problems_in_pipelines_with_what_mends_them(inside: "CommandInside") -> None:
    inside.pipeline(source="Count(tto=3)")
    done = doctor(inside, "--pipelines", "orders.py")
    (finding,) = found(done)["pipelines"]

    assert done.returncode == 2
    assert finding["verdict"] == "fail"
    assert "orders.py:6: numbers.sources.count.tto: there is no such option" in finding["message"]
    assert finding["fix"] == "did you mean 'to'?"


def test_a_state_directory_in_use_names_who_uses_it(inside: "CommandInside") -> None:
    (inside.folder / "state").mkdir()
    sqlite3.connect(inside.folder / "state/state.db").close()
    lock = StateLock.acquire(inside.folder / "state")
    try:
        (finding,) = found(doctor(inside, "--state", "state"))["lock"]
    finally:
        lock.release()

    assert finding["verdict"] == "warn"
    assert f"pid {os.getpid()}" in finding["message"]
    assert "python" in finding["message"]


def test_state_of_a_run_is_sound_and_left_as_it_is(inside: "CommandInside") -> None:
    inside.pipeline()
    assert inside("run", "orders.py", "--state", "state").returncode == 0
    before = (inside.folder / "state/state.db").read_bytes()
    done = doctor(inside, "--state", "state")

    assert done.returncode == 0
    assert any(each["message"].startswith("sound, format version") for each in json.loads(done.stdout)["checks"])
    assert (inside.folder / "state/state.db").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (b"this is no database at all, but it is long enough to be looked at" * 20, "cannot be read"),
        (None, "was not written by conduit-py"),
    ],
)
def test_damaged_and_foreign_state(inside: "CommandInside", spoil: bytes | None, message: str) -> None:
    (inside.folder / "state").mkdir()
    file = inside.folder / "state/state.db"
    if spoil is None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE theirs (x)")
    else:
        file.write_bytes(spoil)
    done = doctor(inside, "--state", "state")
    (finding,) = found(done)["state.db"]

    assert done.returncode == 3
    assert message in finding["message"]
    assert "--state" in finding["fix"]


def test_newer_state_and_a_clock_that_was_set_back(inside: "CommandInside") -> None:
    inside.pipeline()
    assert inside("run", "orders.py", "--state", "state").returncode == 0
    file = inside.folder / "state/state.db"
    future = file.stat().st_mtime + 86_400
    os.utime(file, (future, future))
    (late,) = found(doctor(inside, "--state", "state"))["state.db"]
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 999")
    (newer,) = found(doctor(inside, "--state", "state"))["state.db"]

    assert (late["verdict"], late["fix"]) == ("warn", "check the clock")
    assert newer["verdict"] == "fail"
    assert "format version 999" in newer["message"]


def test_a_taken_port_and_a_token_file_for_all_to_read(inside: "CommandInside") -> None:
    tokens = inside.write("admin " + "a" * 30 + "\n", "tokens")
    tokens.chmod(0o644)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = inside("doctor", "--port", str(port), "--token-file", "tokens", "--json")

    assert done.returncode == 3
    assert found(done)["address"][0]["message"] == f"cannot listen on 127.0.0.1 port {port} now: Address already in use"
    assert found(done)["tokens"][0]["fix"] == "chmod 600 tokens"
    assert "aaaa" not in done.stdout


def test_a_state_directory_below_a_file(inside: "CommandInside") -> None:
    inside.write("x", "file")
    (finding,) = found(doctor(inside, "--state", "file/state"))["state"]

    assert finding["verdict"] == "fail"
    assert "is a file, not a directory" in finding["message"]


def test_few_open_files(command: "Command") -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))

    line = [sys.executable, "-m", "conduit_py.cli.main", "doctor", "--port", free_port(), "--json"]
    done = subprocess.run(line, cwd=command.folder, preexec_fn=few, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert found(done)["open files"][0]["fix"].startswith("ulimit -n 4096 (at most 4096 here)")


def needed_by(name: str, extras: "tuple[str, ...]", seen: set[str]) -> None:
    """Add the name of a distribution, and those of all that it needs."""
    seen.add(name)
    for text in distribution(name).requires or ():
        need = Requirement(text)
        wanted = need.marker is None or any(need.marker.evaluate({"extra": each}) for each in ("", *extras))
        if wanted and need.name not in seen:
            needed_by(need.name, tuple(need.extras), seen)


def install_only(names: set[str], folder: Path) -> None:
    """Fill a folder with links to what these distributions have installed here."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if ".." not in file.parts}:
            if not (folder / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(str(installed.locate_file(top)))


def doctor_with(extras: "tuple[str, ...]", folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What is not ok where conduit-py is installed with these extras alone."""
    names: set[str] = set()
    needed_by("conduit-dataflow", extras, names)
    install_only(names, folder)
    path = [str(folder), str(ROOT), str(ROOT / "connectors"), str(ROOT / "processors")]
    program = f"import sys; sys.path += {path!r}; from conduit_py.cli.main import main; main()"
    # Without site-packages, where the other extras are.
    command = [sys.executable, "-S", "-c", program, "doctor", "--port", free_port(), "--json"]
    return found(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300))


def test_an_extra_that_nobody_has_asked_for_is_no_reason_to_warn(tmp_path: Path) -> None:
    assert "plugins" not in doctor_with((), tmp_path)


def test_a_connector_whose_extra_is_there_but_that_cannot_be_used_is_one(tmp_path: Path) -> None:
    (tmp_path / "duckdb").mkdir()
    (tmp_path / "duckdb" / "__init__.py").write_text("raise ImportError('no such symbol', name='duckdb')")
    warned = doctor_with(("duckdb",), tmp_path)["plugins"]

    assert {each["message"].partition(" cannot")[0] for each in warned} == {
        "the source duckdb", "the destination duckdb",
    }  # fmt: skip
    assert {each["fix"] for each in warned} == {"pip install 'conduit-dataflow[duckdb]'"}
