"""Files generated from the declarations: dashboards, alerts and the reference page of the metrics."""

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from conduit_py.stream.meter import WAIT_REASONS
from conduit_py.telemetry.alerts import RUNBOOK, rules_text
from conduit_py.telemetry.fleet_boards import DEAD_LETTERS, FLEET, RUNTIME
from conduit_py.telemetry.metric import Metric
from conduit_py.telemetry.metrics import GROUPS
from conduit_py.telemetry.panels import board_json
from conduit_py.telemetry.pipeline_boards import NODE, PIPELINE

BOARDS = (FLEET, PIPELINE, NODE, DEAD_LETTERS, RUNTIME)


def exported_files(runbook: str = RUNBOOK) -> dict[str, str]:
    """The content of each file, by its name."""
    boards = {f"{board.uid}.json": json.dumps(board_json(board), indent=2) + "\n" for board in BOARDS}
    return {**boards, "alerts.yml": rules_text(runbook)}


def export(folder: Path, runbook: str = RUNBOOK) -> list[Path]:
    """Write all files into a folder, which is created if needed. Files of an earlier export are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in exported_files(runbook).items():
        path = folder / name
        path.write_text(text)
        paths.append(path)
    return paths


HEAD = """# Metrics

`conduit-py serve` answers `GET /metrics` in the text format of Prometheus. The values are put together when they
are asked for, from counters that the nodes keep per batch; a server that nobody scrapes does no work for them.
They begin at 0 when a pipeline is started, as Prometheus expects of counters.

`pipeline_name` is the id of the pipeline; `node`, in metrics of Conduit's `component_id`, is the id of the node in
it. Metrics marked *Conduit* have the name and meaning that they have there. Its `conduit_connector_bytes` and
`conduit_dlq_bytes` are left out: every record would have to be encoded to know its size. A histogram is known to
Prometheus as three series: `_bucket`, `_sum` and `_count`.

This page is generated from the declarations in `conduit_py/telemetry/metrics.py`.
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
    rows = "\n".join(f"| {kind.replace('_', ' ')} | {', '.join(reasons)} |" for kind, reasons in WAIT_REASONS.items())
    groups = "\n".join(
        _section(title, [metric for group in groups for metric in group.metrics])
        for title, groups in groupby(GROUPS, key=lambda group: group.title)
    )
    return f"{HEAD}\n{groups}\n{TAIL.format(rows=rows)}"


def _section(title: str, metrics: Sequence[Metric]) -> str:
    lines = ["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|", *map(_row, metrics)]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(metric.labels) or "-"
    meaning = metric.meaning + (" *Conduit*" if metric.conduit else "")
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {meaning} |"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
