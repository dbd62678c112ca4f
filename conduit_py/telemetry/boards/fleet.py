"""The dashboard of the fleet: every pipeline at once."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import (
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    Board,
    Panel,
    Query,
    bars,
    lines,
    number,
    quantiles,
    statuses,
)
from conduit_py.telemetry.promql import now, rate

FLEET = Board(
    "fleet",
    "fleet",
    "Every pipeline of the server: status, throughput, latency, and which are held up by what.",
    {
        "Now": (
            number("Running", f'sum({metrics.PIPELINES.name}{{status="running"}})', "none", "Pipelines that run."),
            number(
                "Degraded",
                f'sum({metrics.PIPELINES.name}{{status="degraded"}})',
                "none",
                "Pipelines that failed for good and wait for somebody.",
                bad=1,
            ),
            number(
                "Recovering",
                f'sum({metrics.PIPELINES.name}{{status="recovering"}})',
                "none",
                "Pipelines that failed and will be started again.",
                bad=1,
            ),
            number("Records per second", f"sum(rate({metrics.ACKED.name}[$__rate_interval]))", "cps", "Acked, by all."),
            number("In flight", f"sum({metrics.IN_FLIGHT.name})", "short", "Read and not yet settled, by all."),
            number(
                "Oldest progress",
                f"max({metrics.PROGRESS_AGE.name})",
                "s",
                "The longest that a pipeline has had records to settle and settled none.",
                bad=300,
            ),
        ),
        "Pipelines": (
            statuses(),
            Panel(
                "Pipelines by status",
                (Query(f"sum by (status) ({metrics.PIPELINES.name})", "{{status}}"),),
                "none",
                "How many pipelines have each status.",
                stacked=True,
            ),
            lines(
                "Recoveries",
                "none",
                "Starts after an error, in the last 15 minutes.",
                (f"sum by (pipeline_name) (increase({metrics.RECOVERIES.name}{{{OF_PIPELINE}}}[15m]))", BY_PIPELINE),
            ),
        ),
        "Traffic": (
            lines(
                "Acked",
                "cps",
                "Records per second whose source was told that they are settled.",
                (rate(metrics.ACKED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            quantiles(
                "Latency",
                "From when a record was read until it was settled.",
                metrics.PIPELINE_DURATION,
                OF_PIPELINE,
                "pipeline_name",
                BY_PIPELINE,
            ),
            bars(
                "Window in use",
                f"{now(metrics.IN_FLIGHT, OF_PIPELINE, by='pipeline_name')}"
                f" / {now(metrics.WINDOW, OF_PIPELINE, by='pipeline_name')}",
                BY_PIPELINE,
                "percentunit",
                "The share of what may be in flight that is. Full: something downstream cannot keep up.",
            ),
            bars(
                "Progress age",
                now(metrics.PROGRESS_AGE, OF_PIPELINE, by="pipeline_name", how="max"),
                BY_PIPELINE,
                "s",
                "For how long there have been records to settle and none has been.",
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)
