"""The page about the two engines tells the truth: every line of it names tests, and they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = [
    line
    for line in (ROOT / "docs/explanation/engines.md").read_text().splitlines()
    if line.startswith("| ") and not re.fullmatch(r"\| (#|on Spark|given) \|.*shown by \|", line)
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(?:(\w+)::)?(\w+)`")
CONTRACT = sorted((ROOT / "tests/spark").glob("test_spark_contract_*.py"))


def test_every_line_names_a_test() -> None:
    assert len(ROWS) > 30
    assert [row for row in ROWS if not TEST.search(row)] == []


def test_the_tests_that_are_named_exist() -> None:
    named = [match for row in ROWS for match in TEST.findall(row)]
    assert [match for match in named if not _exists(*match)] == []


def _exists(path: str, home: str, name: str) -> bool:
    text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    within = rf"^class {home}\b[\s\S]*?^    " if home else "^"
    return bool(re.search(rf"{within}(async )?def {name}\(", text, re.MULTILINE))


def test_every_invariant_has_its_line() -> None:
    numbers = [row.split("|")[1] for row in ROWS[:20] if re.fullmatch(r"[ \d,]+", row.split("|")[1])]
    assert [int(number) for group in numbers for number in group.split(",")] == list(range(1, 13))


def test_a_difference_is_shown_by_a_test_that_runs_all_ways() -> None:
    """What holds "on Spark" only is named so in a test of the contract, and is on the page."""
    differing = {name for path in CONTRACT for name in re.findall(r"def (test_on_spark_\w+)\(", path.read_text())}
    assert differing
    assert differing <= {name for row in ROWS for _, _, name in TEST.findall(row)}
