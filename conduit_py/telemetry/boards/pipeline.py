"""The dashboard of a pipeline: where its records are and what it waits for."""

from conduit_py.telemetry import table
from conduit_py.telemetry.boards.parts import (
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    lines,
    quantiles,
    statuses,
)
from conduit_py.telemetry.panels import Board, Panel
from conduit_py.telemetry.promql import now, rate, share_of_time
from conduit_py.telemetry.table import Metric


def _behind(what: str, unit: str, metric: Metric) -> Panel:
    query = now(metric, OF_PIPELINE, by="pipeline_name, node", how="max")
    return lines(f"Behind, in {what}", unit, "What sources that can say so have still to read.", (query, BY_NODE))


def _messages(title: str, *counts: str) -> Panel:
    queries = (
        (rate(table.TALLY[name], OF_PIPELINE, by="pipeline_name, node"), f"{{{{node}}}} {name.replace('_', ' ')}")
        for name in counts
    )
    return lines(title, "cps", "Per second, of sources over a queue that several workers share.", *queries)


PIPELINE = Board(
    "pipeline",
    "pipeline",
    "One pipeline: records through every node, what it waits for, its window and its commits.",
    {
        "Traffic": (
            statuses(),
            lines(
                "Records",
                "cps",
                "Per second: read by sources, given to processors, accepted by destinations.",
                (rate(table.READ, OF_PIPELINE, by="pipeline_name, node"), "{{node}} read"),
                (rate(table.PROCESSED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} processed"),
                (rate(table.WRITTEN, OF_PIPELINE, by="pipeline_name, node"), "{{node}} written"),
            ),
            lines(
                "What became of them",
                "cps",
                "Per second: acked to the source, filtered, refused, dead-lettered.",
                (rate(table.ACKED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} acked"),
                (rate(table.FILTERED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} filtered"),
                (rate(table.NACKED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} refused"),
                (rate(table.DEAD_LETTERED, OF_PIPELINE, by="pipeline_name"), "dead-lettered"),
            ),
        ),
        "Time": (
            quantiles(
                "Latency",
                "From when a record was read until it was settled.",
                table.PIPELINE_DURATION,
                OF_PIPELINE,
                "pipeline_name",
                BY_PIPELINE,
            ),
            lines(
                "Busy",
                "percentunit",
                "The share of time that calls took; the one near 100 % is the bottleneck.",
                (
                    rate(table.PROCESSOR_DURATION, OF_PIPELINE, by="pipeline_name, component_id", part="sum"),
                    "{{component_id}}",
                ),
                (
                    rate(table.CONNECTOR_DURATION, OF_PIPELINE, by="pipeline_name, component_id", part="sum"),
                    "{{component_id}} write",
                ),
                (rate(table.PERSIST_DURATION, OF_PIPELINE, by="pipeline_name, node", part="sum"), "{{node}} persist"),
            ),
            lines(
                "Waiting",
                "percentunit",
                "The share of time that each node waited for what.",
                (share_of_time(table.WAITING, OF_PIPELINE, by="pipeline_name, node, reason"), "{{node}}: {{reason}}"),
            ),
            quantiles(
                "Checkpoints",
                "To save a source's position and to tell it.",
                table.CHECKPOINT_DURATION,
                OF_PIPELINE,
                "pipeline_name, node",
                BY_NODE,
            ),
        ),
        "Behind": (
            _behind("records", "short", table.LAG_RECORDS),
            _behind("bytes", "bytes", table.LAG_BYTES),
            _behind("time", "s", table.LAG_SECONDS),
        ),
        "Shared queues": (
            lines(
                "Leases",
                "short",
                "Messages that each worker keeps from the others at the moment.",
                (now(table.TALLY["held"], OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            _messages("Leases and work that changed hands", "extended", "lost", "taken_over"),
            _messages("Messages that gave no work", "duplicates", "unreadable", "failed"),
        ),
        "Back-pressure": (
            lines(
                "In flight",
                "short",
                "Records read and not yet settled, below the window of their source.",
                (now(table.IN_FLIGHT, OF_PIPELINE, by="pipeline_name, node"), "{{node}} in flight"),
                (now(table.WINDOW, OF_PIPELINE, by="pipeline_name, node"), "{{node}} window"),
            ),
            lines(
                "Ages",
                "s",
                "The oldest record that is not settled, and the time since anything was.",
                (now(table.OLDEST, OF_PIPELINE, by="pipeline_name, node", how="max"), "{{node}} oldest record"),
                (now(table.PROGRESS_AGE, OF_PIPELINE, by="pipeline_name", how="max"), "progress"),
            ),
            lines(
                "Queues",
                "short",
                "Batches that wait before each node.",
                (now(table.QUEUE_DEPTH, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Retries and recoveries",
                "cps",
                "Per second: attempts after the first, and starts after an error.",
                (rate(table.RETRIES, OF_PIPELINE, by="pipeline_name, node"), "{{node}} retries"),
                (rate(table.RECOVERIES, OF_PIPELINE, by="pipeline_name"), "recoveries"),
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)
