"""`check` and `graph`: every problem at once, and drawings."""

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside

MISTAKEN = """\
from conduit_py import DeadLetters, Destination, Pipeline, Source
from ends import Count, Lines

first = Pipeline(
    "first",
    sources=[
        Source("count", Count(too=5)),
        Source("count", Count()),
    ],
    destinations=[],
    delivery="twice",
)
second = Pipeline(
    "second",
    sources=[Source("count", "genrator")],
    destinations=[
        Destination("lines", Lines(), after="cuont"),
    ],
    dead_letters=DeadLetters(window_size=1, window_nack_threshold=5),
)
"""


def test_a_sound_file_is_ok(command: "Command") -> None:
    command.pipeline()
    done = command("check", "orders.py")

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "numbers: ok, 1 source, 0 processors, 1 destination\n"
        "  count → lines: at least once, in order: "
        "records in flight are sent again after a crash, with the same delivery key\n",
        "",
    )


def test_all_problems_of_all_pipelines_are_reported_at_once_with_file_and_line(command: "Command") -> None:
    command.write(MISTAKEN)
    done = command("check", "orders.py")
    lines = done.stderr.splitlines()

    assert done.returncode == 2
    assert done.stdout == ""
    assert lines[-1] == f"{len(lines) - 1} problems; nothing was started"
    for line in (
        "orders.py:7: first.sources.count.too: there is no such option (did you mean 'to'?)",
        "orders.py:8: first.count: the id 'count' is already taken by a source (give every node an id of its own)",
        "orders.py:17: second.destinations.lines.path: this option is required (add path=…)",
        "orders.py:17: second.lines.after: there is no node 'cuont' (did you mean 'count'?)",
    ):
        assert line in lines
    starts = [line.split(": ")[0] for line in lines[:-1]]
    assert starts == sorted(starts, key=lambda start: int(start.split(":")[1]))


def test_all_problems_are_there_for_programs_too(inside: "CommandInside") -> None:
    inside.write(MISTAKEN)
    code, (answer,) = inside.json("check", "orders.py")

    assert code == 2
    assert answer["valid"] is False
    assert {
        "file": "orders.py",
        "line": 7,
        "path": "first.sources.count.too",
        "message": "there is no such option",
        "suggestion": "did you mean 'to'?",
    } in answer["problems"]


def test_a_sound_file_is_described_to_programs(inside: "CommandInside") -> None:
    inside.pipeline()
    code, (answer,) = inside.json("check", "orders.py")

    assert code == 0
    assert answer["valid"] is True
    (pipeline,) = answer["pipelines"]
    assert [(node["id"], node["kind"], node["inputs"]) for node in pipeline["nodes"]] == [
        ("count", "source", []),
        ("lines", "destination", ["count"]),
    ]


def test_one_pipeline_of_a_file_can_be_checked_alone(inside: "CommandInside") -> None:
    inside.pipeline("Count(too=5)", id="wrong", before=inside.pipeline())

    assert inside("check", "orders.py", "--pipeline", "numbers").returncode == 0
    assert inside("check", "orders.py", "--pipeline", "wrong").returncode == 2
    done = inside("check", "orders.py", "--pipeline", "nombers")
    assert done.returncode == 2
    assert "orders.py: has no pipeline 'nombers' (did you mean 'numbers'?)" in done.stderr


def test_a_syntax_error_is_one_line_and_no_traceback(inside: "CommandInside") -> None:
    inside.write("x = 1\npipeline = Pipeline(\n")

    for name in ("check", "run", "graph"):
        done = inside(name, "orders.py")
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "orders.py:2: '(' was never closed: pipeline = Pipeline(",
            "1 problem; nothing was started",
        ]


def test_an_exception_while_loading_has_a_traceback_only_on_request(command: "Command") -> None:
    command.write("x = 1\n\nraise RuntimeError('no luck')\n")
    plain, debug = command("check", "orders.py"), command("check", "orders.py", "--debug")

    assert plain.stderr.splitlines()[0] == "orders.py:3: RuntimeError: no luck"
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
    assert (plain.returncode, debug.returncode) == (2, 2)


def test_an_error_of_our_own_is_one_line_and_says_how_to_see_more(inside: "CommandInside") -> None:
    inside.write(inside.pipeline() + "numbers.sources = None\n")
    plain, debug = inside("check", "orders.py"), inside("check", "orders.py", "--debug")

    assert plain.returncode == debug.returncode == 1
    assert plain.stderr.splitlines() == [
        "internal error: TypeError: Value after * must be an iterable, not NoneType",
        "  this is a bug in conduit-py; run again with --debug for the traceback",
    ]
    assert "Traceback" in debug.stderr


def test_a_terminal_that_cannot_show_boxes_gets_what_it_can(command: "Command") -> None:
    command.pipeline()
    done = command("graph", "orders.py", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "count" in done.stdout
    assert "\\u2502" in done.stdout


def test_a_missing_package_is_the_environments_fault(command: "Command") -> None:
    command.write("import no_such_package_anywhere\n")
    done = command("check", "orders.py")

    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == (
        "error: orders.py:1: imports 'no_such_package_anywhere', which is neither installed nor next to the file"
    )


def test_a_missing_file_is_invalid(inside: "CommandInside") -> None:
    done = inside("check", "nowhere.py")

    assert done.returncode == 2
    assert done.stderr.startswith("nowhere.py: there is no such file")


def test_a_graph_is_drawn_on_stdout_or_to_a_file(inside: "CommandInside") -> None:
    inside.pipeline()

    assert inside("graph", "orders.py").stdout.splitlines()[2].strip() == "│ count          │"
    assert inside("graph", "orders.py", "--format", "mermaid").stdout.startswith("flowchart LR\n")
    done = inside("graph", "orders.py", "--format", "svg", "--out", "orders.svg")
    assert (done.returncode, done.stdout) == (0, "")
    assert ElementTree.parse(inside.folder / "orders.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_graph_that_cannot_be_written_is_the_environments_fault(command: "Command") -> None:
    command.pipeline()
    done = command("graph", "orders.py", "--out", "nowhere/orders.txt")

    assert done.returncode == 3
    assert done.stderr == "error: nowhere/orders.txt cannot be written: No such file or directory\n"


def test_several_pipelines_are_drawn_one_after_another_but_an_svg_holds_one(inside: "CommandInside") -> None:
    inside.pipeline(id="second", before=inside.pipeline(id="first"))
    text, svg = inside("graph", "orders.py"), inside("graph", "orders.py", "--format", "svg")

    assert [line for line in text.stdout.splitlines() if line in ("first", "second")] == ["first", "second"]
    assert svg.returncode == 2
    assert "has several pipelines, but an SVG file holds one (add --pipeline: first, second)" in svg.stderr
    assert inside("graph", "orders.py", "--format", "svg", "--pipeline", "first").returncode == 0


IN_MEMORY = """\
from conduit_connectors import file
from conduit_processors import dedupe
from conduit_py import Pipeline, processor


@processor(state=True)
async def keeps_all(record, state):
    return record


@processor(state=True, state_keys=lambda record: [record.payload["id"]])
async def names_keys(record, state):
    return record


pipeline = Pipeline(
    "orders",
    sources={"in": file.Source(path="in.jsonl", format="json")},
    processors=[keeps_all, names_keys, dedupe.Dedupe(key="id")],
    destinations={"out": file.Destination(path="out.jsonl", format="json")},
    delivery="exactly_once",
)
"""


def test_a_state_that_must_fit_into_memory_is_a_warning(inside: "CommandInside") -> None:
    (inside.folder / "orders.py").write_text(IN_MEMORY)
    done = inside("check", "orders.py")

    assert done.returncode == 0
    [warning] = [line for line in done.stderr.splitlines() if "memory" in line]
    assert "keeps_all: is async, so its whole state stays in memory, whatever state_cache_bytes is" in warning
    assert "name the keys that it needs for a record in state_keys, or make it sync" in done.stderr
    assert "names_keys" not in done.stderr
