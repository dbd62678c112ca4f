"""The types of payloads, followed from every source to every destination: what must be refused is said before a run."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from conduit_connectors import file, generator, memory, sqlite, stdio
from conduit_processors import base64, clone, field, filter, json, split
from conduit_processors.unwrap import KafkaConnect

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source, processor, run, sdk
from conduit_py.config.load import load_file
from conduit_py.errors import PipelineInvalid, Problem
from conduit_py.graph.compile import compile_pipeline
from conduit_py.sdk import Options, RecordRefused, Unchanged

if TYPE_CHECKING:
    from elsewhere import Invoice as OnlyForCheckers  # type: ignore[import-not-found]


class Order(msgspec.Struct):
    id: int


class Invoice(msgspec.Struct):
    id: int
    cents: int


@processor
def to_order(order: dict[str, Any]) -> Order:
    return Order(order["id"])


@processor
def to_invoice(order: Order) -> Invoice:
    return Invoice(order.id, 0)


@processor
def send(invoice: Invoice) -> Invoice:
    return invoice


@processor
def parse(line: bytes) -> dict[str, Any] | None:
    return msgspec.json.decode(line) if line else None


@processor
def anything(record: Record) -> Record:
    return record


LINES = file.Source(path="in.txt", format="lines")
JSON = file.Source(path="in.jsonl", format="json")
ANY = memory.Source(records=[])
AFTER = ".Payload.After"


def pipeline(source: Any, processors: Any = (), destination: Any = None, **settings: Any) -> Pipeline:
    sources = source if isinstance(source, list) else [Source("in", source)]
    end = destination or memory.Destination(into=[])
    return Pipeline(
        "p",
        sources=sources,
        processors=processors,
        destinations=end if isinstance(end, list) else [Destination("out", end)],
        **settings,
    )


def problems(written: Pipeline) -> list[Problem]:
    try:
        compile_pipeline(written)
    except PipelineInvalid as invalid:
        return list(invalid.problems)
    return []


def messages(written: Pipeline) -> list[tuple[str, str]]:
    return [(problem.path, problem.message) for problem in problems(written)]


def test_a_type_after_raw_bytes_is_a_problem_that_names_the_decoder() -> None:
    [problem] = problems(pipeline(LINES, [to_order]))

    assert (problem.path, problem.message) == (
        "processors.to_order",
        "takes structured data, but the source 'in' gives raw bytes",
    )
    assert problem.suggestion == (
        'read it with format="json", or put the processor "json.decode" with field=".Payload.After" before it'
    )
    assert problem.file == __file__
    assert problem.line == to_order.place.line  # type: ignore[union-attr]


def test_a_type_that_lacks_a_field_of_the_next_is_a_problem_that_names_both_and_the_field() -> None:
    [problem] = problems(pipeline(JSON, [to_order, send]))

    assert problem.path == "processors.send"
    assert problem.message == (
        "takes Invoice, but the processor 'to_order' gives Order: Invoice requires `cents: int`, which Order lacks"
    )
    assert problem.suggestion == "return Invoice in 'to_order', take Order in 'send', or convert between them"
    assert (problem.file, problem.line) == send.place


@processor(batch=True)
def batch_of_orders(orders: list[Order]) -> list[Order | None]:
    return [*orders]


@processor(batch=True)
def batch_of_pieces(orders: list[Order]) -> list[list[Order] | RecordRefused]:
    return [[order] for order in orders]


@processor
def pieces(order: Order) -> list[Order]:
    return [order]


@processor
async def later(order: Order) -> Order:
    return order


@processor
def either(order: Order) -> Order | list[Invoice] | None:
    return order


@processor
def no_hint(order: Order):  # type: ignore[no-untyped-def]
    return order


@processor
def nothing(order: Order) -> None:
    return None


@processor
def bare(order: Order) -> list:  # type: ignore[type-arg]
    return [order]


@processor
def for_checkers(order: Order) -> "OnlyForCheckers":
    return Invoice(order.id, 1)


def as_text(function: Callable[..., Any]) -> Callable[..., bytes]:
    @functools.wraps(function)
    def call(*args: Any) -> bytes:
        return msgspec.json.encode(function(*args))

    return call


@processor
@as_text
def decorated(order: Order) -> Order:
    return order


@pytest.mark.parametrize("given", [batch_of_orders, batch_of_pieces, pieces, later], ids=lambda each: each.name)
def test_the_hint_of_the_result_says_what_goes_on(given: Any) -> None:
    [(path, message)] = messages(pipeline(ANY, [given, send]))

    assert path == "processors.send"
    assert f"the processor '{given.name}' gives Order: Invoice requires `cents: int`" in message


@pytest.mark.parametrize("given", [either, no_hint, nothing, bare, decorated, for_checkers], ids=lambda each: each.name)
def test_a_result_that_is_not_certain_fits_everything(given: Any) -> None:
    assert problems(pipeline(ANY, [given, send])) == []


def test_a_hint_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    assert for_checkers.payload_type is not None


def gives_text(order: Order) -> str: ...  # type: ignore[empty-body]
def gives_payloads(record: Record) -> dict[str, Any] | None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (gives_text, "returns str, which no record can carry"),
        (gives_payloads, "takes a Record and returns dict, but what takes records returns records"),
    ],
)
def test_a_result_that_can_never_go_on_is_a_problem(function: Any, text: str) -> None:
    [(_, message)] = messages(pipeline(ANY, [function]))

    assert message == text


FITTING: dict[str, Pipeline] = {
    "decoded by a function": pipeline(LINES, [parse, to_order, to_invoice, send]),
    "decoded by json.decode": pipeline(LINES, [json.Decode(field=AFTER), to_order, to_invoice]),
    "a record may be anything": pipeline(LINES, [anything, send]),
    "encoded": pipeline(JSON, [json.Encode(field=AFTER)], file.Destination(path="out", format="lines")),
    "whole records": pipeline(LINES, [], file.Destination(path="out", format="opencdc")),
    "a table of JSON": pipeline(LINES, [], sqlite.Destination(path="db", table="t", layout="json")),
    "deletes": pipeline(
        generator.Source(format="raw", operations=["delete"], count=1), [], sqlite.Destination(path="db", table="t")
    ),
    "some are raw": pipeline(
        generator.Source(collections=["a", "b"], shapes={"a": {"format": "raw"}}, count=1), [to_order]
    ),
    "a condition may choose by type": pipeline(LINES, [Processor("maybe", to_order, when=lambda record: False)]),
    "records pass beside a condition": pipeline(
        JSON, [Processor("maybe", json.Encode(field=AFTER), when=lambda record: True), to_order]
    ),
    "a destination with a condition": pipeline(
        LINES, [], [Destination("out", stdio.Destination(format="json"), when=lambda record: False)]
    ),
    "processors behind the condition of a destination": pipeline(
        LINES, [], [Destination("out", memory.Destination(into=[]), processors=[to_order], when=lambda record: False)]
    ),
    "a filter may choose by type": pipeline(LINES, [filter.Keep(lambda record: False), to_order]),
    "a key says nothing about the payload": pipeline(LINES, [field.Set(field=".Key", value="x"), parse]),
    "each input fits": pipeline([Source("a", JSON), Source("b", ANY)], [to_order]),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_pipeline_that_may_work_has_no_problem(name: str) -> None:
    assert problems(FITTING[name]) == []


RAW = "gives raw bytes"
MISFITS: dict[str, tuple[Pipeline, str, str]] = {
    "clone": (pipeline(LINES, [clone.Clone(count=1), to_order]), "processors.to_order", f"the source 'in' {RAW}"),
    "a field of the key": (
        pipeline(LINES, [field.Set(field=".Key", value="x"), to_order]),
        "processors.to_order",
        f"the source 'in' {RAW}",
    ),
    "set": (
        pipeline(LINES, [field.Set(field=".Payload.After.x", value=1)]),
        "processors.Set",
        f"takes structured data or absent payloads, but the source 'in' {RAW}",
    ),
    "rename": (pipeline(LINES, [field.Rename(mapping={".Payload.After.x": "y"})]), "processors.Rename", RAW),
    "exclude": (pipeline(LINES, [field.Exclude(fields=[".Payload.After.x"])]), "processors.Exclude", RAW),
    "convert": (pipeline(LINES, [field.Convert(field=".Payload.After.x", type="int")]), "processors.Convert", RAW),
    "split": (pipeline(LINES, [split.Split(field=".Payload.After.x")]), "processors.Split", RAW),
    "base64": (pipeline(JSON, [base64.Encode(field=AFTER)]), "processors.Encode", "gives structured data"),
    "encoded": (
        pipeline(ANY, [json.Encode(field=AFTER), to_order]),
        "processors.to_order",
        "the processor 'Encode' gives raw bytes or absent payloads",
    ),
    "unwrapped": (pipeline(LINES, [KafkaConnect(), parse]), "processors.parse", "gives structured data"),
    "lines": (
        pipeline(JSON, [], file.Destination(path="out", format="lines")),
        "destinations.out",
        "takes raw bytes, but the source 'in' gives structured data",
    ),
    "typed lines": (
        pipeline(JSON, [to_order], stdio.Destination(format="lines")),
        "destinations.out",
        "takes raw bytes, but the processor 'to_order' gives Order",
    ),
    "table": (
        pipeline(LINES, [], sqlite.Destination(path="db", table="t")),
        "destinations.out",
        f"takes structured data or absent payloads, but the source 'in' {RAW}",
    ),
    "generated": (pipeline(generator.Source(format="raw", count=1), [to_order]), "processors.to_order", RAW),
    "processors of a source": (
        pipeline([Source("in", LINES, processors=[to_order])]),
        "processors.in:to_order",
        f"the source 'in' {RAW}",
    ),
    "on Spark": (pipeline(LINES, [to_order], engine="spark"), "processors.to_order", RAW),
    "condition before": (
        pipeline(LINES, [Processor("maybe", base64.Encode(field=AFTER), when=lambda record: True), to_order]),
        "processors.to_order",
        "the processor 'maybe' gives raw bytes",
    ),
    "one of two inputs": (
        pipeline([Source("a", JSON), Source("b", LINES)], [clone.Clone(count=1), to_order]),
        "processors.to_order",
        f"the source 'b' {RAW}",
    ),
    "one of two branches": (
        pipeline(
            JSON,
            [to_order],
            [
                Destination("a", stdio.Destination(format="json")),
                Destination("b", stdio.Destination(format="lines")),
            ],
        ),
        "destinations.b",
        "gives Order",
    ),
    "dead letters": (
        pipeline(LINES, [], dead_letters=DeadLetters(file.Destination(path="dead", format="lines"))),
        "dead_letters.handler",
        "takes raw bytes, but dead letters are structured data",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_pipeline_that_cannot_work_says_where(name: str) -> None:
    written, where, what = MISFITS[name]
    [problem] = problems(written)

    assert problem.path == where
    assert what in problem.message
    assert problem.suggestion
    assert problem.file == __file__


def test_many_nodes_that_give_the_same_are_one_problem() -> None:
    sources = [Source(f"s{number}", LINES) for number in range(100)]
    [(_, message)] = messages(pipeline(sources, [to_order]))

    assert message == "takes structured data, but the source 's0' (and 99 more) gives raw bytes"


def test_other_problems_are_reported_together_with_types() -> None:
    wrong: Any = {"path": "out", "fromat": "json"}
    found = messages(pipeline(LINES, [to_order, send], file.Destination(**wrong)))

    assert [path for path, _ in found] == ["destinations.out.fromat", "processors.to_order", "processors.send"]


class Numbers(sdk.SourceConnector[Options]):
    """A connector says what it gives by an attribute."""

    gives = Invoice

    async def read(self, n: int) -> list[Record]:
        raise sdk.EndOfSource


class Rows(sdk.DestinationConnector[Options]):
    takes = dict

    async def write(self, batch: sdk.Batch) -> None: ...


class Same(sdk.Processor[Options]):
    takes = dict
    gives = Unchanged

    def process(self, record: Record) -> Record:
        return record


def test_plugins_say_what_they_take_and_give_by_attributes() -> None:
    [(where, message)] = messages(pipeline(Numbers(), [Same(), to_invoice], Rows()))

    assert where == "processors.to_invoice"
    assert message == "takes Order, but the source 'in' gives Invoice: Invoice has `cents`, which Order lacks"
    assert [path for path, _ in messages(pipeline(LINES, [Same()]))] == ["processors.Same"]
    assert [path for path, _ in messages(pipeline(LINES, [], Rows()))] == ["destinations.out"]


def test_what_is_reported_would_refuse_every_record(tmp_path: Path) -> None:
    """The same pipeline, with hints that say nothing, refuses all: the report was no false alarm."""
    (tmp_path / "in").write_text("1\n2\n")
    letters: list[Any] = []
    written = pipeline(
        memory.Source(records=[b"1", b"2"]), [to_order], dead_letters=DeadLetters(letters.append, window_size=0)
    )
    run(written, state=None)

    assert len(letters) == 2


YAML = """\
version: 2.2
pipelines:
  - id: lines
    connectors:
      - id: in
        type: source
        plugin: builtin:file
        settings: {path: in.txt}
      - id: out
        type: destination
        plugin: builtin:file
        settings: {path: out.txt, format: json}
"""


def test_a_pipeline_in_yaml_is_checked_too(tmp_path: Path) -> None:
    at = tmp_path / "lines.yaml"
    at.write_text(YAML)
    [problem] = load_file(at).problems

    assert str(problem) == (
        f"{at}:9: pipelines.lines.destinations.out: takes structured data, but the source 'in' gives raw bytes "
        '(read it with format="json", or put the processor "json.decode" with field=".Payload.After" before it)'
    )
