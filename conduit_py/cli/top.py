"""The command `top`: a live table of the pipelines of a server, those with problems first."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from conduit_py.cli.client import ApiClient, connect
from conduit_py.cli.errors import Console, count_of
from conduit_py.cli.output import ExitCode, ago, printable, put_json
from conduit_py.cli.pipelines import trouble
from conduit_py.cli.result import RecordRate
from conduit_py.cli.server_commands import ServerCall
from conduit_py.client import ServerUnreachable
from conduit_py.errors import EnvironmentUnfit

ORDER = ("degraded", "recovering", "stopping", "running", "waiting", "created", "stopped", "completed")
STYLES = {"degraded": "bold red", "recovering": "yellow", "stopping": "yellow", "running": "green"}
RETRY_SECONDS, RETRY_MAX_SECONDS = 0.5, 5.0
HEADINGS = ("pipeline", "status", "for", "records/s", "read", "acked", "dead", "in flight", "")
LEFT_COLUMNS = 2
"""So many columns are aligned to the left; the others are numbers, and the last one is what is cut."""
PROBLEMS_SHOWN = 3
"""So many problems of the pipeline files have a line; the headline has their number."""
LINES_AROUND = 4
"""The line above the table, its headings, the line below it, and one that the terminal needs for itself."""


def top(call: ServerCall, count: int | None) -> ExitCode:
    """Show the fleet at every event of the server, `count` times or until Ctrl-C. Events as JSON lines with --json."""
    try:
        with connect(call) as client, _open_view(call) as view:
            for number, event in enumerate(_events(client, view), 1):
                view.show(event)
                if number == count:
                    break
    except KeyboardInterrupt:
        pass
    return ExitCode.OK


def _events(client: ApiClient, view: "EventPrinter") -> Iterator[dict[str, Any]]:
    """The events of a server. After the first event, a lost connection is retried for ever."""
    seen, delay = False, RETRY_SECONDS
    while True:
        lost = ServerUnreachable(f"the server at {client.url} has ended the connection", suggestion="look at its log")
        try:
            with closing(client.stream("live")) as events:
                for _, event in events:
                    seen, delay = True, RETRY_SECONDS
                    yield event
        except ServerUnreachable as error:
            lost = error
        # A wrong address must fail at once; only a server that has answered is worth waiting for.
        if not seen:
            raise lost
        view.lose(lost.message)
        time.sleep(delay)
        delay = min(2 * delay, RETRY_MAX_SECONDS)


class EventPrinter:
    """Prints events as JSON lines; a lost connection is a gap between them."""

    def show(self, event: dict[str, Any]) -> None:
        put_json(event)

    def lose(self, reason: str) -> None:
        """Show that the connection is lost and being made again."""


class ScreenPrinter(EventPrinter):
    """Draws events on the whole terminal. The last one stays visible while the connection is lost."""

    def __init__(self, live: Live, console: Console, url: str) -> None:
        self._live = live
        self._console = console
        self._url = url
        self._rates = FleetRates()
        self._last: dict[str, Any] = {"at": 0.0, "pipelines": []}

    def show(self, event: dict[str, Any]) -> None:
        self._last = event
        self._draw("")

    def lose(self, reason: str) -> None:
        self._draw(f"{printable(reason)}; trying again. ")

    def _draw(self, remark: str) -> None:
        rows = max(self._console.height - LINES_AROUND, 1)
        self._live.update(screen(self._last, self._rates, self._url, rows=rows, remark=remark), refresh=True)


@contextmanager
def _open_view(call: ServerCall) -> Iterator[EventPrinter]:
    """The view for the output that was chosen; on a terminal it takes the whole screen."""
    if call.json:
        yield EventPrinter()
        return
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        raise EnvironmentUnfit("top needs a terminal", suggestion="use `top --json` or `pipelines list` in scripts")
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield ScreenPrinter(live, console, call.url)


class FleetRates:
    """How fast each pipeline settles records at the moment."""

    def __init__(self) -> None:
        self._rates: dict[str, RecordRate] = {}
        self._counts: dict[str, int] = {}

    def add(self, id: str, now: float, acked: int) -> float:
        """Take a sample of one pipeline and return its rate. A count that fell is that of a new run."""
        # Counters begin at 0 with every start; the difference to the run before would be negative.
        if id not in self._rates or acked < self._counts[id]:
            self._rates[id] = RecordRate()
        self._counts[id] = acked
        return self._rates[id].add(now, acked)


def screen(event: dict[str, Any], rates: FleetRates, url: str, *, rows: int, remark: str = "") -> Group:
    """A line about all pipelines, a table of at most `rows` of them, and a last line that begins with `remark`."""
    pipelines, problems = sorted(event["pipelines"], key=_urgency), list(_problem_lines(event))
    # The table gives way: what is defined in a broken file has no row in it.
    rows = max(rows - len(problems), 1)
    per_second = {
        each["id"]: rates.add(each["id"], event["at"], (each["progress"] or {}).get("acked", 0)) for each in pipelines
    }
    table = [_cells(each, event["at"], per_second[each["id"]]) for each in pipelines[:rows]]
    more = f"{len(pipelines) - rows} more pipelines; " if len(pipelines) > rows else ""
    last = Text.assemble((remark, "bold red"), (f"{more}Ctrl-C leaves", "dim"), no_wrap=True)
    return Group(_headline(event, url, sum(per_second.values())), *problems, *_lines(table), last)


def _urgency(shown: dict[str, Any]) -> tuple[int, str]:
    return ORDER.index(shown["status"]) if shown["status"] in ORDER else 0, shown["id"]


def _headline(event: dict[str, Any], url: str, records_per_second: float) -> Text:
    statuses = [each["status"] for each in event["pipelines"]]
    text = Text(no_wrap=True)
    text.append(f"{datetime.fromtimestamp(event['at'], UTC):%H:%M:%S} UTC  {url}  ", "bold")
    for status in ORDER:
        if status in statuses:
            text.append(f"{statuses.count(status)} {status}  ", STYLES.get(status, ""))
    if event.get("problems"):
        text.append(f"{count_of(event['problems'])} in the files  ", "bold red")
    return text.append(f"{records_per_second:,.0f} records/s", "bold")


def _problem_lines(event: dict[str, Any]) -> Iterator[Text]:
    """What keeps definitions in the files from taking effect, a line for each of the first."""
    for problem in event.get("problems", [])[:PROBLEMS_SHOWN]:
        place = ":".join(str(problem[part]) for part in ("file", "line") if problem[part] is not None)
        words = ": ".join(part for part in (place, problem["path"], problem["message"]) if part)
        yield Text(printable(words), "red", no_wrap=True, overflow="ellipsis")


def _cells(shown: dict[str, Any], at: float, records_per_second: float) -> list[tuple[str, str]]:
    """The cells of one pipeline, each with its style."""
    progress = shown["progress"] or {}
    dead = progress.get("dead_letters", 0)
    return [
        (shown["id"], "bold"),
        (shown["status"], STYLES.get(shown["status"], "dim")),
        (ago(at - shown["since"]), ""),
        (f"{records_per_second:,.0f}", ""),
        (f"{progress.get('read', 0):,}", ""),
        (f"{progress.get('acked', 0):,}", ""),
        (f"{dead:,}", "red" if dead else ""),
        (f"{progress.get('in_flight', 0):,}", ""),
        (trouble(shown), "yellow"),
    ]


def _lines(table: Sequence[Sequence[tuple[str, str]]]) -> Iterator[Text]:
    """The headings and the rows, one line each, cut at the right edge of the terminal."""
    # Not a table of rich: on a narrow terminal that shrinks every column, and numbers and names become unreadable.
    lines = [[(name, "bold") for name in HEADINGS], *table]
    widths = [max(len(text) for text, _ in column) for column in zip(*lines, strict=True)]
    for line in lines:
        drawn = Text(no_wrap=True, overflow="ellipsis")
        for number, (text, style) in enumerate(line[:-1]):
            drawn.append((text.ljust if number < LEFT_COLUMNS else text.rjust)(widths[number]), style)
            drawn.append("  ")
        yield drawn.append(*line[-1])
