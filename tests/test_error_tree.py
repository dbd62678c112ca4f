"""The error tree: drawn completely in errors.py, every code unique and on the reference page.

`python -m tests.test_error_tree` writes the page anew.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conduit_py import errors

ROOT = Path(__file__).parent.parent
PACKAGES = ("conduit_py", "connectors/conduit_connectors", "processors/conduit_processors")
PAGE = ROOT / "docs" / "reference" / "errors.md"
FAMILIES = {
    "ConduitError": "Definitions, commands and single records; no run is ended by them.",
    "EnvironmentUnfit": "The machine, a directory or a server cannot be used. Commands end with exit code 3.",
    "FleetError": "A server refuses a request in its present state. The HTTP status is 404, 409 or 503.",
    "RunError": "A run stops.",
    "TransientError": "A run stops, and the lifecycle starts it again with back-off.",
    "FatalError": "A run stops, and the pipeline stays degraded until somebody starts it.",
}
HEAD = """# Error codes

Every error has a code that never changes; messages may. The API answers with it (`{"error": {"code": …}}`), commands
print it in brackets and with `--json`, and the status of a degraded pipeline has it.

An error that is not one of ours has the code `internal`. Errors of an HTTP request itself have these codes:
`request.malformed`, `request.invalid`, `request.timed_out`, `request.too_large`, `path.unknown`, `method.not_allowed`,
`access.token_missing`, `access.refused`, `host.refused`, `origin.refused`, `hook.unknown`, `hook.not_running`,
`hook.failed`.

This page is generated from the classes: `python -m tests.test_error_tree`.
"""


class ErrorClass(NamedTuple):
    """A class as it stands in the source: its base among our errors, and its own code."""

    name: str
    base: str
    code: str | None


@cache
def class_definitions() -> list[ast.ClassDef]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def error_classes() -> dict[str, ErrorClass]:
    """Every subclass of ConduitError in the packages, found in the source so that nothing has to be installed."""
    found = {"ConduitError": ErrorClass("ConduitError", "", errors.ConduitError.code)}
    definitions = class_definitions()
    grown = True
    while grown:
        grown = False
        for node in definitions:
            bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
            base = next((base for base in bases if base in found), None)
            if base is not None and node.name not in found:
                found[node.name] = ErrorClass(node.name, base, own_code(node))
                grown = True
    return found


def own_code(node: ast.ClassDef) -> str | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
            return str(ast.literal_eval(line.value))
    return None


def drawing() -> dict[str, tuple[str, str]]:
    """By class: the class that is drawn above it, and what the drawing says of it."""
    above: list[str] = []
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        text = line.lstrip("│├└─ ")
        depth = (len(line) - len(text)) // 4
        if depth and text:
            name, _, meaning = text.partition(" ")
            drawn[name] = above[depth - 1], meaning.strip()
            above[depth:] = [name]
        elif line == "ConduitError":
            above = [line]
    return drawn


def reference_page() -> str:
    classes, drawn = error_classes(), drawing()
    sections = []
    for family, what_happens in FAMILIES.items():
        rows = [
            f"| `{each.code}` | {each.name} | {drawn[each.name][1]} |"
            for each in classes.values()
            if each.code and each.base and nearest_family(each, classes) == family
        ]
        sections.append(
            f"## {family}\n\n{what_happens}\n\n| code | class | meaning |\n|---|---|---|\n" + "\n".join(sorted(rows))
        )
    return HEAD + "\n" + "\n\n".join(sections) + "\n"


def nearest_family(each: ErrorClass, classes: dict[str, ErrorClass]) -> str:
    name = each.name
    while name not in FAMILIES:
        name = classes[name].base
    return name


def test_every_class_is_drawn_below_the_class_it_derives_from() -> None:
    bases = {each.name: each.base for each in error_classes().values() if each.base}

    assert {name: base for name, (base, _) in drawing().items()} == bases


def test_no_two_classes_share_a_code_and_only_a_derived_class_may_leave_it_out() -> None:
    classes = [each for each in error_classes().values() if each.base]
    codes = [each.code for each in classes if each.code]

    assert sorted(codes) == sorted(set(codes))
    # A journal's writer that was fenced off is fenced off like any other: who handles `run.fenced` handles it too.
    # A statement that a database refuses is fatal like any other: only our own connectors tell it apart.
    assert {each.name for each in classes if each.code is None} == {"RegisterMismatch", "StatementRefused"}


def test_the_drawing_says_what_every_class_means() -> None:
    assert [name for name, (_, meaning) in drawing().items() if not meaning] == []


def test_the_reference_page_is_that_of_the_classes() -> None:
    assert PAGE.read_text() == reference_page(), "run: python -m tests.test_error_tree"


if __name__ == "__main__":
    PAGE.write_text(reference_page())
