"""Display: what a user sees while pipelines run: a live table, plain lines, or JSON lines."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Protocol

from rich.console import Console

from conduit_py.cli.conclusion import conclude
from conduit_py.cli.live import LiveTable
from conduit_py.cli.output import put, put_json
from conduit_py.cli.result import Look, Result


class Display(Protocol):
    """Shows looks every `seconds`, remarks as they come, and the results last."""

    seconds: float

    def running(self) -> AbstractContextManager[Any]:
        """Held while pipelines run."""

    def show(self, looks: Sequence[Look]) -> None: ...

    def say(self, event: str, text: str) -> None: ...

    def end(self, results: Sequence[Result]) -> None: ...


def choose_display(*, as_json: bool, stdout_taken: bool) -> Display:
    """JSON lines if asked for, a live table on a terminal, else plain lines.

    A pipeline that writes its records to stdout has it to itself: what there is to say goes to stderr.
    """
    if as_json:
        return JsonLines(sys.stderr if stdout_taken else sys.stdout)
    console = Console(stderr=stdout_taken, highlight=False, soft_wrap=True)
    # Records printed on the same screen would tear a live table apart.
    shared_screen = stdout_taken and sys.stdout.isatty()
    if console.is_terminal and not console.is_dumb_terminal and not shared_screen:
        return LiveTable(console, keep_stdout=stdout_taken)
    return PlainLines(console.file)


class PlainLines:
    """A line now and then, for log files."""

    seconds = 5.0

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, looks: Sequence[Look]) -> None:
        for look in looks:
            self._line(look.sentence())

    def say(self, event: str, text: str) -> None:
        self._line(text)

    def end(self, results: Sequence[Result]) -> None:
        conclude(Console(file=self._file, highlight=False, soft_wrap=True), results)

    def _line(self, text: str) -> None:
        put(text, self._file)


class JsonLines:
    """One JSON object a line: `progress` every second, `result` for each pipeline at the end."""

    seconds = 1.0

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, looks: Sequence[Look]) -> None:
        for look in looks:
            put_json(look.fields(), self._file)

    def say(self, event: str, text: str) -> None:
        put_json({"type": event, "message": text}, self._file)

    def end(self, results: Sequence[Result]) -> None:
        for result in results:
            put_json(result.fields(), self._file)
