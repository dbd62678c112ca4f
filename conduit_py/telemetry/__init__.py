"""Metrics, dashboards and alerts of a fleet.

Read `metric.py` (what a metric is), `metrics.py` (every metric, declared with the function that reads it) and
`metrics_text.py` (reads them all and writes the text that Prometheus scrapes). Dashboards are in `fleet_boards.py` and
`pipeline_boards.py`, made of `panels.py`, which also writes the queries; `alerts.py` has the alerts; `export.py` writes
all of them as files. `open_telemetry.py` and `open_lineage.py` send what they observe of a run.
"""
