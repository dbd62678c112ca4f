"""Panels and boards: as much of Grafana's dashboard model as our dashboards need."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

PanelKind: TypeAlias = Literal["timeseries", "stat", "bargauge", "state-timeline"]

COLUMNS = 24
HEIGHTS: dict[PanelKind, int] = {"timeseries": 8, "stat": 4, "bargauge": 8, "state-timeline": 6}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "conduit-py"


@dataclass(frozen=True)
class Query:
    """What a panel asks Prometheus, and how the answer's series are called."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture. `unit` is a unit of Grafana's."""

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
    """Something a viewer chooses: the values of a label among the series that a selector finds."""

    name: str
    selector: str
    label: str

    @property
    def query(self) -> str:
        return f"label_values({self.selector}, {self.label})"


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
        "templating": {"list": [_data_source(), *map(_variable, board.variables)]},
        "panels": list(_place_panels(board)),
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "conduit-py",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


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
        yield {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        y += 1
        x = height = 0
        for panel in panels:
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
    if kind == "state-timeline":
        return {"mergeValues": True, "showValue": "never", "legend": {"showLegend": False}}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return options | ({"orientation": "horizontal"} if kind == "bargauge" else {"colorMode": "value"})


def _target(panel: Panel, query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": panel.kind in ("timeseries", "state-timeline"),
        "instant": panel.kind in ("stat", "bargauge"),
    }
