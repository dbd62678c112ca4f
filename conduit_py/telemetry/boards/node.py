"""The dashboard of a node: its calls, batches, queue and refusals."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import (
    BY_COMPONENT,
    BY_NODE,
    CHOOSE_NODE,
    CHOOSE_PIPELINE,
    OF_COMPONENT,
    OF_NODE,
    Board,
    lines,
    quantiles,
)
from conduit_py.telemetry.promql import mean, now, quantile, rate, share_of_time

NODE = Board(
    "node",
    "node",
    "One node: what its calls take, how large its batches are, what it waits for and what it refuses.",
    {
        "Records": (
            lines(
                "Records",
                "cps",
                "Per second: read, processed or written.",
                (rate(metrics.READ, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} read"),
                (rate(metrics.PROCESSED, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} processed"),
                (rate(metrics.WRITTEN, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} written"),
            ),
            lines(
                "Refused, filtered, tried again",
                "cps",
                "Per second. Retries are of calls, the others of records.",
                (rate(metrics.NACKED, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} refused"),
                (rate(metrics.FILTERED, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} filtered"),
                (rate(metrics.RETRIES, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} retries"),
            ),
            lines(
                "Batches",
                "cps",
                "Per second.",
                (rate(metrics.BATCH_SIZE, OF_NODE, by="pipeline_name, node", part="count"), BY_NODE),
            ),
            lines(
                "Batch size",
                "short",
                "Records in a batch: the mean and the 99th percentile.",
                (mean(metrics.BATCH_SIZE, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} mean"),
                (quantile(0.99, metrics.BATCH_SIZE, OF_NODE, by="pipeline_name, node"), f"{BY_NODE} p99"),
            ),
        ),
        "Time": (
            quantiles(
                "Calls of processors",
                "For one batch.",
                metrics.PROCESSOR_DURATION,
                OF_COMPONENT,
                "pipeline_name, component_id",
                BY_COMPONENT,
            ),
            quantiles(
                "Writes of destinations",
                "Of one batch.",
                metrics.CONNECTOR_DURATION,
                OF_COMPONENT,
                "pipeline_name, component_id",
                BY_COMPONENT,
            ),
            quantiles(
                "Persists",
                "A destination's flush, or the save of a source's position.",
                metrics.PERSIST_DURATION,
                OF_NODE,
                "pipeline_name, node",
                BY_NODE,
            ),
            lines(
                "Busy",
                "percentunit",
                "The share of time that calls took.",
                (
                    rate(metrics.PROCESSOR_DURATION, OF_COMPONENT, by="pipeline_name, component_id", part="sum"),
                    BY_COMPONENT,
                ),
                (
                    rate(metrics.CONNECTOR_DURATION, OF_COMPONENT, by="pipeline_name, component_id", part="sum"),
                    f"{BY_COMPONENT} write",
                ),
                (rate(metrics.PERSIST_DURATION, OF_NODE, by="pipeline_name, node", part="sum"), f"{BY_NODE} persist"),
            ),
        ),
        "Waiting": (
            lines(
                "Waiting",
                "percentunit",
                "The share of time that the node waited for what.",
                (
                    share_of_time(metrics.WAITING, OF_NODE, by="pipeline_name, node, reason"),
                    f"{BY_NODE}: {{{{reason}}}}",
                ),
            ),
            lines(
                "Queue",
                "short",
                "Batches that wait before the node.",
                (now(metrics.QUEUE_DEPTH, OF_NODE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Taps",
                "short",
                "Who looks at the records of the node, and how many sampled records a second were not read in time.",
                (now(metrics.TAPS, OF_COMPONENT, by="pipeline_name, component_id"), f"{BY_COMPONENT} taps"),
                (rate(metrics.TAP_DROPS, OF_COMPONENT, by="pipeline_name, component_id"), f"{BY_COMPONENT} dropped"),
            ),
        ),
    },
    (CHOOSE_PIPELINE, CHOOSE_NODE),
)
