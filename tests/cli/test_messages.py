"""What the commands say: which line of the user's code, which line of a file, and what to do about it."""

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside

STATE = ("--state", ".conduit/state")
HEAD = """\
import json
from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Source
"""
PIPELINE = """
pipeline = Pipeline(
    "prices",
    sources=[Source("orders", {source})],
    processors=[{processor}],
    destinations=[Destination("out", {destination})],
    dead_letters={dead_letters},
    recovery=Recovery(retries=0),
)
"""
WRITE_OUT = 'file.Destination(path="out.jsonl", format="json")'
READ_ORDERS = 'file.Source(path="orders.jsonl", format="json")'
CENTS = """
def cents(record):
    record.payload["cents"] = parse(record.payload["price"])
    return record

def parse(price):
    return json.loads(price)["cents"]
"""


def prices(
    inside: "CommandInside",
    *,
    functions: str = CENTS,
    processor: str = "cents",
    dead_letters: str = "DeadLetters.keep()",
    source: str = READ_ORDERS,
    destination: str = WRITE_OUT,
) -> None:
    """Write a pipeline, and five orders of which the third and the fourth cannot be parsed."""
    nodes = {"source": source, "processor": processor, "destination": destination, "dead_letters": dead_letters}
    inside.write(HEAD + functions + PIPELINE.format(**nodes))
    texts = ['{"cents": 3}', '{"cents": 4}', "odd", "", '{"cents": 5}']
    (inside.folder / "orders.jsonl").write_text("".join(json.dumps({"price": text}) + "\n" for text in texts))


def test_the_line_of_the_users_code_that_refused_is_named_wherever_its_letter_is(inside: "CommandInside") -> None:
    prices(inside)
    done = inside("run", "orders.py")
    letters = json.loads(inside("dlq", "list", *STATE, "--json").stdout)["letters"]
    shown = inside("dlq", "show", letters[0]["id"], *STATE)
    as_json = json.loads(inside("dlq", "show", letters[0]["id"], *STATE, "--json").stdout)

    place = "orders.py:10 in parse"
    assert done.returncode == 0
    assert f"line # column # (char #), see {place}; they are kept in the state" in done.stderr
    assert shown.stdout.splitlines()[1] == "from orders.jsonl line 4"
    assert f"\n  see {place}\n" in shown.stdout
    assert as_json["history"][0]["location"] == f"{inside.folder}/{place}"


def test_the_line_of_the_users_code_is_in_the_advice_of_a_run_that_stops(inside: "CommandInside") -> None:
    prices(inside, dead_letters="DeadLetters.stop()")
    done = inside("run", "orders.py")

    assert done.returncode == 1
    assert "\n  see orders.py:10 in parse; correct orders.jsonl line 3, or set dead_letters" in done.stderr


def test_the_line_of_a_condition_that_raises_is_named(inside: "CommandInside") -> None:
    functions = "\ndef wanted(record):\n    return record.payload['weight'] > 3\n"
    destination, letters = f"{WRITE_OUT}, when=wanted", "DeadLetters.drop(window_size=0)"
    prices(inside, functions=functions, processor="", destination=destination, dead_letters=letters)
    done = inside("run", "orders.py")

    assert "out: KeyError: 'weight', see orders.py:6 in wanted; they were dropped" in done.stderr


def test_the_line_of_a_connector_of_the_user_is_named(inside: "CommandInside") -> None:
    functions = "\nfrom ends import Lines\nclass Torn(Lines):\n    async def open(self):\n        {}['page']\n"
    prices(inside, functions=functions, processor="", destination='Torn(path="out.txt")')
    done = inside("run", "orders.py")

    assert "out: open failed: KeyError: 'page'" in done.stderr
    assert "\n  see orders.py:8 in Torn.open\n" in done.stderr


def test_no_line_is_named_for_refusals_of_our_own_processors(inside: "CommandInside") -> None:
    functions = "\nfrom conduit_processors import json as json_processors\n"
    prices(inside, functions=functions, processor='json_processors.Decode(field=".Payload.After.price")')
    done = inside("run", "orders.py")

    assert "2 dead letters of 5 records read: " in done.stderr
    assert ", see " not in done.stderr


def test_a_record_of_a_rotated_file_is_found_in_the_file_that_it_moved_to(inside: "CommandInside") -> None:
    prices(inside)
    inside("run", "orders.py")
    (inside.folder / "orders.jsonl").rename(inside.folder / "orders.jsonl.1")
    (inside.folder / "orders.jsonl").write_text('{"price": "{}"}\n' * 9)
    letters = json.loads(inside("dlq", "list", *STATE, "--json").stdout)["letters"]
    moved = inside("dlq", "show", letters[0]["id"], *STATE)
    (inside.folder / "orders.jsonl.1").unlink()
    gone = inside("dlq", "show", letters[0]["id"], *STATE)

    assert moved.stdout.splitlines()[1] == "from orders.jsonl.1 line 4"
    assert gone.stdout.splitlines()[1] == ""


def test_rubbish_is_refused_before_it_becomes_the_position_of_a_source(inside: "CommandInside") -> None:
    prices(inside)
    inside("run", "orders.py")
    before = inside("positions", "show", "prices", *STATE).stdout
    refused = inside("positions", "set", "prices", "orders", "rubbish", "--text", *STATE)
    again = before.split()[-1]

    assert refused.returncode == 1
    assert "orders cannot go on after this position: b'rubbish' is not a position of the file source" in refused.stderr
    assert "[position.invalid]" in refused.stderr
    assert inside("positions", "show", "prices", *STATE).stdout == before
    assert inside("positions", "set", "prices", "orders", again, "--text", *STATE).returncode == 0


def test_misspelt_keywords_get_a_suggestion_and_hide_no_other_problem(inside: "CommandInside") -> None:
    inside.write(
        HEAD
        + """from conduit_py import processor
@processor(worker=3)
def change(record): return record
pipeline = Pipeline(
    "p",
    source=[Source("in", file.Source(pth="x"), bach_size=3)],
    destinations=[Destination("out")],
    processors=[change],
    dead_letters=DeadLetters.keep(windowsize=3, colour=1),
    delivry="exactly_once",
)
"""
    )
    done = inside("check", "orders.py")

    assert done.returncode == 2
    assert sorted(line.partition(": ")[2] for line in done.stderr.splitlines()[:-1]) == [
        "dead_letters.colour: there is no such option (options are retention, window_size, window_nack_threshold)",
        "dead_letters.windowsize: there is no such option (did you mean 'window_size'?)",
        "delivry: there is no such option (did you mean 'delivery'?)",
        "destinations.out.connector: must be a destination connector, not None (connectors derive from "
        "conduit_py.sdk.DestinationConnector)",
        "processors.change.worker: there is no such option (did you mean 'workers'?)",
        "source: there is no such option (did you mean 'sources'?)",
        "sources.in.bach_size: there is no such option (did you mean 'batch_size'?)",
        "sources.in.path: this option is required (add path=…: the file to read, or several, as in/*.csv)",
        "sources.in.pth: there is no such option (did you mean 'path'?)",
    ]


def test_a_misspelt_keyword_of_a_value_gets_a_suggestion(inside: "CommandInside") -> None:
    inside.write(HEAD + "Recovery(retry=3, delay_seconds=-1)\n")
    done = inside("check", "orders.py")

    assert done.stderr.splitlines()[:-1] == [
        "orders.py:4: Recovery.delay_seconds: Input should be greater than 0, not -1",
        "orders.py:4: Recovery.retry: there is no such option (did you mean 'retries'?)",
    ]


def test_records_that_no_destination_wants_are_in_the_summary(inside: "CommandInside") -> None:
    prices(inside, processor="", functions="", destination=f"{WRITE_OUT}, when=lambda record: record.payload['price']")
    done = inside("run", "orders.py")
    as_json = json.loads(inside("run", "orders.py", "--fresh", "--json").stdout.splitlines()[-1])

    assert (
        "prices: completed: 5 read, 5 acked, 0 filtered, 1 wanted by no destination, 0 dead letters in" in done.stdout
    )
    assert as_json["unwanted"] == 1


@pytest.mark.parametrize("path", ["./orders.jsonl", "symlink", "hardlink", "folder/../orders.jsonl"])
@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_pipeline_that_would_read_what_it_writes_is_refused(inside: "CommandInside", path: str, verb: str) -> None:
    prices(inside, destination=f"file.Destination(path={path!r}, format='json')")
    (inside.folder / "folder").mkdir()
    (inside.folder / "symlink").symlink_to("orders.jsonl")
    os.link(inside.folder / "orders.jsonl", inside.folder / "hardlink")
    content = (inside.folder / "orders.jsonl").read_bytes()
    done = inside(verb, "orders.py")

    assert done.returncode == 2
    wrong = (
        f"destinations.out: writes {path.removeprefix('./')}, which the source 'orders' reads (write to another file)"
    )
    assert wrong in done.stderr
    assert (inside.folder / "orders.jsonl").read_bytes() == content


def test_a_file_that_is_not_there_yet_and_dead_letters_are_compared_too(inside: "CommandInside") -> None:
    letters = f"DeadLetters(file.Destination(path={str(inside.folder / 'orders.jsonl')!r}, format='json'))"
    prices(inside, dead_letters=letters)
    (inside.folder / "orders.jsonl").unlink()

    assert "orders.jsonl, which the source 'orders' reads" in inside("check", "orders.py").stderr


TAILING = """\
version: "2.2"
pipelines:
  - id: lines
    status: running
    connectors:
      - {id: in, type: source, plugin: "builtin:file", settings: {path: in.txt}}
      - {id: out, type: destination, plugin: "builtin:file", settings: {path: out.txt}}
"""


def test_a_run_that_tails_says_that_it_waits_and_how_to_end_it(command: "Command") -> None:
    command.write(TAILING, "lines.yaml")
    command.write("one\n", "in.txt")
    process = command.start("run", "lines.yaml")
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)

    assert first == (
        "lines: in waits for more at the end of in.txt: Ctrl-C ends the run, "
        "`tail: false` in its settings reads to the end and no further\n"
    )


def test_a_yaml_source_that_does_not_tail_reads_to_the_end(command: "Command") -> None:
    command.write(TAILING.replace("path: in.txt", "path: in.txt, tail: false"), "lines.yaml")
    command.write("one\n", "in.txt")
    done = command("run", "lines.yaml")

    assert (done.returncode, "waits for more" in done.stdout + done.stderr) == (0, False)


def test_an_argument_that_a_command_does_not_take_is_named_with_the_way_to_its_help(command: "Command") -> None:
    said = command("dlq", "list", "prices")

    text = " ".join(said.stderr.replace("│", " ").split())
    assert said.returncode == 2
    assert "conduit-py dlq list does not take 'prices': see what it takes with conduit-py dlq list --help" in text


def test_advice_of_a_connector_that_cannot_open_is_kept(inside: "CommandInside") -> None:
    prices(inside, processor="", destination='journal.Destination(path="j")')
    file = inside.folder / "orders.py"
    file.write_text(file.read_text().replace("import file\n", "import file, journal\n"))
    inside("run", "orders.py")
    [segment] = (inside.folder / "j").glob("*.journal")
    os.truncate(segment, segment.stat().st_size - 1)

    failed = inside("run", "orders.py")

    assert failed.returncode == 1
    assert "was cut short or damaged at its end" in failed.stderr
    assert "accept the loss with `conduit-py journal repair j`" in failed.stderr
    # The call came through trio from a thread: a line of trio is no error of the user.
    assert "trio" not in failed.stderr
