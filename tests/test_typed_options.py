"""Options that editors complete and type checkers check, held to the models that check them at run time."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from conduit_py.sdk import Options, registry

PLUGINS = [
    (kind, name)
    for kind in get_args(registry.Kind)
    for name, entry in sorted(registry.installed(kind).items())
    if entry.value.startswith(("conduit_connectors", "conduit_processors"))
]

SNIPPET = """
from pathlib import Path
import pyarrow as pa  # type: ignore[import-untyped]
from conduit_connectors import file, generator, memory, sqlite_queue
from conduit_processors import field
from conduit_py import Batch, Pipeline, Processor, Record, State, processor

file.Source(path="in.jsonl", format="json")
file.Source(path=Path("in.jsonl"), tail=True)
generator.Source(fields={"n": "int"}, operations=["create"])
sqlite_queue.Source(path="queue.db", messages="uri", allowed_prefixes=["in"], lease_seconds=30)
field.Set(field=".Metadata.a", value="b")

file.Source(pth="in.jsonl")
file.Source(path="in.jsonl", format="yaml")
file.Destination(path="out.jsonl", columns=1)
sqlite_queue.Source(path="queue.db", lease_secs=30)
field.Set(field=1, value="b")

@processor
def same(record: Record) -> Record:
    return record

same(Record.of({})).payload
same("text")
same(Record.of({})).no_such

@processor(batch=True, workers=2)
def together(batch: Batch) -> list[Record]:
    return list(batch)

@processor(state=True)
async def counted(record: Record, state: State) -> Record | None:
    return record

@processor(arrow=pa.schema([]))
def columns(table: pa.Table) -> pa.Table:
    return table

Processor("own", lambda record: None, settings={"a": 1})
Pipeline("p", sources={"a": file.Source(path="a"), "b": memory.Source(records=[])}, destinations=[], processors=[same])

@processor
def text(line: str) -> str:
    return line

@processor(batch=True)
def alone(record: Record) -> list[Record]:
    return [record]

@processor
def number(record: Record) -> int:
    return 1

Processor("own", len)
"""


def _arguments(plugin: type[Any]) -> tuple[set[str], set[str]]:
    """What a caller may write, and what of that is required: by a TypedDict, or by a signature of its own."""
    parameters = [*inspect.signature(plugin).parameters.values()]
    if parameters[0].kind is inspect.Parameter.VAR_KEYWORD:
        arguments = get_args(parameters[0].annotation)[0]
        return set(get_type_hints(arguments)), set(arguments.__required_keys__)
    required = {each.name for each in parameters if each.default is inspect.Parameter.empty}
    return {each.name for each in parameters}, required


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_the_arguments_of_a_plugin_are_its_options(kind: registry.Kind, name: str) -> None:
    plugin: Any = registry.find(kind, name)
    if plugin.options_model is Options:
        return
    fields = plugin.options_model.model_fields
    required = {option for option, field in fields.items() if field.is_required()}

    assert _arguments(plugin) == (set(fields), required)


def test_mypy_refuses_unknown_options_and_wrong_types(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-incremental",
        "--strict",
        "--hide-error-context",
        "--follow-imports=silent",
        "snippet.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    errors = [line for line in ran.stdout.splitlines() if "error:" in line]

    lines = sorted({int(line.split(":")[1]) for line in errors})
    assert lines == [14, 15, 16, 17, 18, 25, 26, 43, 47, 51, 55], ran.stdout
