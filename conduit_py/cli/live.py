"""LiveTable: the running pipelines as a table that stays in place on a terminal."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich import box
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
    """A row for each pipeline, with its nodes below it."""
    table = Table(box=box.SIMPLE_HEAD, caption=remark or None, caption_style="yellow", caption_justify="left")
    table.add_column("pipeline", no_wrap=True)
    table.add_column("status")
    for name in ("read", "acked", "dead letters", "records/s", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waits for", overflow="ellipsis", no_wrap=True)
    for look in looks:
        _add_pipeline(table, look)
    return table


def _add_pipeline(table: Table, look: Look) -> None:
    progress = look.progress
    letters = Text(f"{progress.dead_letters:,}", "red" if progress.dead_letters else "")
    table.add_row(
        Text(progress.pipeline, "bold"),
        Text(progress.status, _STYLES.get(progress.status, "")),
        f"{progress.read:,}",
        f"{progress.acked:,}",
        letters,
        f"{look.records_per_second:,.0f}",
        f"{progress.in_flight:,} / {look.window:,}",
        Text(progress.blocked_on or look.trouble or "", "yellow"),
    )
    for meter in progress.nodes:
        if meter.kind != "dead_letters" or meter.records:
            _add_node(table, meter)


def _add_node(table: Table, meter: Meter) -> None:
    source, letters = meter.kind == "source", meter.kind == "dead_letters"
    count = f"{meter.records:,}"
    table.add_row(
        "  dead letters" if letters else f"  {meter.node}",
        "" if letters else meter.kind,
        count if source else "",
        "" if source else count,
        Text(f"{meter.refused:,}" if meter.refused else "", "red"),
        "",
        f"{meter.in_flight:,}" if source else "",
        meter.waiting_on or "",
        style="dim",
    )
