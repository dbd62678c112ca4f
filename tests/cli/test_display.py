"""What a user sees while pipelines run: words, numbers, rates, the table."""

import io
import json
import os
import pty
import re
import signal
from typing import TYPE_CHECKING

import pytest
from conduit_connectors import file as file_connector
from rich.console import Console
from warm_python import COMMAND, WarmPython

from conduit_py.cli.display import PlainDisplay, progress_table
from conduit_py.cli.output import ExitCode
from conduit_py.cli.result import ProgressLine, RecordRate, RunResult, advise_retries
from conduit_py.errors import NackNotAllowed, TransientError
from conduit_py.pipeline import Pipeline
from conduit_py.pipeline_settings import Delivery
from conduit_py.sdk.plugin import Place
from conduit_py.status import LastError, PipelineState, Status, Stopper
from conduit_py.stream.meter import Meter, Progress, Wait, WaitReason

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def progress(status: Status = Status.RUNNING, *, read: int = 1200, blocked_on: str | None = None) -> Progress:
    nodes = [
        Meter("web", "source", records=read, acked=1000, in_flight=200, window=8192),
        Meter("cents", "processor", records=1100, refused=2),
        Meter("lake", "destination", records=1000, waits=[Wait(WaitReason.WRITE)]),
        Meter("dead_letters", "dead_letters", records=2),
    ]
    return Progress("orders", status.value, 2.0, read, 1000, 98, 2, 200, blocked_on, nodes)


def result(state: PipelineState, *, read: int = 1200, resumed: bool = False, forced: bool = False) -> RunResult:
    return RunResult(progress(state.status, read=read), state, resumed, forced)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = RecordRate(window_seconds=5)

    assert rate.add(0.0, 0) == 0
    assert rate.add(1.0, 100) == 100
    assert rate.add(2.0, 300) == 150
    assert [rate.add(float(second), 300) for second in (3, 4, 5, 6, 7, 8)] == [100, 75, 60, 40, 0, 0]


def test_a_rate_between_rare_samples_is_not_lost() -> None:
    rate = RecordRate(window_seconds=5)
    rate.add(0.0, 0)

    assert [rate.add(second, int(second)) for second in (60.0, 120.0)] == [1, 1]


def test_a_look_in_one_line() -> None:
    assert ProgressLine(progress(blocked_on="lake: write"), 512.4).sentence() == (
        "orders: running, 1,200 read, 1,000 acked, 2 dead letters, 512/s, 200 of 8,192 in flight, waits for lake: write"
    )


def test_a_recovering_pipeline_says_after_what() -> None:
    error = LastError("node.failed", "lake: write failed: OSError: disk full")

    assert (
        ProgressLine(progress(Status.RECOVERING), 0, error)
        .sentence()
        .endswith("in flight, after lake: write failed: OSError: disk full")
    )


def test_a_result_in_one_line() -> None:
    assert result(PipelineState(Status.COMPLETED)).sentence() == (
        "orders: completed: 1,200 read, 1,000 acked, 98 filtered, 2 dead letters in 2.0 s (500/s)"
    )


@pytest.mark.parametrize(
    ("state", "forced", "code"),
    [
        (PipelineState(Status.COMPLETED), False, ExitCode.OK),
        (PipelineState(Status.COMPLETED), True, ExitCode.OK),
        (PipelineState(Status.STOPPED, Stopper.USER), False, ExitCode.OK),
        (PipelineState(Status.STOPPED, Stopper.USER), True, ExitCode.FAILED),
        (PipelineState(Status.STOPPED, Stopper.USER, LastError("stop.timed_out", "…")), False, ExitCode.FAILED),
        (PipelineState(Status.DEGRADED, error=LastError.of(NackNotAllowed("no"))), False, ExitCode.FAILED),
    ],
)
def test_the_exit_code_follows_from_how_the_run_ended(state: PipelineState, forced: bool, code: ExitCode) -> None:
    assert result(state, forced=forced).exit_code is code


@pytest.mark.parametrize(
    ("status", "read", "resumed", "start"),
    [
        (Status.COMPLETED, 0, True, "nothing new since the last run"),
        (Status.COMPLETED, 0, False, "the sources had no records"),
        (Status.COMPLETED, 5, True, "continued where the last run ended"),
        (Status.COMPLETED, 5, False, "None"),
        (Status.DEGRADED, 0, True, "None"),
    ],
)
def test_numbers_that_might_surprise_are_explained(status: Status, read: int, resumed: bool, start: str) -> None:
    assert str(result(PipelineState(status), read=read, resumed=resumed).remark()).startswith(start)


def shown(width: int) -> list[list[str]]:
    """The cells of the table on a terminal of this width."""
    file = io.StringIO()
    looks = [ProgressLine(progress(read=12_345_678, blocked_on="lake: write"), 512_000.4)]
    Console(file=file, width=width, color_system=None).print(progress_table(looks, "stopping"))
    return [re.split(r"\s{2,}", line.strip()) for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("file", "delivery", "node", "recovery", "retry"),
    [
        ("orders.py", "at_least_once", "lake", True, True),
        ("orders.py", "at_least_once", "web", True, False),
        ("orders.py", "exactly_once", "lake", True, False),
        ("orders.yaml", "at_least_once", "lake", False, False),
    ],
)
def test_only_such_retries_are_advised_as_the_definition_can_have(
    file: str, delivery: Delivery, node: str, recovery: bool, retry: bool
) -> None:
    """A source has no `retry`, nor has a destination that is part of a transaction; YAML has neither of the two."""
    ends = {"web": file_connector.Source(path="in")}, {"lake": file_connector.Destination(path="out")}
    pipeline = Pipeline("orders", sources=ends[0], destinations=ends[1], delivery=delivery)
    pipeline.place = Place(file, 1)
    error = TransientError("the lake is away")
    error.node = node
    advice = advise_retries(pipeline, error) or ""

    assert "`conduit-py serve`" in advice
    assert ("recovery=Recovery()" in advice, "retry=Retry(attempts=5), lake" in advice) == (recovery, retry)


def test_the_table_has_a_row_for_each_pipeline_and_node() -> None:
    assert shown(width=120) == [
        ["pipeline", "read", "acked", "dead", "records/s", "in flight", "status"],
        ["orders", "12,345,678", "1,000", "2", "512,000", "200/8,192", "running, waits for lake: write"],
        ["web", "12,345,678", "200"],
        ["cents", "1,100", "2"],
        ["lake", "1,000", "write…"],
        ["dead letters", "2"],
        ["stopping"],
    ]


def test_numbers_stay_whole_on_a_narrow_terminal() -> None:
    rows = shown(width=70)

    assert rows[0] == ["pipeline", "read", "acked", "dead", "records/s", "in flight", "status"]
    assert rows[1][:6] == ["orders", "12,345,678", "1,000", "2", "512,000", "200/8,192"]


def test_without_a_terminal_there_are_plain_lines() -> None:
    file = io.StringIO()
    display = PlainDisplay(file)
    display.show([ProgressLine(progress(), 512.4)])
    display.say("stopping", "stopping; press Ctrl-C again to force")
    display.end([result(PipelineState(Status.STOPPED, Stopper.USER))])

    assert file.getvalue().splitlines() == [
        "orders: running, 1,200 read, 1,000 acked, 2 dead letters, 512/s, 200 of 8,192 in flight",
        "stopping; press Ctrl-C again to force",
        "orders: stopped: 1,200 read, 1,000 acked, 98 filtered, 2 dead letters in 2.0 s (500/s)",
    ]


def test_on_a_terminal_the_table_is_live_and_ctrl_c_is_explained(command: "Command") -> None:
    command.pipeline("Count(pause_seconds=0.01)")
    terminal, inner = pty.openpty()
    line = [str(COMMAND), "run", "orders.py"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = WarmPython(line, cwd=command.folder, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    try:
        assert b"records/s" in read_until(terminal, b"running")
        process.send_signal(signal.SIGINT)
        rest = read_until(terminal, None)
        assert b"stopping; press Ctrl-C again to force" in rest
        assert b"numbers: stopped: " in rest
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def read_until(terminal: int, wanted: bytes | None) -> bytes:
    """What the terminal shows up to and including the screen with what is wanted, or to its end."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # how a terminal says that the other side has left
            break
    return shown


def test_a_pipeline_that_prints_its_records_has_stdout_to_itself(command: "Command") -> None:
    command.pipeline("Count(to=3)", '"stdio"')
    done = command("run", "orders.py")

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.startswith("numbers: completed: 3 read")


def test_json_lines_give_way_to_records_on_stdout(command: "Command") -> None:
    command.pipeline("Count(to=3)", '"stdio", settings={"format": "json"}')
    done = command("run", "orders.py", "--json")

    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"number": 1}, {"number": 2}, {"number": 3}]
    assert json.loads(done.stderr.splitlines()[-1])["type"] == "result"
