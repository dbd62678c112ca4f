"""The table of invariants is true: each file it names cites the invariant, and each citation stands in the table."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "explanation" / "invariants.md"
PACKAGES = ("conduit_py", "connectors/conduit_connectors", "processors/conduit_processors")
ROW = re.compile(r"^\| (\d+) \| .* \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
CITATION = re.compile(r"# Invariants? ([\d, and]+):")

Cited = dict[int, set[str]]


def rows() -> list[tuple[int, str, str]]:
    return [(int(number), files, shown) for number, files, shown in ROW.findall(TABLE.read_text())]


def named_in_the_table() -> Cited:
    return {number: set(map(_full_path, re.findall(r"`([^`]+)`", files))) for number, files, _ in rows()}


def _full_path(file: str) -> str:
    """A path in the table is below conduit_py, unless it begins with another package."""
    return f"connectors/{file}" if file.startswith("conduit_connectors/") else f"conduit_py/{file}"


def cited_in_the_code() -> Cited:
    cited: Cited = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for numbers in CITATION.findall(path.read_text()):
                for number in re.findall(r"\d+", numbers):
                    cited.setdefault(int(number), set()).add(str(path.relative_to(ROOT)))
    return cited


def test_every_invariant_is_in_the_table_once() -> None:
    assert [number for number, _, _ in rows()] == list(range(1, 13))


def test_the_table_names_the_files_whose_code_cites_the_invariant_and_no_others() -> None:
    assert named_in_the_table() == cited_in_the_code()


def test_every_invariant_is_shown_by_a_test_that_is_named_for_it() -> None:
    tests = " ".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [
        (number, name)
        for number, _, shown in rows()
        for name in re.findall(r"`(test_\w+?)_?…`", shown)
        if not re.search(rf"def {name}", tests)
    ]

    assert missing == []
