"""`run`: real processes that complete, resume, fail and refuse."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command

Until: TypeAlias = "Callable[[subprocess.Popen[str], Callable[[dict[str, Any]], bool]], dict[str, Any]]"

ENDLESS = "Count(pause_seconds=0.01)"


def acked(fields: dict[str, Any]) -> bool:
    return bool(fields["type"] == "progress" and fields["acked"])


def test_a_bounded_pipeline_runs_to_its_end(command: "Command") -> None:
    command.pipeline()
    done = command("run", "orders.py")

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("numbers: completed: 1,000 read, 1,000 acked, 0 filtered, 0 dead letters in ")
    assert command.numbers() == list(range(1, 1001))
    assert (command.folder / ".conduit" / "state").is_dir()


def test_a_second_run_continues_and_says_when_there_is_nothing_new(command: "Command") -> None:
    command.pipeline()
    command("run", "orders.py")
    again = command("run", "orders.py")
    command.pipeline("Count(to=1500)")
    more = command("run", "orders.py")

    assert again.returncode == 0
    assert again.stdout.splitlines()[1].startswith(
        "  nothing new since the last run; --fresh reads and delivers everyth"
    )
    assert more.stdout.startswith("numbers: completed: 500 read")
    assert command.numbers() == list(range(1, 1501))


def test_fresh_and_another_state_start_over(command: "Command") -> None:
    command.pipeline("Count(to=3)")
    command("run", "orders.py")
    command("run", "orders.py", "--fresh")
    command("run", "orders.py", "--state", "elsewhere")
    command("run", "orders.py")

    assert command.numbers() == [1, 2, 3] * 3
    assert (command.folder / "elsewhere").is_dir()


def test_fresh_forgets_only_the_pipelines_that_run(command: "Command") -> None:
    command.pipeline("Count(to=2)", id="second", before=command.pipeline("Count(to=1)", id="first"))
    command("run", "orders.py")
    command("run", "orders.py", "--fresh", "--pipeline", "first")
    code, results = command.results("orders.py")

    assert code == 0
    assert sorted(command.numbers()) == [1, 1, 1, 2]
    assert [(result["pipeline"], result["read"], result["resumed"]) for result in results] == [
        ("first", 0, True),
        ("second", 0, True),
    ]


def test_all_pipelines_of_a_file_run_together_and_one_that_fails_stops_no_other(command: "Command") -> None:
    command.pipeline(id="sound", before=command.pipeline("Count()", "Broken()", id="unsound"))
    code, results = command.results("orders.py")

    assert code == 1
    assert {result["pipeline"]: (result["status"], result["exit_code"]) for result in results} == {
        "unsound": ("degraded", 1),
        "sound": ("completed", 0),
    }
    assert command.numbers() == list(range(1, 1001))


def test_a_failure_names_the_error_the_node_and_what_to_do(command: "Command") -> None:
    command.pipeline(destination="Broken()")
    done = command("run", "orders.py")

    assert done.returncode == 1
    assert done.stdout.startswith("numbers: degraded: ")
    assert done.stderr.splitlines() == [
        "numbers: error in lines: the disk is on fire [run.fatal]",
        "  call the fire brigade",
    ]


def test_a_run_that_ends_with_a_transient_error_says_how_it_is_tried_again(command: "Command") -> None:
    command.pipeline(destination="Broken(transient=True)")
    done = command("run", "orders.py")

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "numbers: error in lines: the disk is on fire [run.transient]",
        "  call the fire brigade",
        "  a transient error: with recovery=Recovery() the pipeline starts again by itself, as under "
        "`conduit-py serve`; with retry=Retry(attempts=5), lines first repeats the call that failed",
    ]


def test_a_pipeline_with_a_recovery_of_its_own_gets_no_advice_to_have_one(command: "Command") -> None:
    command.pipeline(destination="Broken(transient=True)", more="recovery=Recovery(retries=0)")
    done = command("run", "orders.py")

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "numbers: error in lines: the disk is on fire [run.transient]",
        "  call the fire brigade",
    ]


def test_a_failure_is_there_for_programs_too(command: "Command") -> None:
    command.pipeline(destination="Broken()")
    code, lines = command.json("run", "orders.py")
    error = lines[-1]["error"]

    assert code == 1
    assert (lines[-1]["type"], lines[-1]["status"], lines[-1]["exit_code"]) == ("result", "degraded", 1)
    assert (error["code"], error["node"], error["suggestion"]) == ("run.fatal", "lines", "call the fire brigade")


def test_the_first_refused_record_stops_the_pipeline(command: "Command") -> None:
    command.pipeline(more="processors=[lambda record: 1 / 0]")
    done = command("run", "orders.py")

    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "dead_letter.not_allowed" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_file_starts_nothing_and_tells_programs(command: "Command") -> None:
    command.pipeline("Count(too=1)")
    code, (answer,) = command.json("run", "orders.py")

    assert code == 2
    assert (answer["type"], answer["status"], answer["exit_code"]) == ("result", "invalid", 2)
    assert [problem["path"] for problem in answer["problems"]] == ["sources.count.too"]
    assert not (command.folder / ".conduit").exists()


def test_a_second_process_on_the_same_state_is_refused(command: "Command", until: Until) -> None:
    command.pipeline(ENDLESS)
    first = command.start("run", "orders.py", "--json")
    until(first, acked)
    second = command("run", "orders.py")
    third_code, (answer,) = command.json("run", "orders.py")

    assert second.returncode == third_code == 3
    assert second.stdout == ""
    assert second.stderr.splitlines() == [
        f"error: state directory .conduit/state is in use by process {first.pid}",
        "  stop that process, or choose another directory with --state",
    ]
    assert (answer["status"], answer["error"]["code"], answer["exit_code"]) == ("environment", "state.locked", 3)


def test_a_state_that_cannot_be_a_folder_is_the_environments_fault(command: "Command") -> None:
    command.pipeline()
    command.write("not a folder", "state")
    done = command("run", "orders.py", "--state", "state/below")

    assert done.returncode == 3
    assert done.stderr.startswith("error: state directory state/below cannot be used")
    assert not command.out.exists()


def test_ctrl_c_delivers_what_was_read_and_ends_well(command: "Command", until: Until) -> None:
    command.pipeline(ENDLESS)
    process = command.start("run", "orders.py", "--json")
    until(process, acked)
    process.send_signal(signal.SIGINT)
    stopping = until(process, lambda fields: fields["type"] != "progress")
    result = until(process, lambda fields: fields["type"] == "result")

    assert stopping == {"type": "stopping", "message": "stopping; press Ctrl-C again to force"}
    assert process.wait(300) == 0
    assert (result["status"], result["forced"], result["error"]) == ("stopped", False, None)
    assert result["read"] == result["acked"]
    assert command.numbers() == list(range(1, result["read"] + 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_stop_the_next_run_goes_on_where_it_ended(command: "Command", until: Until, number: int) -> None:
    command.pipeline(ENDLESS)
    process = command.start("run", "orders.py", "--json")
    until(process, acked)
    process.send_signal(number)
    stopped = until(process, lambda fields: fields["type"] == "result")
    process.wait(300)
    last = stopped["read"] + 25
    command.pipeline(f"Count(to={last})")
    code, lines = command.json("run", "orders.py")

    assert code == 0
    assert (lines[-1]["read"], lines[-1]["resumed"]) == (25, True)
    assert command.numbers() == list(range(1, last + 1))


def test_ctrl_c_twice_does_not_wait(command: "Command", until: Until) -> None:
    command.pipeline(ENDLESS, 'Lines(path="out.txt", stuck=True)')
    process = command.start("run", "orders.py", "--json")
    until(process, lambda fields: bool(fields["in_flight"]))
    process.send_signal(signal.SIGINT)
    until(process, lambda fields: fields["type"] == "stopping")
    process.send_signal(signal.SIGINT)
    until(process, lambda fields: fields["type"] == "forcing")
    result = until(process, lambda fields: fields["type"] == "result")

    assert process.wait(300) == 1
    assert (result["status"], result["forced"], result["acked"]) == ("stopped", True, 0)
    assert result["exit_code"] == 1


def test_ctrl_c_a_third_time_ends_even_what_never_returns(command: "Command") -> None:
    ready = command.folder / "ready"
    os.mkfifo(ready)
    before = command.pipeline().partition("numbers =")[0]
    held_up = "def hold(record):\n    open('ready', 'w').close()\n    time.sleep(1000)\n"
    command.pipeline(more="processors=[hold]", before=f"import time\n{before}{held_up}")
    process = command.start("run", "orders.py")
    ready.read_text()  # returns when the processor has the record, and the event loop with it
    for _ in range(100):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            break

    assert process.returncode == 1
    assert process.communicate()[1] == (
        "\nwaiting for a call that does not return; a third signal ends at once\n"
        "\nended at once; the next run reads again what was in flight\n"
    )


def test_ctrl_c_twice_while_the_loop_is_held_up_counts_twice(command: "Command") -> None:
    press = "def press(record):\n    signal.raise_signal(2)\n    signal.raise_signal(2)\n    return record\n"
    head = command.pipeline().partition("numbers =")[0]
    command.pipeline(
        "Count(to=1)",
        'Lines(path="out.txt", stuck=True)',
        more="processors=[press]",
        before=f"import signal\n{head}{press}",
    )
    code, lines = command.json("run", "orders.py")

    assert code == 1
    assert [line["type"] for line in lines if line["type"] != "progress"] == ["stopping", "forcing", "result"]
    assert (lines[-1]["status"], lines[-1]["forced"]) == ("stopped", True)


def test_a_stop_that_takes_too_long_fails(command: "Command", until: Until) -> None:
    command.pipeline(ENDLESS, 'Lines(path="out.txt", stuck=True)')
    process = command.start("run", "orders.py", "--json", "--stop-timeout", "0.2")
    until(process, lambda fields: bool(fields["in_flight"]))
    process.send_signal(signal.SIGINT)
    result = until(process, lambda fields: fields["type"] == "result")

    assert process.wait(300) == 1
    assert result["error"]["code"] == "stop.timed_out"


def test_progress_lines_carry_the_numbers(command: "Command", until: Until) -> None:
    command.pipeline(ENDLESS)
    process = command.start("run", "orders.py", "--json")
    fields = until(process, acked)

    assert fields["pipeline"] == "numbers"
    assert fields["status"] == "running"
    assert fields["read"] >= fields["acked"] > 0
    assert fields["window"] == 32768
    assert fields["in_flight"] == fields["read"] - fields["acked"]
    assert {"elapsed_seconds", "filtered", "dead_letters", "records_per_second", "blocked_on"} <= fields.keys()


def test_a_reader_that_leaves_does_not_end_the_pipeline(command: "Command", until: Until) -> None:
    command.pipeline("Count(to=300, pause_seconds=0.1)")
    process = command.start("run", "orders.py", "--json")
    until(process, acked)
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(300) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert command.numbers() == list(range(1, 301))


def test_json_is_one_object_a_line(command: "Command") -> None:
    command.pipeline()
    done = command("run", "orders.py", "--json")

    assert [json.loads(line)["type"] for line in done.stdout.splitlines()][-1] == "result"
    assert done.stderr == ""


SHIPPED = """\
from conduit_connectors import file, generator
from conduit_py import Destination, Pipeline, Source

numbers = Pipeline(
    "numbers",
    sources=[Source("made-up", generator.Source({options}fields={{"number": "index"}}))],
    destinations=[Destination("lines", file.Destination(path="out.jsonl", format="json"))],
)
"""


def test_from_the_generator_to_a_file_through_a_stop_in_the_middle(command: "Command", until: Until) -> None:
    command.write(SHIPPED.format(options="rate=1000, "))
    process = command.start("run", "orders.py", "--json")
    until(process, acked)
    process.send_signal(signal.SIGINT)
    stopped = until(process, lambda fields: fields["type"] == "result")
    assert process.wait(300) == 0
    command.write(SHIPPED.format(options=f"count={stopped['read'] + 500}, "))
    code, lines = command.json("run", "orders.py")
    written = (command.folder / "out.jsonl").read_text().splitlines()

    assert code == 0
    assert lines[-1]["read"] == 500
    assert [json.loads(line) for line in written] == [{"number": number} for number in range(stopped["read"] + 500)]


def test_ctrl_c_while_the_file_loads_is_no_traceback(command: "Command") -> None:
    ready = command.folder / "ready"
    os.mkfifo(ready)
    command.write("import time\nopen('ready', 'w').close()\ntime.sleep(1000)\n")
    process = command.start("run", "orders.py")
    ready.read_text()
    process.send_signal(signal.SIGINT)

    assert process.communicate(timeout=300) == ("", "interrupted\n")
    assert process.returncode == 1


REFUSES = """\
from conduit_py import RecordRefused

def pick(record):
    if {when}:
        raise RecordRefused(f"number {{record.payload['number']}} is odd")
    return record
"""


def refusing(command: "Command", when: str, *, letters: str) -> None:
    head = command.pipeline().partition("numbers =")[0]
    command.pipeline(more=f"processors=[pick], dead_letters={letters}", before=head + REFUSES.format(when=when))


def test_dead_letters_are_loud_with_their_number_cause_and_place(command: "Command") -> None:
    refusing(command, 'record.payload["number"] % 2', letters="DeadLetters.keep()")
    done = command("run", "orders.py")

    assert done.returncode == 0
    assert done.stderr == (
        "numbers: warning: 500 dead letters of 1,000 records read: pick: number # is odd, see orders.py:8 in pick; "
        "they are kept in the state; "
        "`conduit-py dlq list --state .conduit/state` shows them\n"
    )


def test_dead_letters_are_loud_for_programs_too(command: "Command") -> None:
    refusing(command, 'record.payload["number"] == 7', letters="DeadLetters.drop()")
    code, lines = command.json("run", "orders.py", "--fail-on-dead-letters")

    assert (code, lines[-1]["exit_code"], lines[-1]["status"]) == (4, 4, "completed")
    assert lines[-1]["warning"].startswith(
        "1 dead letter of 1,000 records read: pick: number # is odd, "
        f"see {command.folder}/orders.py:8 in pick; they were dropped"
    )
    assert lines[-1]["dead_letter_causes"] == {"pick: number # is odd": 1}


def test_no_dead_letters_no_other_exit_code(command: "Command") -> None:
    refusing(command, "False", letters="DeadLetters.keep()")
    done = command("run", "orders.py", "--fail-on-dead-letters")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_refuses_nearly_everything_fails(command: "Command") -> None:
    refusing(command, "True", letters="DeadLetters.keep()")
    done = command("run", "orders.py")

    assert done.returncode == 1
    assert done.stdout.startswith("numbers: degraded: ")
    # How far the source has read ahead when the run stops depends on the machine.
    assert re.sub(r"of [\d,]+ records read", "of N records read", done.stderr).splitlines() == [
        "numbers: warning: 95 dead letters of N records read: pick: number # is odd, see orders.py:8 in pick; "
        "they are kept in the state; "
        "`conduit-py dlq list --state .conduit/state` shows them",
        "numbers: error in pick: nearly all of the first records were refused: 96 of 96; pick refused the last one: "
        "number 96 is odd [dead_letter.not_allowed]",
        "  see orders.py:8 in pick; look at the record of count at '96'; fix the cause and run again, "
        "or accept any number with window_size=0",
    ]


def test_fresh_says_that_it_delivers_everything_again(command: "Command") -> None:
    command.pipeline("Count(to=5)")
    command("run", "orders.py")
    again = command("run", "orders.py")
    command("run", "orders.py", "--fresh")

    assert "--fresh reads and delivers everything again, also what destinations already have" in again.stdout
    assert command.numbers() == [1, 2, 3, 4, 5] * 2


def test_nothing_is_printed_about_leaks_of_duckdb(command: "Command") -> None:
    command.write(
        "from conduit_py import Pipeline\n"
        "from conduit_connectors import duckdb, memory\n"
        'out = duckdb.Destination(path="out.duckdb", table="t")\n'
        'pipeline = Pipeline("p", sources={"in": memory.Source(records=[{"n": 1}])}, destinations={"out": out})\n'
    )
    program = [sys.executable, "-c", "from conduit_py.cli.main import main; main()", "run", "orders.py"]
    done = subprocess.run(program, cwd=command.folder, capture_output=True, text=True)

    assert done.returncode == 0
    assert "leaked" not in done.stderr
