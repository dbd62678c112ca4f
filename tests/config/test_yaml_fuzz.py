"""Whatever is in a YAML file, loading it raises nothing: it gives pipelines, problems and warnings."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conduit_py.config.loaded import Loaded, LoadWarning
from conduit_py.config.yaml_file import load_yaml
from conduit_py.errors import Problem
from conduit_py.graph.compile import compile_pipeline

SOUND: dict[str, Any] = {
    "version": "2.2",
    "pipelines": [
        {
            "id": "orders",
            "status": "running",
            "name": "Orders",
            "description": "what ${HOME:-for}",
            "connectors": [
                {
                    "id": "in",
                    "type": "source",
                    "plugin": "builtin:generator",
                    "settings": {
                        "rate": "1",
                        "recordCount": "3",
                        "format.type": "structured",
                        "format.options.id": "int",
                        "burst.sleepTime": "1s",
                        "sdk.batch.size": "5",
                    },
                    "processors": [
                        {"id": "p", "plugin": "field.set", "settings": {"field": ".Key", "value": "{{ 1 }}"}}
                    ],
                },
                {
                    "id": "out",
                    "type": "destination",
                    "plugin": "file",
                    "settings": {
                        "path": "out",
                        "sdk.record.format": "template",
                        "sdk.record.format.options": "{{ .Key }}",
                    },
                },
            ],
            "processors": [{"id": "q", "plugin": "filter", "condition": "{{ eq .Metadata.a `b` }}", "workers": 2}],
            "dead-letter-queue": {"plugin": "log", "settings": {"level": "warn"}, "window-size": 2},
        }
    ],
}
KEYS = sorted(
    {"<<", "", "type", "window-nack-threshold", "collections.a.format.type", "format.options", "collections.x", "burst"}
    | {key for document in [SOUND] for key in document}
    | set(SOUND["pipelines"][0])
    | set(SOUND["pipelines"][0]["connectors"][0])
    | set(SOUND["pipelines"][0]["connectors"][0]["settings"])
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(
        [
            *("${A}", "${A:-b}", "$x", "env:A", "file:/no/such", "{{", "{{ true }}", "1s", "builtin:", "standalone:x"),
            *("log", "file", "generator", "source", "2.2", "1.0", "running", "a@b", "@", "field.set", "a,b:c"),
        ]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "fuzz.yaml")


def check(loaded: Loaded) -> None:
    """What was loaded can be run, and what was said can be printed."""
    for pipeline in loaded.pipelines:
        assert compile_pipeline(pipeline.pipeline).pipeline is pipeline.pipeline
    for problem in loaded.problems:
        assert isinstance(problem, Problem)
        assert str(problem)
    for warning in loaded.warnings:
        assert isinstance(warning, LoadWarning)
        assert str(warning)


@st.composite
def mutated(draw: st.DrawFn, value: Any = SOUND) -> Any:
    """The sound document with some part of it replaced, left out, or given another name."""
    if draw(st.integers(0, 12)) == 0:
        return draw(values)
    if isinstance(value, dict):
        mapping = {}
        for key, inner in value.items():
            fate = draw(st.integers(0, 25))
            if fate:
                mapping[draw(st.sampled_from(KEYS)) if fate == 1 else key] = draw(mutated(inner))
        return mapping
    if isinstance(value, list):
        items = [draw(mutated(inner)) for inner in value]
        return items * draw(st.sampled_from([1, 1, 1, 0, 2]))
    return value


@given(document=mutated())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_mutated_document_is_loaded_or_explained(file: Path, document: Any) -> None:
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8", errors="surrogatepass")

    check(load_yaml(file, environment={"A": "x"}))


@given(st.text(st.sampled_from("ab:- \n\t[]{}#&*!|>'\"%@`?,.~<=0\r\x85\u2028é") | st.characters(), max_size=200))
@example("? [a]\n: b")
@example("<<: 1")
@example("<<: [1]")
@example("=: 1")
@example("pipelines: &x [*x]")
@example("--- |\n---\n--- >\n...\n...\n")
@example("!<")
@example("%TAG ! !\n---\na: b")
@example("\ufeffversion: 2.2")
def test_any_text_is_loaded_or_explained(file: Path, text: str) -> None:
    file.write_bytes(text.encode(errors="surrogatepass"))

    check(load_yaml(file, environment={}))


@given(st.binary(max_size=200))
def test_any_bytes_are_loaded_or_explained(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    check(load_yaml(file, environment={}))


TEXT = yaml.safe_dump(SOUND)


@given(st.data())
@settings(deadline=None)
def test_a_garbled_file_is_loaded_or_explained(file: Path, data: st.DataObject) -> None:
    text = TEXT
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 5))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + length :]
    file.write_bytes(text.encode(errors="surrogatepass"))

    check(load_yaml(file, environment={}))


def test_the_document_that_is_mutated_is_sound(file: Path) -> None:
    file.write_text(TEXT)
    loaded = load_yaml(file, environment={})

    assert [pipeline.id for pipeline in loaded.pipelines] == ["orders"]
    assert (loaded.problems, loaded.warnings) == ((), ())
