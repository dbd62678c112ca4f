"""`top`: the fleet on a terminal and as JSON lines, against a real server and on the screen it draws."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console
from warm_python import COMMAND, WarmPython

from conduit_py.cli.top import FleetRates, screen

if TYPE_CHECKING:
    from tests.cli.conftest import Serving


class Terminal:
    """A command on a terminal of its own, 24 lines of 120 columns."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self._main, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "LINES": "24", "COLUMNS": "120"}
        line = [str(COMMAND), *arguments]
        self.process = WarmPython(line, stdin=other, stdout=other, stderr=subprocess.PIPE, env=environment)
        os.close(other)

    def until(self, wanted: Callable[[str], bool], seconds: float = 300) -> None:
        """Read what is drawn until it is as wanted, or the command ends."""
        deadline = time.monotonic() + seconds
        drawn = select.poll()
        drawn.register(self._main, select.POLLIN)
        while not wanted(self.seen):
            assert drawn.poll(max(0, deadline - time.monotonic()) * 1000), self.seen
            try:
                self.seen += os.read(self._main, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break

    def end(self) -> tuple[int, str]:
        """The exit code and stderr, once everything is drawn."""
        self.until(lambda _: False)
        _, stderr = self.process.communicate(timeout=300)
        os.close(self._main)
        return self.process.returncode, stderr.decode()


def test_a_terminal_shows_the_fleet_and_is_given_back(serving: "Serving") -> None:
    serving.add("endless")
    serving.add("broken", destination="Broken()")
    serving.start()
    serving.until("broken", lambda shown: shown["status"] == "degraded")
    terminal = Terminal("top", "--url", serving.url, "--count", "1")
    code, stderr = terminal.end()

    assert (code, stderr) == (0, "")
    for words in ("endless", "broken", "degraded", "the disk is on fire [run.fatal]", "records/s", serving.url):
        assert words in terminal.seen
    assert terminal.seen.index("the disk is on fire") < terminal.seen.index("endless")
    assert terminal.seen.index("\x1b[?1049h") < terminal.seen.index("\x1b[?1049l")


def test_a_file_that_is_broken_at_the_start_is_shown_above_the_table(serving: "Serving") -> None:
    serving.add("endless")
    (serving.folder / "wrong.py").write_text("this is no Python\n")
    serving.start()
    terminal = Terminal("top", "--url", serving.url, "--count", "1")

    assert terminal.end() == (0, "")
    assert "1 problem in the files" in terminal.seen
    assert terminal.seen.index("wrong.py:1: ") < terminal.seen.index("endless")


def test_problems_take_lines_of_the_table_and_steer_no_terminal() -> None:
    problem = {"file": "a.py", "line": 3, "path": "", "message": "no \x1b[2J end", "suggestion": None}
    pipelines = [shown(f"p{number}", "running") for number in range(9)]
    lines = drawn({"at": 1.0, "pipelines": pipelines, "problems": [problem] * 5}, rows=8)

    assert "5 problems in the files" in lines[0]
    assert lines[1:4] == [r"a.py:3: no \x1b[2J end"] * 3
    assert len([line for line in lines if line.startswith("p")]) == 5 + 1  # with the headings
    assert lines[-1] == "4 more pipelines; Ctrl-C leaves"


def test_ctrl_c_leaves_in_peace(serving: "Serving") -> None:
    serving.add("endless")
    serving.start()
    terminal = Terminal("top", "--url", serving.url)
    terminal.until(lambda seen: "endless" in seen)
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == (0, "")
    assert "\x1b[?1049l" in terminal.seen


def test_a_server_that_ends_is_waited_for(serving: "Serving") -> None:
    serving.add("endless")
    server = serving.start()
    terminal = Terminal("top", "--url", serving.url)
    terminal.until(lambda seen: "endless" in seen)
    server.send_signal(signal.SIGTERM)
    terminal.until(lambda seen: "has ended the connection; trying again." in seen)
    assert server.wait(300) == 0
    terminal.until(lambda seen: "cannot reach a server" in seen)
    terminal.seen = ""
    serving.command.start("serve", "--pipelines", "pipelines", "--port", serving.url.rpartition(":")[2])
    terminal.until(lambda seen: "1 running" in seen)
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == (0, "")


def test_a_server_that_was_never_there_is_an_error(serving: "Serving") -> None:
    server = serving.start()
    server.kill()
    server.wait(300)
    terminal = Terminal("top", "--url", serving.url)
    code, stderr = terminal.end()

    assert code == 3
    assert f"cannot reach a server at {serving.url}" in stderr


def test_events_are_json_lines_for_programs(serving: "Serving") -> None:
    serving.add("endless")
    serving.start()
    done = serving("top", "--json", "--count", "2")
    first, second = (json.loads(line) for line in done.stdout.splitlines())

    assert done.returncode == 0
    assert [each["id"] for each in first["pipelines"]] == ["endless"]
    assert second["at"] > first["at"]


def test_without_a_terminal_it_says_what_to_use_instead(serving: "Serving") -> None:
    serving.start()
    done = serving("top")

    assert done.returncode == 3
    assert done.stderr == "error: top needs a terminal\n  use `top --json` or `pipelines list` in scripts\n"


def shown(id: str, status: str, acked: int = 0, **more: Any) -> dict[str, Any]:
    progress = {"read": acked, "acked": acked, "dead_letters": 0, "in_flight": 0, "blocked_on": None}
    return {"id": id, "status": status, "since": 0.0, "error": None, "progress": progress, **more}


def drawn(*events: dict[str, Any], rows: int = 20, width: int = 120) -> list[str]:
    """The screen after the last of several events."""
    console, rates = Console(width=width, record=True, file=StringIO()), FleetRates()
    for event in events[:-1]:
        screen(event, rates, "http://here", rows=rows)
    console.print(screen(events[-1], rates, "http://here", rows=rows))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_rates_are_those_of_the_last_seconds_and_begin_anew_with_a_run() -> None:
    before = {"at": 10.0, "pipelines": [shown("a", "running", 1000), shown("b", "running", 500)]}
    after = {"at": 12.0, "pipelines": [shown("a", "running", 3000), shown("b", "running", 20)]}
    lines = drawn(before, after)

    assert lines[0] == "00:00:12 UTC  http://here  2 running  1,000 records/s"
    assert [line.split()[:4] for line in lines[2:4]] == [["a", "running", "12s", "1,000"], ["b", "running", "12s", "0"]]


def test_what_is_in_trouble_comes_first_and_what_does_not_fit_is_counted() -> None:
    pipelines = [shown(f"p{number}", "running") for number in range(200)]
    pipelines[150] = shown("p150", "degraded", error={"message": "no \x1b[2J disk", "code": "run.fatal"})
    pipelines[160] = shown("never", "created", progress=None)
    lines = drawn({"at": 1.0, "pipelines": pipelines}, rows=10)

    assert len(lines) == 13
    assert lines[0].startswith("00:00:01 UTC  http://here  1 degraded  198 running  1 created  0 records/s")
    assert lines[2].startswith("p150  ")
    assert lines[2].endswith("no \\x1b[2J disk [run.fatal]")
    assert lines[-1] == "190 more pipelines; Ctrl-C leaves"


def test_a_long_error_is_cut_and_nothing_else_is() -> None:
    error = {"message": "lake: write failed: " + "the disk is full, " * 20, "code": "node.failed"}
    pipelines = [shown("orders-of-all-shops", "recovering", 12_345_678, error=error), shown("web", "running", 7)]
    wide, narrow = drawn({"at": 1.0, "pipelines": pipelines}), drawn({"at": 1.0, "pipelines": pipelines}, width=90)

    assert wide[1].split() == ["pipeline", "status", "for", "records/s", "read", "acked", "dead", "in", "flight"]
    for lines in (wide, narrow):
        assert len(lines) == 5
        first, second = lines[2], lines[3]
        assert first.split()[:8] == [
            *("orders-of-all-shops", "recovering", "1s", "0", "12,345,678", "12,345,678", "0", "0"),
        ]
        assert second.split() == ["web", "running", "1s", "0", "7", "7", "0", "0"]
        assert first.endswith("…")
    assert "lake: write failed: the disk" in wide[2]
