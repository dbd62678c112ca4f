"""The problems and warnings of one file, collected while it is read."""

from typing import Final, NamedTuple

from conduit_py.config.loaded import LoadWarning
from conduit_py.config.secrets import redact
from conduit_py.errors import Problem

PROBLEMS_MAX: Final = 1000


class DocumentTooLarge(Exception):
    """A document has more entries or problems than any pipeline file should; reading stops here."""


class Location(NamedTuple):
    """A line and a column of the file, both counted from 1."""

    line: int
    column: int


class Diagnostics:
    """The problems and warnings of one file. Values of secrets are masked in all of them.

    Aliases can turn one mistake into thousands of problems: after PROBLEMS_MAX of them, DocumentTooLarge ends the
    document. `allow_more` starts the count again for the next one.
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
        line, column = location or (None, None)
        hint = suggestion and redact(suggestion)
        self.warnings.append(LoadWarning(path, redact(message), hint, self.file, line, column))

    def in_order(self) -> tuple[tuple[Problem, ...], tuple[LoadWarning, ...]]:
        """All problems and all warnings, each once, in the order of the file."""
        problems = sorted(dict.fromkeys(self.problems), key=lambda problem: problem.line or 0)
        warnings = sorted(dict.fromkeys(self.warnings), key=lambda warning: (warning.line or 0, warning.column or 0))
        return tuple(problems), tuple(warnings)
