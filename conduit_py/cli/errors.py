"""The console that commands print on, and errors on it: all problems of a definition at once, and the exit code."""

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from conduit_py.cli.output import ExitCode, printable_lines, put_json, shown
from conduit_py.config.loaded import LoadWarning
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import ConduitError, EnvironmentUnfit, PipelineInvalid, Problem, describe
from conduit_py.wire_error import ServerRefused, WireError


class Console(RichConsole):
    """rich's console, which prints no character that could steer the terminal, whatever a text quotes.

    It escapes what texts contain; colours and the movements of live tables are rich's own and stay.

    Line breaks stay too, since rich makes them itself: text that may quote a record goes through `shown` first.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, soft_wrap: bool = True) -> None:
        super().__init__(stderr=stderr, file=file, soft_wrap=soft_wrap, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


def print_error(error: BaseException) -> ExitCode:
    """Print on stderr what is wrong, where, and what to do. Returns the exit code for the error."""
    console = Console(stderr=True)
    problems = problems_of(error)
    for problem in problems:
        console.print(_problem_text(problem))
    if problems:
        console.print(Text(f"{count_of(problems)}; nothing was started", style="bold red"))
    elif isinstance(error, ConduitError):
        console.print(Text.assemble(("error: ", "bold red"), short_text(error.message)))
        if error.suggestion:
            console.print(Text.assemble(("  ", ""), (short_text(error.suggestion), "green")))
    else:
        console.print(Text.assemble(("internal error: ", "bold red"), shown(describe(error))))
        console.print(Text("  this is a bug in conduit-py; run again with --debug for the traceback", style="green"))
    return exit_code_of(error)


def print_warnings(warnings: Iterable[LoadWarning]) -> None:
    """Print warnings on stderr."""
    console = Console(stderr=True)
    for warning in warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), short_text(str(warning))))


@contextmanager
def print_error_as_json(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, an error is also printed on stdout, as the API would answer it, and then raised again."""
    try:
        yield
    except ConduitError as error:
        if as_json:
            # The error of the server as it came: wrapped once more, a script could not match its code.
            wire_error = error.wire_error if isinstance(error, ServerRefused) else WireError.of(error)
            put_json({"error": wire_error.to_fields()})
        raise


def exit_code_of(error: BaseException) -> ExitCode:
    if isinstance(error, EnvironmentUnfit):
        return ExitCode.ENVIRONMENT
    return ExitCode.INVALID if problems_of(error) else ExitCode.FAILED


def problems_of(error: BaseException) -> Sequence[Problem]:
    return error.problems if isinstance(error, FileInvalid | PipelineInvalid) else ()


def count_of(problems: Sized) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def short_text(text: str) -> str:
    """The text with paths below the working directory as a user would type them, in one line and without secrets."""
    return shown(text).replace(os.getcwd() + os.sep, "")


def place_of(problem: Problem) -> str:
    if problem.file is None:
        return ""
    file = str(Path(short_text(problem.file)))
    return file if problem.line is None else f"{file}:{problem.line}"


def _problem_text(problem: Problem) -> Text:
    parts = [(place_of(problem), "bold"), (shown(problem.path), "yellow"), (shown(problem.message), "")]
    text = Text(": ").join(Text(part, style) for part, style in parts if part)
    if problem.suggestion:
        text.append(f" ({short_text(problem.suggestion)})", "green")
    return text
