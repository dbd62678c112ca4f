"""The command's own manners: help at once, wrong arguments answered with what was meant."""

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command

HEAVY = ("trio", "networkx", "pydantic", "msgspec", "rich.live", "sqlite3", "conduit_py.pipeline")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["graph", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        f"import sys\nfrom conduit_py.cli.main import answer\n"
        f"assert answer({arguments!r}) == 0\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout
    assert done.stderr == ""


def test_help_takes_no_longer_than_a_blink(command: "Command") -> None:
    command("--help")  # compiles what is not yet compiled
    bare = [sys.executable, "-I", "-c", "import cyclopts"]
    helped = [sys.executable, "-m", "conduit_py.cli.main", "--help"]
    # By turns, so that both meet the same machine.
    pairs = [(processor_seconds(helped), processor_seconds(bare)) for _ in range(5)]

    # Compared with the least that any such command takes on the same machine, in processor time.
    assert min(shown for shown, _ in pairs) < 4 * min(least for _, least in pairs)


def processor_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_names_every_command_and_exit_code(command: "Command") -> None:
    done = command("--help")

    assert done.returncode == 0
    for word in ("run", "check", "graph", "quickstart", "version", "Exit codes: 0 ok, 1 failed, 2 invalid, 3 environm"):
        assert word in done.stdout


def test_help_of_run_says_where_state_is_kept(command: "Command") -> None:
    assert ".conduit/state in the working directory" in command("run", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["rnu", "orders.py"], 'Did you mean "run"?'),
        (["run"], "requires an argument"),
        (["run", "orders.py", "--stat", "x"], "Did you mean --state?"),
        (["run", "orders.py", "--stop-timeout", "soon"], "--stop-timeout"),
        (["run", "orders.py", "--stop-timeout", "-1"], "--stop-timeout"),
        (["graph", "orders.py", "--format", "png"], '"text", "mermaid", "svg"'),
        (["quickstart", "--records", "0"], "--records"),
        (["check", "orders.py", "another.py"], "another.py"),
    ],
)
def test_wrong_arguments_are_answered_on_stderr_with_exit_code_2(
    command: "Command", arguments: list[str], answer: str
) -> None:
    done = command(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_shown_to_people_and_programs(command: "Command") -> None:
    from conduit_py import __version__

    assert command("version").stdout.startswith(f"conduit-py {__version__}\n")
    assert command("--version").stdout == f"conduit-py {__version__}\n"
    assert json.loads(command("version", "--json").stdout)["conduit-py"] == __version__
