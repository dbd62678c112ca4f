"""The problems and warnings of one file, collected while it is read."""

from typing import Final, NamedTuple

from conduit_py.config.loaded import LoadWarning
from conduit_py.config.secrets import redact
from conduit_py.errors import Problem

PROBLEMS_MAX: Final = 1000


class DocumentTooLarge(Exception):
    """A document goes beyond what anybody would write; there is no use in reading on."""


class Spot(NamedTuple):
    """A line and a column of the file, both counted from 1."""

    line: int
    column: int


class Diagnostics:
    """Everything that is to be said about a file. No value of a secret gets into it.

    Aliases can make a thousand mistakes of one: then DocumentTooLarge ends the document, see `allow_more`.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.warnings: list[LoadWarning] = []
        self.allow_more()

    def allow_more(self) -> None:
        """Another document begins, with as many mistakes left to make."""
        self._problems_max = len(self.problems) + PROBLEMS_MAX

    def problem(self, path: str, spot: Spot | None, message: str, suggestion: str | None = None) -> None:
        if len(self.problems) >= self._problems_max:
            raise DocumentTooLarge("there are more mistakes than can be listed")
        line = spot.line if spot else None
        self.problems.append(Problem(path, redact(message), suggestion and redact(suggestion), self.file, line))

    def warn(self, path: str, spot: Spot | None, message: str, suggestion: str | None = None) -> None:
        line, column = spot or (None, None)
        hint = suggestion and redact(suggestion)
        self.warnings.append(LoadWarning(path, redact(message), hint, self.file, line, column))

    def in_order(self) -> tuple[tuple[Problem, ...], tuple[LoadWarning, ...]]:
        """All of them as they stand in the file, each once."""
        problems = sorted(dict.fromkeys(self.problems), key=lambda problem: problem.line or 0)
        warnings = sorted(dict.fromkeys(self.warnings), key=lambda warning: (warning.line or 0, warning.column or 0))
        return tuple(problems), tuple(warnings)
