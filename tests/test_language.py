"""The language of code and docs: short sentences, and words that say what code does."""

import re
from functools import cache
from pathlib import Path

import pytest
from prose import sentences, words

ROOT = Path(__file__).parent.parent
WORDS_MAX = 25
NOT_PLAIN = re.compile(
    # Verbs of people for code, and words that say less than they seem to.
    r"\b(anew|whoever|be it|of which there (are|is) none|(is|are|was|were|be|been|not) told|hears?|knew)\b",
    re.IGNORECASE,
)
NAMES_OF_WORDS = {"docs/explanation/glossary.md", "tests/test_language.py"}
"""They list such words."""


FOLDERS = (
    "conduit_py", "connectors", "processors", "tests", "benchmarks", "examples", "dashboards", "deploy", "docs",
    ".github",
)  # fmt: skip


@cache
def prose() -> list[tuple[str, str]]:
    """Each sentence with its file, of the code and the pages. A change log says what was said when."""
    pages = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    found = [path for folder in FOLDERS for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    return [(str(path.relative_to(ROOT)), each) for path in [*pages, *found] for each in sentences(path)]


def test_sentences_are_short() -> None:
    long = [f"{file}: {words(each)} words: {each}" for file, each in prose() if words(each) > WORDS_MAX]

    assert long == []


def test_words_say_what_code_does() -> None:
    found = [
        f"{file}: {match[0]!r} in: {each}"
        for file, each in prose()
        if file not in NAMES_OF_WORDS and (match := NOT_PLAIN.search(each))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("One two three. Four five.", [3, 2]),
        ("One (two three\nfour) five `six seven` eight.", [4]),
        ("One two:\n\n- three four\n- five\n\n| six | seven |", [2, 2, 1]),
        ("One [two three](four/five) six.\n\n```\nseven eight\n```\n", [3]),
        ("NAME  a column\nnone here either", [3]),
    ],
)
def test_what_is_a_sentence(tmp_path: Path, text: str, counts: list[int]) -> None:
    file = tmp_path / "page.md"
    file.write_text(text)

    assert [words(each) for each in sentences(file)] == counts


def test_docstrings_and_comments_are_prose(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text('"""One two."""\n\n# Three four\n# five.\nx = "six"  # Seven.\n\n\ndef y():\n    """Eight."""\n')

    assert list(sentences(file)) == ["One two.", "Eight.", "Three four five.", "Seven."]
