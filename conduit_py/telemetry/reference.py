"""The reference page of the metrics, made from their table: `python -m conduit_py.telemetry.reference`."""

import sys

from conduit_py.telemetry.table import GROUPS, Metric
from conduit_py.telemetry.waiting import REASONS

HEAD = """# Metrics

`conduit-py serve` answers `GET /metrics` in the text format of Prometheus. The values are put together when they
are asked for, from counters that the nodes keep per batch; a server that nobody scrapes does no work for them.
They begin at 0 when a pipeline is started, as Prometheus expects of counters.

`pipeline_name` is the id of the pipeline; `node`, in metrics of Conduit's `component_id`, is the id of the node in
it. Metrics marked *Conduit* have the name and meaning that they have there. Its `conduit_connector_bytes` and
`conduit_dlq_bytes` are left out: every record would have to be encoded to know its size. A histogram is known to
Prometheus as three series: `_bucket`, `_sum` and `_count`.

This page is generated from the table in `conduit_py/telemetry/table.py`.
"""

TAIL = """## The reasons of conduit_waiting

| node | reason |
|---|---|
{rows}

A pipeline is held up when a source waits for `window` or `channel`; what holds it up is then the reason of the node
furthest downstream.

## The process

The Python client for Prometheus adds its own: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_open_fds`, `process_max_fds`, `process_start_time_seconds`, `python_gc_collections_total`,
`python_gc_objects_collected_total`, `python_info`; and whatever your processors and connectors register with it.

Dashboards and alerts over all of these are in [dashboards](../../dashboards/README.md).
"""


def reference_page() -> str:
    """The page as it is committed."""
    reasons = "\n".join(f"| {kind.replace('_', ' ')} | {', '.join(REASONS[kind])} |" for kind in REASONS)
    groups = "\n".join(_section(title, group) for title, group in GROUPS.items())
    return f"{HEAD}\n{groups}\n{TAIL.format(rows=reasons)}"


def _section(title: str, group: tuple[Metric, ...]) -> str:
    lines = ["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|", *map(_row, group)]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(metric.labels) or "-"
    meaning = metric.meaning + (" *Conduit*" if metric.conduit else "")
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {meaning} |"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
