"""House rules, held by a test: sizes, names, docstrings, no mocks, nothing left behind."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("conduit_py", "connectors", "processors")
EVERYWHERE = (*PACKAGES, "tests", "benchmarks", "examples")

LINES_MAX = 350
FUNCTION_LINES_MAX = 60
GRAB_BAGS = {"utils", "util", "helpers", "common", "base", "types", "constants", "misc", "shared"}
# Spelled in halves, so that this file passes its own check.
LEFT_BEHIND = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")))
FAKERY = re.compile(
    "|".join(("unittest" + r"\.mock", "Magic" + "Mock", "monkeypatch" + r"\.setattr", "pytest" + "_mock"))
)


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_every_module_says_what_it_is() -> None:
    silent = [relative(path) for path in files(*EVERYWHERE) if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def test_every_public_class_and_function_of_the_packages_states_its_promise() -> None:
    silent = []
    for path in files(*PACKAGES):
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                silent.append(f"{relative(path)}: {node.name}")  # type: ignore[attr-defined]

    assert silent == []


def test_files_stay_one_noun_long() -> None:
    long = [
        f"{relative(path)}: {count} lines"
        for path in files(*PACKAGES)
        if (count := len(path.read_text().splitlines())) > LINES_MAX
    ]

    assert long == []


def test_functions_can_be_read_at_a_glance() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name}: {size} lines"
        for path in files(*PACKAGES)
        for node in functions(path)
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]

    assert long == []


def test_no_module_is_a_grab_bag() -> None:
    assert [relative(path) for path in files(*EVERYWHERE) if path.stem in GRAB_BAGS] == []


@pytest.mark.parametrize("pattern", [LEFT_BEHIND, FAKERY], ids=["left behind", "fakery"])
def test_nothing_is_left_behind_and_nothing_is_mocked(pattern: re.Pattern[str]) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in files(*EVERYWHERE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []


def test_import_packages_have_no_package_above_them() -> None:
    """A top-level package called `connectors` would collide with a folder of the user's own."""
    assert not (ROOT / "connectors" / "__init__.py").exists()
    assert not (ROOT / "processors" / "__init__.py").exists()
