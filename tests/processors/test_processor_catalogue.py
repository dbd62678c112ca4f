"""Every processor is installed under its name, describes its options, and has a running example in the README."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conduit_py.pipeline import Processor as PipelineProcessor
from conduit_py.sdk import Options, Processor
from conduit_py.sdk.registry import find, installed

NAMES = [
    "avro.decode",
    "avro.encode",
    "base64.decode",
    "base64.encode",
    "chunk",
    "clone",
    "dedupe",
    "embed",
    "error",
    "field.convert",
    "field.exclude",
    "field.rename",
    "field.set",
    "filter",
    "filter.drop",
    "filter.keep",
    "join.interval",
    "join.table",
    "json.decode",
    "json.encode",
    "jsonpath.extract",
    "jsonschema.decode",
    "jsonschema.encode",
    "lookup.file",
    "lookup.table",
    "mask.hash",
    "mask.redact",
    "model.call",
    "outbox.route",
    "protobuf.decode",
    "protobuf.encode",
    "schema.validate",
    "split",
    "unwrap.debezium",
    "unwrap.kafkaconnect",
    "unwrap.opencdc",
    "webhook.http",
    "window.session",
    "window.sliding",
    "window.tumbling",
]
HIDDEN = "**********"
HAVE_SECRETS = {"lookup.table": {"url"}, "mask.hash": {"secret"}}
IN_THREADS = {"lookup.file", "lookup.table"}
USERS = Path(__file__).parent / "users.csv"
REGISTRY = {"url": "http://127.0.0.1:8081"}
SETTINGS: dict[str, dict[str, Any]] = {
    "avro.decode": REGISTRY,
    "avro.encode": {**REGISTRY, "topic": "{{ .Key }}", "version": "3"},
    "base64.decode": {"field": ".Key"},
    "base64.encode": {"field": ".Key"},
    "chunk": {"field": "text", "size": "100", "overlap": "10"},
    "clone": {"count": "2"},
    "dedupe": {"key": ".Key.id", "ttl_seconds": "60"},
    "embed": {"field": "text", "into": "vector", "model": "small", "dimensions": "256"},
    "error": {"message": "no"},
    "field.convert": {"field": ".Key.id", "type": "int"},
    "field.exclude": {"fields": ".Key.id,.Metadata.x"},
    "field.rename": {"mapping": ".Key.id:ID,.Metadata.x:y"},
    "field.set": {"field": ".Key.id", "value": "{{ .Payload.After.id }}"},
    "filter.drop": {"condition": "{{ .Payload.After.test }}"},
    "filter.keep": {"condition": "{{ gt .Payload.After.amount 100 }}"},
    "join.interval": {"left": "a", "key": "id", "time": "at", "after_seconds": "60"},
    "join.table": {"table": "users", "key": "user", "into": "who"},
    "json.decode": {"field": ".Key"},
    "json.encode": {"field": ".Key"},
    "jsonpath.extract": {"path": "$.a[0]", "into": "first", "many": "true"},
    "jsonschema.decode": REGISTRY,
    "jsonschema.encode": REGISTRY,
    "lookup.file": {"path": str(USERS), "key": "user", "column": "id", "into": "who", "columns": "name,city"},
    "lookup.table": {"url": "sqlite:///u.db", "table": "users", "key": "user", "column": "id", "into": "who"},
    "mask.hash": {"fields": "email,name", "secret": "a secret of some length"},
    "mask.redact": {"fields": "email,name", "pattern": "@.*"},
    "model.call": {"url": "http://127.0.0.1/x", "into": "score", "outputs": "$.scores"},
    "outbox.route": {"topic": "events.{{ .Payload.After.kind }}", "headers": "id:kafka.header.id", "expand": "true"},
    "protobuf.decode": REGISTRY,
    "protobuf.encode": REGISTRY,
    "schema.validate": {"against": "inferred", "sample_size": "10"},
    "split": {"field": ".Key.list"},
    "webhook.http": {"url": "http://127.0.0.1/{{ .Key }}", "body": "{{ toJson . }}", "response_status": ".Metadata.s"},
    "window.session": {"time": "at", "gap_seconds": "60", "aggregate": "clicks:count,total:sum(.Payload.After.amount)"},
    "window.sliding": {"time": "at", "size_seconds": "60", "slide_seconds": "20", "align_to": "2026-01-01T00:00:00Z"},
    "window.tumbling": {"time": "at", "size_seconds": "60", "clock": "clock", "idle_seconds": "5"},
}
README = Path(__file__).parents[2] / "processors" / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


def test_all_processors_are_installed() -> None:
    ours = [name for name, entry in installed("processor").items() if entry.value.startswith("conduit_processors.")]

    assert sorted(ours) == NAMES


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_description_and_a_form_in_json_schema(name: str) -> None:
    model = find("processor", name).options_model

    assert issubclass(model, Options)
    assert all(option.description for option in model.model_fields.values())
    assert set(model.model_json_schema().get("properties", {})) == set(model.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_processor_is_made_by_name_from_text_and_runs_inline(name: str) -> None:
    declared = PipelineProcessor(name, name, settings=SETTINGS.get(name, {}))

    assert declared.problems == []
    assert isinstance(declared.processor, Processor)
    assert (declared.processor.blocking is False) != (name in IN_THREADS)
    fresh = declared.processor.fresh()
    assert isinstance(fresh, Processor)
    fresh.open()
    assert type(fresh) is type(declared.processor)


@pytest.mark.parametrize("name", NAMES)
def test_options_written_down_again_are_the_same(name: str) -> None:
    model = find("processor", name).options_model
    options = model(**SETTINGS.get(name, {}))

    assert model(**options.model_dump()) == options
    written = json.loads(options.model_dump_json())
    secrets = {option for option, value in written.items() if value == HIDDEN}
    assert secrets == HAVE_SECRETS.get(name, set())
    assert model(**(written | {each: getattr(options, each) for each in secrets})) == options


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_every_processor_with_its_options(name: str) -> None:
    row = next(line for line in README.read_text().splitlines() if line.startswith(f"| [`{name}`]"))
    plugin = find("processor", name)

    assert f"`{plugin.__module__.split('.')[1]}.{plugin.__name__}`" in row
    assert re.findall(r"`(\w+)`", row.split("|")[4]) == list(plugin.options_model.model_fields)


def test_the_readme_has_an_example_for_every_processor() -> None:
    for name in NAMES:
        plugin = find("processor", name)
        call = f"{plugin.__module__.split('.')[1]}.{plugin.__name__}("
        assert any(call in example for example in EXAMPLES), call


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_readme_run(example: str) -> None:
    exec(compile(example, str(README), "exec"), {"__name__": "readme"})  # noqa: S102 - our own text
