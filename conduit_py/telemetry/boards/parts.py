"""What several dashboards are made of: kinds of panels, selectors, what a viewer chooses."""

from conduit_py.telemetry import table
from conduit_py.telemetry.panels import Panel, Query, Variable
from conduit_py.telemetry.promql import quantile
from conduit_py.telemetry.table import Metric

CHOOSE_PIPELINE = Variable("pipeline", table.PIPELINE_STATUS.name, "pipeline_name")
CHOOSE_NODE = Variable("node", f'{table.BATCH_SIZE.name}_count{{pipeline_name=~"$pipeline"}}', "node")
CHOOSE_INSTANCE = Variable("instance", table.INFO.name, "instance")

OF_PIPELINE = 'pipeline_name=~"$pipeline"'
OF_NODE = 'pipeline_name=~"$pipeline", node=~"$node"'
OF_COMPONENT = 'pipeline_name=~"$pipeline", component_id=~"$node"'
OF_INSTANCE = 'instance=~"$instance"'

BY_PIPELINE = "{{pipeline_name}}"
BY_NODE = "{{pipeline_name}} / {{node}}"
BY_COMPONENT = "{{pipeline_name}} / {{component_id}}"


def lines(title: str, unit: str, description: str, *queries: tuple[str, str]) -> Panel:
    """Values over time: queries with the names of their series."""
    return Panel(title, tuple(Query(*query) for query in queries), unit, description)


def quantiles(title: str, description: str, metric: Metric, where: str, by: str, legend: str) -> Panel:
    """The median and the 99th percentile of a duration over time."""
    queries = [(quantile(q, metric, where, by=by), f"{legend} p{q * 100:g}") for q in (0.5, 0.99)]
    return lines(title, "s", description, *queries)


def number(title: str, expr: str, unit: str, description: str, *, bad: float | None = None) -> Panel:
    """One value as it is now."""
    return Panel(title, (Query(expr, title),), unit, description, "stat", 4, bad_from=bad)


def bars(title: str, expr: str, legend: str, unit: str, description: str) -> Panel:
    """A few values as they are now, side by side."""
    return Panel(title, (Query(expr, legend),), unit, description, "bargauge")


def statuses() -> Panel:
    """Which status each pipeline had when."""
    query = Query(f"{table.PIPELINE_STATUS.name}{{{OF_PIPELINE}}} == 1", "{{pipeline_name}} {{status}}")
    return Panel("Status", (query,), "none", "Which status each pipeline had.", "state-timeline", 24)
