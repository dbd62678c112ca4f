"""What counts as a change of a definition: files read twice, edited in between, compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_py import Destination, Pipeline, Processor, Source
from conduit_py.config.python_file import load_pipelines
from conduit_py.config.yaml_file import load_yaml
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import DefinitionDiff, diff_definitions
from conduit_py.sdk.destination import WriteGuarantee
from conduit_py.sdk.processor import FunctionProcessor
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

FILE = '''
import functools
import re
from dataclasses import dataclass
from enum import Enum

import msgspec
from conduit_connectors import file, generator
from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Retry, Source, processor, sdk

LIMIT = 10
PATTERN = re.compile("a+")
TABLE = {"one": [1, 2], "two": {3}}


class WriteGuarantee(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Rule:
    name: str
    level: WriteGuarantee


RULES = (Rule("first", WriteGuarantee.LOW), Rule("second", WriteGuarantee.HIGH))


def above(limit):
    def check(record: Record) -> bool:
        return record.payload["n"] > limit
    return check


def helped(value: int) -> int:
    return value + deeper(value)


def deeper(value: int) -> int:
    return 0 if value < 2 else helped(value - 2)


@functools.lru_cache
def looked_up(name: str) -> list[int]:
    return TABLE[name]


@processor
def with_globals(record: Record) -> Record | None:
    """Keeps some."""
    names = [rule.name for rule in RULES]
    if PATTERN.match(str(record.payload["n"])) or record.payload["n"] > LIMIT:
        return None
    record.payload["more"] = [helped(1), looked_up("one"), names, [x for x in range(LIMIT)]]
    return record


class Order(msgspec.Struct):
    n: int
    note: str = "none"


@processor
def typed(order: Order) -> Order:
    return order


@processor
def of_dicts(order: dict[str, int]) -> dict[str, int]:
    return order


class Options(sdk.Options):
    limit: int = 3
    words: list[str] = []


class Counting(sdk.Processor[Options]):
    blocking = False
    STEP = 1

    @property
    def step(self) -> int:
        return self.STEP

    def open(self) -> None:
        self.seen = 0

    def process(self, record: Record) -> Record:
        self.seen += self.step
        return record


class Own(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        return None


pipeline = Pipeline(
    "p",
    description="made up",
    sources=[Source("made", generator.Source(rate=1), processors=[with_globals])],
    processors=[
        Processor("count", Counting(limit=5), workers=2, retry=Retry(attempts=2)),
        Processor("lambda", lambda record: record, when=above(4)),
        Processor("partly", functools.partial(lambda by, record: record, 3)),
        Processor("typed", typed),
        Processor("dicts", of_dicts),
    ],
    destinations=[Destination("kept", file.Destination(path="kept")), Destination("own", Own())],
    dead_letters=DeadLetters(lambda letter: None),
)
'''


YAML = """
version: "2.2"
pipelines:
  - id: p
    status: running
    connectors:
      - id: made
        type: source
        plugin: generator
        settings: {format.type: structured, format.options.id: int, recordCount: 3}
      - {id: kept, type: destination, plugin: log}
    processors:
      - id: set
        plugin: field.set
        settings: {field: .Payload.After.x, value: "1"}
        condition: '{{ eq .Operation.String "create" }}'
"""


def compared(tmp_path: Path, change: Callable[[str], str]) -> DefinitionDiff:
    file = tmp_path / "file.py"
    graphs = []
    for text in (FILE, change(FILE)):
        file.write_text(text)
        graphs.append(compile_pipeline(load_pipelines(file)[0]))
    return diff_definitions(*graphs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("import functools", "# a comment\n\n\nimport functools"),
        ("LIMIT = 10", "LIMIT = 5 + 5"),
        ("class Own", "UNUSED = 3\n\n\nclass Own"),
    ],
)
def test_what_changes_nothing(tmp_path: Path, old: str, new: str) -> None:
    assert not compared(tmp_path, lambda text: text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "nodes"),
    [
        ("LIMIT = 10", "LIMIT = 11", {"made:with_globals"}),
        ('compile("a+")', 'compile("b+")', {"made:with_globals"}),
        ("[1, 2]", "[1, 3]", {"made:with_globals"}),
        ("{3}", "{4}", {"made:with_globals"}),
        ("HIGH = 2", "HIGH = 3", {"made:with_globals"}),
        ('Rule("first"', 'Rule("1st"', {"made:with_globals"}),
        ("value < 2", "value < 3", {"made:with_globals"}),
        ("return None\n", "return []\n", {"made:with_globals"}),
        ("x for x in", "-x for x in", {"made:with_globals"}),
        ("limit=5", "limit=6", {"count"}),
        ("workers=2", "workers=3", {"count"}),
        ("attempts=2", "attempts=3", {"count"}),
        ("STEP = 1", "STEP = 2", {"count"}),
        ("return self.STEP", "return 2 * self.STEP", {"count"}),
        ("self.seen += self.step", "self.seen -= self.step", {"count"}),
        ("limit: int = 3", "limit: int = 4", {"count"}),
        ("blocking = False", "blocking = True", {"count"}),
        ("above(4)", "above(5)", {"lambda"}),
        ('["n"] > limit', '["n"] >= limit', {"lambda"}),
        ("lambda record: record, when", "lambda record: None, when", {"lambda"}),
        ("record: record, 3)", "record: record, 4)", {"partly"}),
        ("    n: int\n", "    n: float\n", {"typed"}),
        ('note: str = "none"', 'note: str = ""', {"typed"}),
        ("typed(order: Order)", "typed(order: dict)", {"typed"}),
        ("(msgspec.Struct):", "(msgspec.Struct, rename='upper'):", {"typed"}),
        ("order: dict[str, int])", "order: dict)", {"dicts"}),
    ],
)
def test_an_edit_of_a_processor_is_noticed_there_and_nowhere_else(
    tmp_path: Path, old: str, new: str, nodes: set[str]
) -> None:
    assert old in FILE

    assert compared(tmp_path, lambda text: text.replace(old, new, 1)) == DefinitionDiff(frozenset(nodes))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("rate=1", "rate=2", "the source made"),
        ("generator.Source(rate=1), ", "generator.Source(rate=1), batch_size=7, ", "the source made"),
        ('path="kept"', 'path="else"', "the destination kept"),
        ('path="kept")', 'path="kept"), retry=Retry()', "the destination kept"),
        ("def write(self, batch):\n", "def write(self, batch):\n        print(batch)\n", "the destination own"),
        ('Processor("lambda"', 'Processor("other"', "the graph"),
        ("processors=[with_globals]", "", "the graph"),
        ("lambda letter: None", '"drop"', "the settings"),
        ('description="made up"', 'description="made up", stop_seconds=3', "the settings"),
        ("lambda letter: None", "lambda letter: print(letter)", "the settings"),
    ],
)  # fmt: skip
def test_an_edit_that_needs_a_restart_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in FILE

    assert compared(tmp_path, lambda text: text.replace(old, new, 1)) == DefinitionDiff(restart_reason=reason)


def test_a_new_description_is_only_words(tmp_path: Path) -> None:
    assert compared(tmp_path, lambda text: text.replace("made up", "made again")) == DefinitionDiff(description=True)


def test_what_cannot_be_compared_counts_as_changed(tmp_path: Path) -> None:
    def change(text: str) -> str:
        return text.replace("LIMIT = 10", "import threading\n\nLOCK = threading.Lock()\nLIMIT = 10").replace(
            "    names = [", "    LOCK.locked()\n    names = ["
        )

    file = tmp_path / "file.py"
    file.write_text(change(FILE))
    first, second = (compile_pipeline(load_pipelines(file)[0]) for _ in range(2))

    assert diff_definitions(first, second) == DefinitionDiff(frozenset({"made:with_globals"}))


def test_yaml_is_compared_by_its_values(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"

    def graph(text: str) -> Graph:
        file.write_text(text)
        return compile_pipeline(load_yaml(file).pipelines[0].pipeline)

    assert not diff_definitions(graph(YAML), graph("# new\n" + YAML))
    assert diff_definitions(graph(YAML), graph(YAML.replace('value: "1"', 'value: "2"'))).processors == {"set"}
    assert diff_definitions(graph(YAML), graph(YAML.replace('"create"', '"update"'))).processors == {"set"}
    assert (
        diff_definitions(graph(YAML), graph(YAML.replace("recordCount: 3", "recordCount: 4"))).restart_reason
        == "the source made"
    )


def test_a_processor_that_begins_to_remember_needs_a_new_run() -> None:
    def graph(*, state: bool) -> Graph:
        function = (lambda record, state: record) if state else (lambda record: record)
        return compile_pipeline(
            Pipeline(
                "p",
                sources=[Source("made", ScriptedSource(records=1, log=log))],
                processors=[Processor("count", FunctionProcessor(function, state=state))],
                destinations=[Destination("kept", destination)],
                delivery="exactly_once",
            )
        )

    log = EventLog()
    destination = ScriptedDestination(log=log)
    destination.guarantee = WriteGuarantee.IDEMPOTENT  # type: ignore[misc]

    assert diff_definitions(graph(state=False), graph(state=True)).restart_reason == "whether count has a state"
