"""Options: what a user may say to a plugin, checked when it is written down."""

import difflib
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from conduit_py.errors import Problem


class Options(BaseModel):
    """Base of every plugin's options: unknown names are mistakes, values never change."""

    # Invariant 12: an option that nobody knows is a problem, not ignored.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Place(NamedTuple):
    """Where something is written down: the file and line of the user's own call."""

    file: str
    line: int


def place_of_call() -> Place | None:
    """The nearest caller that is not a constructor nor ours: the line in the user's file that made the object."""
    frame = sys._getframe(1)
    while frame is not None:
        ours = frame.f_globals.get("__name__") in _DECLARING
        if not ours and frame.f_code.co_name not in _CONSTRUCTION:
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


_CONSTRUCTION = {"__init__", "__call__"}
_DECLARING = {
    "conduit_py.resolve",
    "conduit_py.pipeline",
    "conduit_py.sdk.options",
    "conduit_py.sdk.plugin",
    "conduit_py.sdk.processor",
}
"""The modules that make objects on behalf of the user: a plugin by its name, a processor of a bare function."""


def check_options(
    model: type[Options], values: Mapping[str, Any], place: Place | None
) -> tuple[Options | None, list[Problem]]:
    """The checked options, or every mistake in them, each with its path, place and a suggestion."""
    try:
        return model(**values), []
    except ValidationError as invalid:
        return None, [_problem(model, error, place) for error in invalid.errors(include_url=False)]


def at(problem: Problem, prefix: str) -> Problem:
    """The same problem, seen from further out: its path begins with `prefix`."""
    path = f"{prefix}.{problem.path}" if problem.path else prefix
    return Problem(path, problem.message, problem.suggestion, problem.file, problem.line)


def did_you_mean(word: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def _problem(model: type[BaseModel], error: ErrorDetails, place: Place | None) -> Problem:
    # pydantic marks a mistake in a key of a mapping with a part of its own, which says nothing to a user.
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    message, suggestion = error["msg"], error.get("ctx", {}).get("suggestion")
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        known = sorted(model.model_fields)
        message = "there is no such option"
        suggestion = did_you_mean(name, known) or (f"options are {', '.join(known)}" if known else "it takes none")
    elif error["type"] == "missing":
        message = "this option is required"
        description = model.model_fields[name].description if name in model.model_fields else None
        suggestion = f"add {name}=…" + (f": {description}" if description else "")
    elif "input" in error and isinstance(error["input"], str | int | float | bool | None):
        message = f"{message}, not {error['input']!r}"
        if error["type"] == "literal_error":
            suggestion = did_you_mean(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return Problem(path, message, suggestion, *(place or (None, None)))
