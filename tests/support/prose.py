"""sentences: the prose of the repository, from docstrings and comments of Python and from Markdown.

A code span and a link count as one word. What is in parentheses is not counted. Tables, trees and listings are no
prose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

LISTING = re.compile(r"\S {2,}\S|[├└│]")
"""A line with columns: a tree of classes, the options of a command."""
NO_PROSE = ("|", "#", "<", ":::", "!!!", "---", "```")
ITEM = re.compile(r"(?:[-*+]|\d+\.)\s+")
LINK = re.compile(r"!?\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]\([^)\s]*\)")
END = re.compile(r"(?<=[.!?:;])[\"')\]*]*\s+")


def sentences(path: Path) -> Iterator[str]:
    for paragraph in _markdown(path) if path.suffix == ".md" else _python(path):
        plain = LINK.sub("link", re.sub(r"`[^`]*`", "code", paragraph))
        for sentence in END.split(_without_parentheses(plain)):
            yield " ".join(sentence.split())


def words(sentence: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'’./-]*", sentence))


def _without_parentheses(text: str) -> str:
    while text != (shorter := re.sub(r"\([^()]*\)", "", text)):
        text = shorter
    return text


def _python(path: Path) -> Iterator[str]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _paragraphs((ast.get_docstring(node) or "").splitlines())
    yield from _comments(source)


def _comments(source: str) -> Iterator[str]:
    block: list[str] = []
    row = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != row + 1:
                yield from _paragraphs(block)
                block = []
            block.append(token.string.lstrip("# "))
            row = token.start[0]
    yield from _paragraphs(block)


def _markdown(path: Path) -> Iterator[str]:
    fenced, prose = False, list[str]()
    for line in path.read_text().splitlines():
        fence = line.lstrip().startswith("```")
        prose.append("" if fenced or fence else line)
        fenced ^= fence
    yield from _paragraphs(prose)


def _paragraphs(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        text = line.strip()
        item = ITEM.match(text)
        if not text or text.startswith(NO_PROSE) or LISTING.search(text) or item:
            if paragraph:
                yield " ".join(paragraph)
            paragraph = []
        if text and not text.startswith(NO_PROSE) and not LISTING.search(text):
            paragraph.append(text[item.end() :] if item else text)
