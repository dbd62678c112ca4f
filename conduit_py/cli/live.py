"""LiveTable: the running pipelines as a table that stays in place on a terminal."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conduit_py.cli.conclusion import conclude
from conduit_py.cli.result import Look, Result
from conduit_py.stream.meter import Meter

_STYLES = {
    "running": "green",
    "completed": "green",
    "recovering": "yellow",
    "stopping": "yellow",
    "degraded": "bold red",
}


class LiveTable:
    """Refreshed a few times a second; lines printed or logged meanwhile appear above it."""

    seconds = 0.25

    def __init__(self, console: Console, *, keep_stdout: bool) -> None:
        self._console = console
        self._remark = ""
        self._looks: Sequence[Look] = ()
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

    def show(self, looks: Sequence[Look]) -> None:
        self._looks = looks
        self._live.update(table_of(looks, self._remark), refresh=True)

    def say(self, event: str, text: str) -> None:
        self._remark = text
        self.show(self._looks)

    def end(self, results: Sequence[Result]) -> None:
        conclude(self._console, results)


def table_of(looks: Sequence[Look], remark: str = "") -> Table:
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


def _add_pipeline(table: Table, look: Look) -> None:
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
