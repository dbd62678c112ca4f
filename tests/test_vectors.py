"""The page about the vectors tells the truth: every vector is on it, with tests that exist and name it."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([A-Z]{2}-[A-Z]*\d+|UUID|Publisher) \| (.*) \| ?(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::([\w:]+)`")
REASONS = ("not applicable because ", "not built: ", "missing: ")

LAST = re.findall(
    r"(\S+?)(\d+)",
    "GZ-S13 GZ-R6 GZ-F2 GZ-H2 GZ-T14 QW-C8 QW-S4 QW-V2 QW-M5 QW-Q3 QW-R2 QW-P1 QW-O1 QW-A1 QW-D2 QW-K6 QW-PO1 "
    "QW-I2 QW-CD2 QW-F4 QW-N4",
)
"""The last vector of each family."""
VECTORS = [
    *("UUID", "Publisher"),
    *(f"{family}{number}" for family, last in LAST for number in range(1, int(last) + 1)),
    *(f"CU-{number:02}" for number in range(1, 30)),
    *(f"ME-{number:02}" for number in range(1, 19)),
]


class Row(NamedTuple):
    """What the page says of one vector."""

    vector: str
    tests: list[tuple[str, str]]
    remark: str


ROWS = [
    Row(vector, TEST.findall(shown), remark.strip())
    for vector, shown, remark in ROW.findall((ROOT / "docs/explanation/vectors.md").read_text())
]


@cache
def names_in(path: str) -> set[str]:
    """The tests of a file, as pytest calls them."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if _is_test(each)}
        elif _is_test(node):
            found.add(node.name)
    return found


def _is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def test_every_vector_is_on_the_page_once() -> None:
    assert sorted(row.vector for row in ROWS) == sorted(VECTORS)


def test_the_tests_that_are_named_exist() -> None:
    assert [
        f"{row.vector}: {path}::{name}"
        for row in ROWS
        for path, name in row.tests
        if not (ROOT / path).exists() or name not in names_in(path)
    ] == []


def test_a_vector_without_a_test_has_a_reason() -> None:
    assert [row.vector for row in ROWS if not row.tests and not row.remark.startswith(REASONS)] == []


def test_a_vector_is_named_by_a_test_that_shows_it() -> None:
    assert [row.vector for row in ROWS if row.tests and "-" in row.vector and not _is_named(row)] == []


def _is_named(row: Row) -> bool:
    """In the name of a test, also with others (`test_gz_t2_t3_…`), or among the cases in its file."""
    family, number = row.vector.lower().split("-")
    by_name = any({family, number} <= set(name.lower().split("_")) for _, name in row.tests)
    return by_name or any(f'"{row.vector}"' in (ROOT / path).read_text() for path, _ in row.tests)
