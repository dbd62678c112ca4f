"""The documents of a YAML file, as nodes with line numbers, and the problems and warnings found in them.

An invalid document does not affect the others.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import yaml

from conduit_py.config.loaded import LoadWarning
from conduit_py.errors import Problem
from conduit_py.redaction import redact

PROBLEMS_MAX: Final = 1000
"""In one document."""
FILE_PROBLEMS_MAX: Final = 5000
"""In one file; no further document of it is read after that."""
WARNINGS_MAX: Final = 1000
DOCUMENTS_MAX: Final = 1000


class DocumentTooLarge(Exception):
    """A document has more entries or problems than any pipeline file should; reading stops here."""


class Location(NamedTuple):
    """A line and a column of the file, both counted from 1."""

    line: int
    column: int


class Diagnostics:
    """The problems and warnings of one file. Values of secrets are masked in all of them.

    Aliases can turn one mistake into thousands of problems: after PROBLEMS_MAX of them, DocumentTooLarge ends the
    document. `allow_more` starts the count again for the next one. Of the warnings, the first WARNINGS_MAX are kept.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.warnings: list[LoadWarning] = []
        self.allow_more()

    def allow_more(self) -> None:
        """Start the count again, for another document."""
        self._problems_max = len(self.problems) + PROBLEMS_MAX

    def problem(self, path: str, location: Location | None, message: str, suggestion: str | None = None) -> None:
        if len(self.problems) >= self._problems_max:
            raise DocumentTooLarge(f"it has more than {PROBLEMS_MAX} problems")
        line = location.line if location else None
        self.problems.append(Problem(path, redact(message), suggestion and redact(suggestion), self.file, line))

    def warn(self, path: str, location: Location | None, message: str, suggestion: str | None = None) -> None:
        if len(self.warnings) > WARNINGS_MAX:
            return
        line, column = location or (None, None)
        if len(self.warnings) == WARNINGS_MAX:
            path, message, suggestion = "", f"there are more than {WARNINGS_MAX} warnings", "correct these first"
        hint = suggestion and redact(suggestion)
        self.warnings.append(LoadWarning(path, redact(message), hint, self.file, line, column))

    def in_order(self) -> tuple[tuple[Problem, ...], tuple[LoadWarning, ...]]:
        """All problems and all warnings, each once, in the order of the file."""
        problems = sorted(dict.fromkeys(self.problems), key=lambda problem: problem.line or 0)
        warnings = sorted(dict.fromkeys(self.warnings), key=lambda warning: (warning.line or 0, warning.column or 0))
        return tuple(problems), tuple(warnings)


class Document(NamedTuple):
    """The root node of a document and how many lines of the file come before the text it was read from."""

    root: yaml.Node
    lines_before: int

    def location(self, node: yaml.Node) -> Location:
        mark = node.start_mark
        return Location(self.lines_before + mark.line + 1, mark.column + 1)


def read_documents(text: str, diagnostics: Diagnostics) -> Iterator[Document]:
    """The documents of a file that are valid YAML and not empty; the others are reported to `diagnostics`.

    Nothing is constructed from the nodes, so a tag cannot create an object.
    """
    for number, (chunk, lines_before) in enumerate(_chunks(text)):
        # A document costs a few bytes of the file, and each can have problems: the file has a limit of its own.
        if number >= DOCUMENTS_MAX or len(diagnostics.problems) >= FILE_PROBLEMS_MAX:
            diagnostics.allow_more()
            what = f"{DOCUMENTS_MAX} documents" if number >= DOCUMENTS_MAX else f"{FILE_PROBLEMS_MAX} problems"
            message = f"the file was not read to its end: it has more than {what}"
            diagnostics.problem("", Location(lines_before + 1, 1), message, "use several files")
            return
        # Each document has its own limit, or one with many problems would hide those of the next.
        diagnostics.allow_more()
        try:
            # Composed and never constructed: a tag in a pipeline file must not be able to create an object.
            root = yaml.compose(chunk, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            _report(error, chunk, lines_before, diagnostics)
        except RecursionError:
            diagnostics.problem("", Location(lines_before + 1, 1), "is nested too deeply to be a pipeline")
        else:
            if root is not None and root.tag != _NULL:
                yield Document(root, lines_before)


_NULL: Final = "tag:yaml.org,2002:null"
_BREAK: Final = "\r\n|[\n\r\x85\u2028\u2029]"
_LINE_BREAK = re.compile(_BREAK)
# At the start of a line these separate documents, even inside a quoted text.
_MARKER = re.compile(r"(?:(?<=[\n\r\x85\u2028\u2029])|\A)(?:---|\.\.\.)(?=[ \t\n\r\x85\u2028\u2029]|\Z)")
_PREAMBLE = re.compile(rf"(?:[ \t]*(?:[#%][^\n\r\x85\u2028\u2029]*)?(?:{_BREAK}|\Z))*")


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """The text of each document with the number of lines before it."""
    start, lines = 0, 0
    for marker in _MARKER.finditer(text):
        if marker[0] == "---":
            # Comments and directives belong to the document after them.
            if _PREAMBLE.fullmatch(text, start, marker.start()):
                continue
            end = marker.start()
        else:
            following = _LINE_BREAK.search(text, marker.end())
            end = following.end() if following else len(text)
        yield text[start:end], lines
        lines += len(_LINE_BREAK.findall(text, start, end))
        start = end
    yield text[start:], lines


def _report(error: yaml.YAMLError, chunk: str, lines_before: int, diagnostics: Diagnostics) -> None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).splitlines()[0]
    if mark is not None:
        location = Location(lines_before + mark.line + 1, mark.column + 1)
        diagnostics.problem("", location, f"not valid YAML: {what}", _hint(what, _line(chunk, mark.line), mark.column))
        return
    # Characters that YAML forbids are found before the text is split into lines: the error has only an index.
    at = getattr(error, "position", None)
    lines = len(_LINE_BREAK.findall(chunk[: at if isinstance(at, int) else 0]))
    diagnostics.problem("", Location(lines_before + lines + 1, 1), f"not valid YAML: {what}")


def _line(chunk: str, number: int) -> str:
    lines = _LINE_BREAK.split(chunk)
    return lines[number] if number < len(lines) else ""


def _hint(what: str, line: str, column: int) -> str | None:
    if "{{" in line and not re.search(r"[\"'].*\{\{", line):
        return "put a template in single quotes: '{{ … }}'"
    if "${" in line:
        return "put a value with ${…} in quotes where there are braces around it"
    if "cannot start any token" in what:
        character = line[column : column + 1]
        if character == "\t":
            return "indent with spaces, not with tabs"
        return f"put a value that begins with {character} in quotes" if character else None
    if "mapping values are not allowed" in what:
        return "check the indentation; a value with a colon and a blank in it needs quotes"
    if "undefined alias" in what:
        return "put a value that begins with * in quotes"
    return None
