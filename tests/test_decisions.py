"""Decisions have one form, are numbered without gaps, and are referred to by the numbers they have."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
REFERENCE = re.compile(r"\[[Dd]ecision (\d+)\]\((?:\.\./decisions/)?(\d{4})-[\w-]+\.md\)")
SECTIONS = ["What", "Why", "Rejected"]


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_when_what_why_and_what_was_rejected(path: Path) -> None:
    text = path.read_text()
    title, blank, date, *_ = text.splitlines()

    assert re.fullmatch(rf"# {int(path.name[:4])}\. \S.*[^.]", title)
    assert blank == ""
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    for heading, following in pairwise(line for line in text.splitlines() if line):
        assert not (heading.startswith("## ") and following.startswith("## ")), f"nothing is below {heading}"


def test_decisions_are_dated_in_their_order() -> None:
    dates = [path.read_text().splitlines()[2] for path in DECISIONS]

    assert dates == sorted(dates)


def test_references_have_the_number_of_the_page_they_lead_to() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "connectors").rglob("*.md")]
    references = [(page.name, *match.groups()) for page in pages for match in REFERENCE.finditer(page.read_text())]

    assert references
    assert [each for each in references if int(each[1]) != int(each[2])] == []


def test_nothing_refers_to_a_decision_by_a_number_that_does_not_exist() -> None:
    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "conduit_py").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}: {number}"
        for path in texts
        for number in re.findall(r"\bdecisions? (\d+)", path.read_text(), re.IGNORECASE)
        if not 1 <= int(number) <= len(DECISIONS)
    }

    assert found == set()
