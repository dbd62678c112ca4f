"""Records steer no terminal and write no log line: every command prints what could as visible text."""

import io
import json
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from conduit_py import cli
from conduit_py.cli.errors import Console
from conduit_py.cli.output import JsonLogFormatter, TextLogFormatter, printable, printable_json, printable_lines

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Serving

HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\x7fd\u202ee\u2028f\rg\n12:00:00 ERROR conduit_py: forged"
"""An escape sequence, one of C1, DEL, a control of text direction, line breaks, and a line of a log."""

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")

PIPELINE = f"""
from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor
from conduit_py.errors import RecordRefused
from ends import Count, Lines

HOSTILE = {HOSTILE!r}


def refuse(record: Record) -> Record:
    record.payload.after["text"] = HOSTILE
    record.payload.after[HOSTILE] = 1
    raise RecordRefused(HOSTILE)


def fail(record: Record) -> Record:
    raise RuntimeError(HOSTILE)
"""


def pipeline(name: str, function: str, letters: str) -> str:
    return (
        f'{PIPELINE}\n{name} = Pipeline("{name}", sources=[Source("count", Count(to=2))], processors=[{function}],'
        f' destinations=[Destination("lines", Lines(path="{name}.txt"))], dead_letters={letters})\n'
    )


def assert_harmless(*texts: str) -> None:
    for text in texts:
        assert "owned" in text, text
        assert not STEERING.search(text), ascii(text)
        assert not [line for line in text.splitlines() if line.startswith("12:00:00 ERROR")], text


@given(st.text())
def test_printable_text_is_one_line_without_controls(text: str) -> None:
    shown = printable(text)

    assert len(shown.splitlines()) <= 1
    assert not STEERING.search(shown)
    assert shown.isprintable() or all(each.isprintable() or each.isspace() for each in shown)


@given(st.text())
def test_lines_stay_lines_and_have_no_other_controls(text: str) -> None:
    shown = printable_lines(text)

    assert shown.count("\n") == text.count("\n")
    assert not STEERING.search(shown)


@given(st.recursive(st.text() | st.integers(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_printable_json_means_the_same(value: object) -> None:
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=2))

    assert json.loads(text) == value
    assert not STEERING.search(text)


def test_text_of_other_scripts_stays_as_it_is() -> None:
    assert printable("größe\u00a0東京\u3000🙂") == "größe\u00a0東京\u3000🙂"


def test_a_console_prints_its_own_colours_and_no_controls_of_a_text() -> None:
    printed = io.StringIO()
    console = Console(file=printed)
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, "red"))
    console.print(Text(HOSTILE, "red"), HOSTILE, table)

    assert not STEERING.search(printed.getvalue())


def test_no_command_prints_past_the_console_and_put() -> None:
    sources = {file.name: file.read_text() for file in Path(cli.__file__).parent.glob("*.py")}
    past = re.compile(r"rich.console import .*\bConsole\b|rich import print|(?<![.\w])print\(", re.MULTILINE)

    assert [name for name, text in sources.items() if past.search(text)] == ["errors.py"]


def test_a_log_line_is_one_line_and_a_traceback_cannot_forge_another() -> None:
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        record = logging.LogRecord("conduit_py", logging.ERROR, "", 0, "%s", (HOSTILE,), sys.exc_info())
    text, line = TextLogFormatter().format(record), JsonLogFormatter().format(record)

    assert_harmless(text)
    assert [each[:2] for each in text.splitlines()[1:]] == ["  "] * (len(text.splitlines()) - 1)
    assert not STEERING.search(line)
    assert json.loads(line)["message"] == HOSTILE


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    ("function", "letters"), [("refuse", "None"), ("refuse", 'DeadLetters("drop")'), ("fail", "None")]
)
def test_what_run_prints_and_logs_is_harmless(
    command: "Command", function: str, letters: str, debug: list[str]
) -> None:
    file = str(command.write(pipeline("p", function, letters)))
    done = command("run", file, *debug)
    as_json = command("run", file, "--json", "--fresh", *debug)

    assert_harmless(done.stdout + done.stderr)
    assert_harmless(as_json.stdout + as_json.stderr)


def test_a_problem_of_a_file_is_harmless(command: "Command") -> None:
    done = command("check", str(command.write(f"raise ValueError({HOSTILE!r})")), "--debug")

    assert_harmless(done.stderr)


def test_what_a_server_logs_and_its_commands_show_is_harmless(serving: "Serving") -> None:
    (serving.folder / "kept.py").write_text(pipeline("kept", "refuse", 'DeadLetters("journal")'))
    (serving.folder / "bad.py").write_text(pipeline("bad", "fail", "None"))
    process = serving.start("--debug")
    serving.until("kept", lambda shown: shown["status"] == "completed")
    serving.until("bad", lambda shown: shown["error"] is not None)
    listed = serving("dlq", "list")
    letter = serving.json("dlq", "list")["letters"][0]["id"]
    shown = serving("dlq", "show", letter)
    record = shown.stdout[shown.stdout.index("\n{") :]
    as_json = serving("dlq", "show", letter, "--json")

    assert_harmless(listed.stdout, shown.stdout, as_json.stdout)
    assert_harmless(serving("pipelines", "list").stdout, serving("pipelines", "describe", "bad").stdout)
    assert json.loads(record)["payload"]["after"]["text"] == HOSTILE
    assert json.loads(as_json.stdout)["error"] == HOSTILE
    process.terminate()
    assert_harmless(process.communicate()[1])
