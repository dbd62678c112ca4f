"""The JSON schema of YAML files: it takes what the loader takes, and finds what an editor can find."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from conduit_py.config.yaml_file import load_yaml
from conduit_py.config.yaml_schema import yaml_schema

EXAMPLES = sorted(Path(__file__).with_name("conduit_examples").iterdir())
SMALL = """
version: 2.2
pipelines:
  - id: orders
    status: running
    connectors:
      - {id: in, type: source, plugin: "builtin:generator", settings: {recordCount: 3}, rate: {records-per-second: 5}}
      - {id: out, type: destination, plugin: log, batch-seconds: 2}
    processors:
      - {id: one, plugin: field.set, condition: "true", workers: 2, settings: {field: .Payload.After.x, value: y}}
    dead-letter-queue: {plugin: journal, window-size: 5, window-nack-threshold: 2}
    delivery: at_least_once
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = yaml_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def errors(validator: Draft202012Validator, text: str) -> list[str]:
    documents = list(yaml.safe_load_all(text))
    return [error.message for document in documents for error in validator.iter_errors(document)]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_of_conduit_fits(validator: Draft202012Validator, file: Path) -> None:
    assert errors(validator, file.read_text()) == []


def test_what_the_loader_takes_fits(validator: Draft202012Validator, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)

    assert load_yaml(tmp_path / "small.yaml").problems == ()
    assert errors(validator, SMALL) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("id: orders", "ID: orders", "'ID' was unexpected"),
        ("status: running", "status: runs", "'runs' is not one of"),
        ("type: source", "type: sauce", "'sauce' is not one of"),
        ("batch-seconds: 2", "batch-secs: 2", "'batch-secs' was unexpected"),
        ("delivery: at_least_once", "delivery: at_best", "'at_best' is not one of"),
        ("window-size: 5", "windowsize: 5", "'windowsize' was unexpected"),
        ("version: 2.2", "version: 9", "9 is not one of"),
    ],
)
def test_a_problem_in_a_key_or_a_word_is_found(
    validator: Draft202012Validator, right: str, wrong: str, message: str
) -> None:
    assert right in SMALL
    assert any(message in error for error in errors(validator, SMALL.replace(right, wrong, 1)))


def test_every_key_is_explained_and_settings_have_the_options_of_their_plugin(
    validator: Draft202012Validator,
) -> None:
    schema: Any = validator.schema
    nodes = [schema["$defs"][name] for name in ("pipeline", "connector", "processor", "rate")]
    unexplained = [key for node in nodes for key, about in node["properties"].items() if "description" not in about]

    assert unexplained == []
    assert schema["$defs"]["source.file"]["properties"]["path"]["description"]
    assert len([name for name in schema["$defs"] if name.startswith("destination.")]) > 20
