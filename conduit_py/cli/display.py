"""Displays for `run`: progress and results as a live table, plain lines, or JSON lines."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Protocol

from rich.live import Live
from rich.table import Table
from rich.text import Text

from conduit_py.cli.errors import Console, short_text
from conduit_py.cli.output import ExitCode, put, put_json, shown
from conduit_py.cli.result import ProgressLine, RunResult
from conduit_py.stream.meter import Meter


class Display(Protocol):
    """Shows progress every `seconds`, remarks as they come, and the results last."""

    seconds: float

    def running(self) -> AbstractContextManager[Any]:
        """Held while pipelines run."""

    def show(self, looks: Sequence[ProgressLine]) -> None: ...

    def say(self, event: str, text: str) -> None: ...

    def end(self, results: Sequence[RunResult]) -> None: ...


def choose_display(*, as_json: bool, stdout_taken: bool) -> Display:
    """JSON lines if asked for, a live table on a terminal, else plain lines.

    If a pipeline writes its records to stdout, the display uses stderr.
    """
    if as_json:
        return JsonDisplay(sys.stderr if stdout_taken else sys.stdout)
    console = Console(stderr=stdout_taken)
    # Records printed on the same screen would tear a live table apart.
    shared_screen = stdout_taken and sys.stdout.isatty()
    if console.is_terminal and not console.is_dumb_terminal and not shared_screen:
        return TableDisplay(console, keep_stdout=stdout_taken)
    return PlainDisplay(console.file)


class PlainDisplay:
    """A line now and then, for log files."""

    seconds = 5.0

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, looks: Sequence[ProgressLine]) -> None:
        for look in looks:
            self._line(look.sentence())

    def say(self, event: str, text: str) -> None:
        self._line(text)

    def end(self, results: Sequence[RunResult]) -> None:
        print_results(Console(file=self._file), results)

    def _line(self, text: str) -> None:
        put(text, self._file)


class JsonDisplay:
    """One JSON object a line: `progress` every second, `result` for each pipeline at the end."""

    seconds = 1.0

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, looks: Sequence[ProgressLine]) -> None:
        for look in looks:
            put_json(look.fields(), self._file)

    def say(self, event: str, text: str) -> None:
        put_json({"type": event, "message": text}, self._file)

    def end(self, results: Sequence[RunResult]) -> None:
        for result in results:
            put_json(result.fields(), self._file)


_STYLES = {
    "running": "green",
    "completed": "green",
    "recovering": "yellow",
    "stopping": "yellow",
    "degraded": "bold red",
}


class TableDisplay:
    """Refreshed a few times a second; lines printed or logged meanwhile appear above it."""

    seconds = 0.25

    def __init__(self, console: Console, *, keep_stdout: bool) -> None:
        self._console = console
        self._remark = ""
        self._looks: Sequence[ProgressLine] = ()
        # Refreshed by us alone: a thread of its own would look at counters that are being changed.
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=not keep_stdout,
            vertical_overflow="crop",
        )

    def running(self) -> AbstractContextManager[Any]:
        return self._live

    def show(self, looks: Sequence[ProgressLine]) -> None:
        self._looks = looks
        self._live.update(progress_table(looks, self._remark), refresh=True)

    def say(self, event: str, text: str) -> None:
        self._remark = text
        self.show(self._looks)

    def end(self, results: Sequence[RunResult]) -> None:
        print_results(self._console, results)


def progress_table(looks: Sequence[ProgressLine], remark: str = "") -> Table:
    """A row for each pipeline, with its nodes below it. On a narrow terminal names wrap; numbers stay whole."""
    table = Table(box=None, padding=(0, 2, 0, 0), caption=remark or None, caption_style="yellow")
    table.caption_justify = "left"
    table.add_column("pipeline")
    for name in ("read", "acked", "dead", "records/s", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status")
    for look in looks:
        _add_pipeline(table, look)
    return table


def _add_pipeline(table: Table, look: ProgressLine) -> None:
    progress = look.progress
    trouble = f"waits for {progress.blocked_on}" if progress.blocked_on else look.trouble
    status = Text(progress.status, _STYLES.get(progress.status, ""))
    table.add_row(
        Text(progress.pipeline, "bold"),
        f"{progress.read:,}",
        f"{progress.acked:,}",
        Text(f"{progress.dead_letters:,}", "red" if progress.dead_letters else ""),
        f"{look.records_per_second:,.0f}",
        f"{progress.in_flight:,}/{look.window:,}",
        status.append(f", {trouble}", "yellow") if trouble else status,
    )
    for meter in progress.nodes:
        if meter.kind != "dead_letters" or meter.records:
            _add_node(table, meter)


def _add_node(table: Table, meter: Meter) -> None:
    source, letters = meter.kind == "source", meter.kind == "dead_letters"
    count = f"{meter.records:,}"
    table.add_row(
        "  dead letters" if letters else f"  {meter.node}",
        count if source else "",
        "" if source else count,
        Text(f"{meter.refused:,}" if meter.refused else "", "red"),
        "",
        f"{meter.in_flight:,}" if source else "",
        f"{meter.waiting_on}…" if meter.waiting_on else "",
        style="dim",
    )


def print_results(console: Console, results: Sequence[RunResult]) -> None:
    """Summaries on the console; errors on stderr, where they belong even when stdout is a file."""
    for result in results:
        console.print(Text(result.sentence(), "green" if result.exit_code is ExitCode.OK else "bold"))
        remark = result.remark()
        if remark:
            console.print(Text(f"  {remark}", "yellow"))
    errors = Console(stderr=True)
    for result in results:
        if warning := result.warning():
            errors.print(Text(short_text(f"{result.progress.pipeline}: warning: {warning}"), "yellow"))
        for line in failure_lines(result):
            errors.print(line)


def failure_lines(result: RunResult) -> list[Text]:
    """The first error, the node it happened in, the suggestion, and how it is tried again."""
    error = result.state.error
    if error is None or result.exit_code is ExitCode.OK:
        return []
    # Most messages name their node already.
    place = f" in {error.node}" if error.node and not error.message.startswith(f"{error.node}:") else ""
    lines = [
        Text.assemble(
            (f"{result.progress.pipeline}: error{place}: ", "bold red"),
            shown(error.message),
            (f" [{error.code}]", "dim"),
        )
    ]
    lines += [Text(f"  {short_text(text)}", "green") for text in (error.suggestion, result.retry_advice) if text]
    return lines
