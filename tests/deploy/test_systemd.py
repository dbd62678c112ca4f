"""The units of systemd: valid for systemd itself, and with options that the server has."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_py.cli.main import app

UNITS = Path(__file__).parent.parent.parent / "deploy" / "systemd"
PROGRAM = "/opt/conduit-py/bin/conduit-py"


def command_of(unit: str) -> list[str]:
    text = re.sub(r"\\\n", " ", (UNITS / unit).read_text())
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for path in UNITS.iterdir():
        # The program of the unit is not installed here; any other that exists does.
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, str(Path(sys.executable))))
    units = sorted(map(str, tmp_path.iterdir()))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=300
    )

    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_the_server_is_started_with_options_that_it_has() -> None:
    program, *arguments = command_of("conduit-py.service")
    called, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)

    assert program == PROGRAM
    assert called.__name__ == "serve"
    assert str(bound.arguments["state"]) == "/var/lib/conduit-py"
    assert str(bound.arguments["token_file"]) == "%d/tokens"


def test_a_stop_has_the_time_that_it_needs_and_a_failure_is_not_the_end() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNITS / "conduit-py.service")

    assert int(unit["Service"]["TimeoutStopSec"]) > 30
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_backup_is_that_of_the_state_of_the_server() -> None:
    shell, option, script = command_of("conduit-py-backup.service")
    words = shlex.split(re.sub(r"\$\(.*?\)", "now", script))
    called, bound, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False)

    assert (shell, option, words[0]) == ("/bin/sh", "-c", PROGRAM)
    assert called.__name__ == "backup"
    assert str(bound.arguments["state"]) == "/var/lib/conduit-py"
