"""Panels and boards: what our dashboards need of Grafana's dashboard model, shared panels, and their queries."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

from conduit_py.telemetry import metrics
from conduit_py.telemetry.metric import Metric

PanelKind: TypeAlias = Literal["timeseries", "stat", "bargauge", "state-timeline", "heatmap"]

COLUMNS = 24
HEIGHTS: dict[PanelKind, int] = {"timeseries": 8, "stat": 4, "bargauge": 8, "state-timeline": 6, "heatmap": 8}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "conduit-py"


@dataclass(frozen=True)
class Query:
    """A query to Prometheus, and the legend of its series."""

    expr: str
    legend: str

    def __post_init__(self) -> None:
        # Here, where every query passes: none can forget it.
        object.__setattr__(self, "expr", of_servers(self.expr))


def of_servers(expr: str) -> str:
    """Return a query that finds only series of the servers that are chosen on the dashboard."""
    return _SERIES.sub(lambda found: f"{found[1]}{{{OF_SERVER}{', ' if found[2] else '}'}", expr)


_SERIES = re.compile(r"\b((?:conduit|process|python)_\w+)(\{)?")
OF_SERVER = 'job=~"$job", instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard. `unit` is the name of a unit in Grafana."""

    title: str
    queries: tuple[Query, ...]
    unit: str
    description: str
    kind: PanelKind = "timeseries"
    width: int = 12
    stacked: bool = False
    bad_from: float | None = None
    """The value from which on it is shown in red."""


@dataclass(frozen=True)
class Variable:
    """A drop-down of a dashboard: the values of a label in the series that a selector finds."""

    name: str
    selector: str
    label: str

    @property
    def query(self) -> str:
        return f"label_values({self.selector}, {self.label})"


@dataclass(frozen=True)
class Annotation:
    """Moments that all panels of a dashboard mark."""

    name: str
    expr: str
    text: str
    color: str


@dataclass(frozen=True)
class Board:
    """One dashboard: rows of panels under a title each."""

    uid: str
    title: str
    description: str
    rows: dict[str, tuple[Panel, ...]]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows.values() for panel in row]


def board_json(board: Board) -> dict[str, Any]:
    """The board as Grafana 10 and later import it."""
    return {
        "uid": f"conduit-py-{board.uid}",
        "title": f"conduit-py: {board.title}",
        "description": board.description,
        "tags": [TAG],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 38,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_links()],
        "templating": {"list": [_data_source(), *map(_variable, (*SERVERS, *board.variables))]},
        "annotations": {"list": list(map(_annotation, ANNOTATIONS))},
        "panels": list(_place_panels(board)),
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "conduit-py",
        "tooltip": "",
        "icon": "external link",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": annotation.color,
        "expr": of_servers(annotation.expr),
        "step": "60s",
        "titleFormat": annotation.name,
        "textFormat": annotation.text,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _place_panels(board: Board) -> Iterator[dict[str, Any]]:
    """Rows from top to bottom, their panels from left to right, with numbers of their own."""
    numbers = count(1)
    y = 0
    for title, panels in board.rows.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        row = {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        # A row that is named for a variable is there once for each value of it.
        yield row | ({"repeat": title[1:]} if title.startswith("$") else {})
        y += 1
        x = height = 0
        for panel in panels:
            # A panel that reached over the edge would be moved by Grafana, out of its row.
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            own = HEIGHTS[panel.kind]
            yield _panel(panel, next(numbers), {"h": own, "w": panel.width, "x": x, "y": y})
            x, height = x + panel.width, max(height, own)
        y += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel.kind),
        "targets": [_target(panel, query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
    }


def _field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad_from is not None:
        steps.append({"color": "red", "value": panel.bad_from})
    field: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        field |= {"min": 0, "color": {"mode": "palette-classic"}}
        field["custom"] = {"drawStyle": "line", "fillOpacity": 30 if panel.stacked else 5, "stacking": stacking}
    return field


def _options(kind: PanelKind) -> dict[str, Any]:
    if kind == "timeseries":
        legend = {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["mean", "lastNotNull"]}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "heatmap":
        color = {
            "mode": "scheme",
            "scheme": "Oranges",
            "steps": 64,
            "reverse": False,
            "fill": "orange",
            "exponent": 0.5,
        }
        return {"calculate": False, "yAxis": {"unit": "s"}, "color": color}
    if kind == "state-timeline":
        hidden = {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []}
        return {"mergeValues": True, "showValue": "never", "legend": hidden}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return options | ({"orientation": "horizontal"} if kind == "bargauge" else {"colorMode": "value"})


def _target(panel: Panel, query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "range": panel.kind in ("timeseries", "state-timeline", "heatmap"),
        "instant": panel.kind in ("stat", "bargauge"),
    }


SERVERS = (
    Variable("job", metrics.INFO.name, "job"),
    Variable("instance", f'{metrics.INFO.name}{{job=~"$job"}}', "instance"),
)
"""What every dashboard lets choose first."""
CHOOSE_PIPELINE = Variable("pipeline", of_servers(metrics.PIPELINE_STATUS.name), "pipeline_name")
CHOOSE_NODE = Variable("node", of_servers(f'{metrics.BATCH_SIZE.name}_count{{pipeline_name=~"$pipeline"}}'), "node")

OF_PIPELINE = 'pipeline_name=~"$pipeline"'
OF_NODE = 'pipeline_name=~"$pipeline", node=~"$node"'
OF_COMPONENT = 'pipeline_name=~"$pipeline", component_id=~"$node"'

BY_PIPELINE = "{{pipeline_name}}"
BY_NODE = "{{pipeline_name}} / {{node}}"
BY_COMPONENT = "{{pipeline_name}} / {{component_id}}"


ANNOTATIONS = (
    Annotation(
        "Server started",
        f"changes(process_start_time_seconds[2m]) > 0 and on (instance, job) {metrics.INFO.name}",
        "{{instance}}",
        "purple",
    ),
    Annotation(
        "Pipeline started again", f"increase({metrics.RECOVERIES.name}[2m]) > 0", "{{pipeline_name}} failed", "orange"
    ),
    Annotation(
        "Definition changed", f"increase({metrics.CHANGES.name}[2m]) > 0", "{{pipeline_name}} has another file", "blue"
    ),
)


def lines(title: str, unit: str, description: str, *queries: tuple[str, str]) -> Panel:
    """Values over time: queries with the names of their series."""
    return Panel(title, tuple(Query(*query) for query in queries), unit, description)


def quantiles(title: str, description: str, metric: Metric, where: str, by: str, legend: str) -> Panel:
    """The median and the 99th percentile of a duration over time."""
    queries = [(quantile(q, metric, where, by=by), f"{legend} p{q * 100:g}") for q in (0.5, 0.99)]
    return lines(title, "s", description, *queries)


def heat_map(title: str, description: str, metric: Metric, where: str) -> Panel:
    """How many values fell between the bounds of a histogram, over time."""
    query = Query(f"sum by (le) (increase({metric.name}_bucket{_in_braces(where)}[{RATE_INTERVAL}]))", "{{le}}")
    return Panel(title, (query,), "short", description, "heatmap")


def number(title: str, expr: str, unit: str, description: str, *, bad: float | None = None) -> Panel:
    """One value as it is now."""
    return Panel(title, (Query(expr, title),), unit, description, "stat", 4, bad_from=bad)


def bars(title: str, expr: str, legend: str, unit: str, description: str) -> Panel:
    """A few values as they are now, side by side."""
    return Panel(title, (Query(expr, legend),), unit, description, "bargauge")


def statuses() -> Panel:
    """Which status each pipeline had when."""
    query = Query(f"{metrics.PIPELINE_STATUS.name}{{{OF_PIPELINE}}} == 1", "{{pipeline_name}} {{status}}")
    return Panel("Status", (query,), "none", "Which status each pipeline had.", "state-timeline", 24)


RATE_INTERVAL = "$__rate_interval"
"""Grafana replaces it by a time span that contains enough scrapes."""


def rate(metric: Metric, where: str = "", *, by: str, over: str = RATE_INTERVAL, part: str = "") -> str:
    """Per second, summed; `part` is "count" or "sum" of a histogram."""
    name = f"{metric.name}_{part}" if part else metric.name
    return f"sum by ({by}) (rate({name}{_in_braces(where)}[{over}]))"


def quantile(q: float, metric: Metric, where: str = "", *, by: str, over: str = RATE_INTERVAL) -> str:
    """The value that the share `q` of those observed did not exceed, as well as the buckets tell."""
    # `le` must survive the sum, or there are no buckets left to interpolate in.
    return f"histogram_quantile({q}, {rate(metric, where, by=f'{by}, le', over=over, part='bucket')})"


def mean(metric: Metric, where: str = "", *, by: str) -> str:
    """Of the values observed."""
    return f"{rate(metric, where, by=by, part='sum')} / {rate(metric, where, by=by, part='count')}"


def now(metric: Metric, where: str = "", *, by: str, how: str = "sum") -> str:
    """A gauge as it is, joined by `how`."""
    return f"{how} by ({by}) ({metric.name}{_in_braces(where)})"


def share_of_time(metric: Metric, where: str = "", *, by: str) -> str:
    """For a gauge that is 0 or 1: how much of the time it was 1."""
    return f"sum by ({by}) (avg_over_time({metric.name}{_in_braces(where)}[{RATE_INTERVAL}]))"


def _in_braces(where: str) -> str:
    return f"{{{where}}}" if where else ""
