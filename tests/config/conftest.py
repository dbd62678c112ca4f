"""YAML files for the tests of configuration."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from conduit_py.config.loaded import Loaded
from conduit_py.config.yaml_file import load_yaml

ENDS = """\
    connectors:
      - {id: in, type: source, plugin: builtin:generator, settings: {recordCount: 3}}
      - {id: out, type: destination, plugin: builtin:log}
"""
"""The connectors of a pipeline whose connectors do not matter."""


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Loaded]:
    """Write a text to `pipelines.yaml` and load that; the text may be inset for the sake of the test."""

    def load(text: str, environment: Mapping[str, str] | None = None) -> Loaded:
        file = tmp_path / "pipelines.yaml"
        file.write_text(text)
        return load_yaml(file, environment=environment or {})

    return load


@pytest.fixture
def said(tmp_path: Path) -> Callable[[Loaded], list[str]]:
    """What is said about a file, without the folder that it is in: problems first."""

    def said(loaded: Loaded) -> list[str]:
        lines = [*map(str, loaded.problems), *(f"warning: {warning}" for warning in loaded.warnings)]
        return [line.replace(f"{tmp_path}/", "") for line in lines]

    return said


@pytest.fixture
def ends() -> str:
    return ENDS


@pytest.fixture(autouse=True)
def _same_imports_afterwards(tmp_path: Path) -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
