"""The error tree: drawn completely in errors.py, every code unique and on the reference page.

`PYTHONPATH=tests/support python -m tests.test_error_tree` writes the page again.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from error_remedies import REMEDIES, REQUEST_CODES

from conduit_py import errors
from conduit_py.wire_error import INTERNAL

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

The suggestion of an error is more exact than this page: it names the option, file or command. An error that is not one
of ours has the code `internal`.

This page is generated from the classes: `PYTHONPATH=tests/support python -m tests.test_error_tree`.

## HTTP requests

Codes of a request itself, which no class has.
"""
COLUMNS = "meaning | most often because | what to do |"
SERVER = ROOT / "conduit_py" / "server"
CODE = re.compile(r"[a-z]+\.[a-z_]+")


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
            f"| `{each.code}` {each.name} | {drawn[each.name][1]} | {remedy_cells(each.code)}"
            for each in classes.values()
            if each.code and each.base and nearest_family(each, classes) == family
        ]
        sections.append(f"## {family}\n\n{what_happens}\n\n{table('code and class', rows)}")
    requests = [f"| `{code}` | {meaning} | {remedy_cells(code)}" for code, meaning in REQUEST_CODES.items()]
    return "\n\n".join([HEAD + "\n" + table("code", requests), *sections]) + "\n"


def table(first: str, rows: list[str]) -> str:
    return f"| {first} | {COLUMNS}\n|---|---|---|---|\n" + "\n".join(sorted(rows))


def remedy_cells(code: str) -> str:
    cause, remedy = REMEDIES[code]
    return f"{cause} | {remedy} |"


def request_codes() -> set[str]:
    """The codes that the server itself answers with: arguments of errors, values of `CODES` and their defaults."""
    found = {INTERNAL}
    for path in sorted(SERVER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("WireError", "_later"):
                found |= code_texts(node.args[0])
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("code", "CODES"):
                found |= code_texts(node.value)
    return found - class_codes()


def code_texts(node: ast.AST) -> set[str]:
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {value for value in constants if isinstance(value, str) and CODE.fullmatch(value)}


def class_codes() -> set[str]:
    """The code of every class below ConduitError, which itself is never raised."""
    return {each.code for each in error_classes().values() if each.code and each.base}


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


def test_the_codes_of_requests_are_exactly_those_that_the_server_answers_with() -> None:
    assert set(REQUEST_CODES) == request_codes()


def test_every_code_has_a_cause_and_a_remedy_and_nothing_else_has() -> None:
    assert set(REMEDIES) == class_codes() | request_codes()


def test_causes_and_remedies_are_whole_sentences_that_fit_into_a_table() -> None:
    texts = [text for pair in REMEDIES.values() for text in pair]

    assert [text for text in texts if "|" in text or "\n" in text or not text.endswith(".")] == []


def test_the_reference_page_is_that_of_the_classes() -> None:
    assert PAGE.read_text() == reference_page(), "run: PYTHONPATH=tests/support python -m tests.test_error_tree"


if __name__ == "__main__":
    PAGE.write_text(reference_page())
