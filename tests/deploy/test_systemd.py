"""The units of systemd: valid for systemd itself, with options that the server has, and installed as the page says."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_folder import COMMAND
from prometheus_server import Programs

from conduit_py.cli.main import app
from conduit_py.server.access import Role, load_tokens

ROOT = Path(__file__).parent.parent.parent
UNITS = ROOT / "deploy" / "systemd"
PAGE = ROOT / "docs" / "operate" / "systemd.md"
PROGRAM = "/opt/conduit-py/bin/conduit-py"
FOLDERS = (
    "bin", "etc/grafana/provisioning/dashboards", "etc/grafana/provisioning/datasources", "etc/prometheus",
    "etc/systemd/system", "opt/conduit-py/bin",
)  # fmt: skip
TOOLS = ("bin/apt-get", "bin/chown", "bin/systemctl", "opt/conduit-py/bin/pip")


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


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a machine on which the page was followed, command by command."""
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    # The environment is that of this test. What would install or start something is only noted.
    (tmp_path / "opt/conduit-py/bin/conduit-py").symlink_to(COMMAND)
    for tool in TOOLS:
        (tmp_path / tool).write_text('#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLED"\n')
        (tmp_path / tool).chmod(0o755)
    commands = "".join(re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    # Paths in expressions of sed, which begin behind a comma, are texts in files.
    script = re.sub(r"(?<![\w.,/])/(etc|opt)/", rf"{tmp_path}/\1/", commands.replace("python3 -m venv", "true"))
    environment = {"CALLED": str(tmp_path / "called"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    followed = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert followed.returncode == 0, followed.stdout + followed.stderr
    return tmp_path


def test_the_page_leaves_units_tokens_and_a_scrape(machine: Path, prometheus_programs: Programs) -> None:
    tokens, configuration = machine / "etc/conduit-py/tokens", machine / "etc/prometheus/prometheus.yml"
    [scrape] = yaml.safe_load(configuration.read_text())["scrape_configs"]
    token = Path(scrape["authorization"]["credentials_file"])
    checked = subprocess.run(
        [prometheus_programs.promtool, "check", "config", str(configuration)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    called = (machine / "called").read_text()
    enabled = re.findall(r"systemctl enable --now (\S+)", called)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert load_tokens(tokens, {}).role_of(token.read_text()) is Role.READ
    assert tokens.read_text().startswith("operate ")
    assert token.stat().st_mode & 0o077 == 0
    assert "pip install .[postgres]" in called
    assert enabled == ["conduit-py.service", "conduit-py-backup.timer"]
    assert all((machine / "etc/systemd/system" / unit).exists() for unit in enabled)


def test_grafana_finds_the_dashboards_that_were_exported(machine: Path) -> None:
    grafana = machine / "etc/grafana/provisioning"
    [source] = yaml.safe_load((grafana / "datasources/conduit-py.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((grafana / "dashboards/conduit-py.yml").read_text())["providers"]

    assert source["url"] == "http://localhost:9090"
    assert (machine / provider["options"]["path"].removeprefix("/") / "fleet.json").exists()
