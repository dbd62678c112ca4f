"""The dashboard of a pipeline: where its records are and what it waits for."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.metric import Metric
from conduit_py.telemetry.panels import (
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    Board,
    Panel,
    lines,
    quantiles,
    statuses,
)
from conduit_py.telemetry.promql import now, rate, share_of_time


def _behind(what: str, unit: str, metric: Metric) -> Panel:
    query = now(metric, OF_PIPELINE, by="pipeline_name, node", how="max")
    return lines(f"Behind, in {what}", unit, "What sources that can say so have still to read.", (query, BY_NODE))


def _messages(title: str, **counts: Metric) -> Panel:
    queries = (
        (rate(metric, OF_PIPELINE, by="pipeline_name, node"), f"{{{{node}}}} {name.replace('_', ' ')}")
        for name, metric in counts.items()
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
                (rate(metrics.READ, OF_PIPELINE, by="pipeline_name, node"), "{{node}} read"),
                (rate(metrics.PROCESSED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} processed"),
                (rate(metrics.WRITTEN, OF_PIPELINE, by="pipeline_name, node"), "{{node}} written"),
            ),
            lines(
                "What became of them",
                "cps",
                "Per second: acked to the source, filtered, refused, dead-lettered.",
                (rate(metrics.ACKED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} acked"),
                (rate(metrics.FILTERED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} filtered"),
                (rate(metrics.NACKED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} refused"),
                (rate(metrics.DEAD_LETTERED, OF_PIPELINE, by="pipeline_name"), "dead-lettered"),
            ),
        ),
        "Time": (
            quantiles(
                "Latency",
                "From when a record was read until it was settled.",
                metrics.PIPELINE_DURATION,
                OF_PIPELINE,
                "pipeline_name",
                BY_PIPELINE,
            ),
            lines(
                "Busy",
                "percentunit",
                "The share of time that calls took; the one near 100 % is the bottleneck.",
                (
                    rate(metrics.PROCESSOR_DURATION, OF_PIPELINE, by="pipeline_name, component_id", part="sum"),
                    "{{component_id}}",
                ),
                (
                    rate(metrics.CONNECTOR_DURATION, OF_PIPELINE, by="pipeline_name, component_id", part="sum"),
                    "{{component_id}} write",
                ),
                (rate(metrics.PERSIST_DURATION, OF_PIPELINE, by="pipeline_name, node", part="sum"), "{{node}} persist"),
            ),
            lines(
                "Waiting",
                "percentunit",
                "The share of time that each node waited for what.",
                (share_of_time(metrics.WAITING, OF_PIPELINE, by="pipeline_name, node, reason"), "{{node}}: {{reason}}"),
            ),
            quantiles(
                "Checkpoints",
                "To save a source's position and to tell it.",
                metrics.CHECKPOINT_DURATION,
                OF_PIPELINE,
                "pipeline_name, node",
                BY_NODE,
            ),
        ),
        "Behind": (
            _behind("records", "short", metrics.LAG_RECORDS),
            _behind("bytes", "bytes", metrics.LAG_BYTES),
            _behind("time", "s", metrics.LAG_SECONDS),
        ),
        "Shared queues": (
            lines(
                "Leases",
                "short",
                "Messages that each worker keeps from the others at the moment.",
                (now(metrics.LEASES_HELD, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            _messages(
                "Leases and work that changed hands",
                extended=metrics.LEASES_EXTENDED,
                lost=metrics.LEASES_LOST,
                taken_over=metrics.WORK_TAKEN_OVER,
            ),
            _messages(
                "Messages that gave no work",
                duplicates=metrics.MESSAGES_DUPLICATE,
                unreadable=metrics.MESSAGES_UNREADABLE,
                failed=metrics.OBJECTS_FAILED,
            ),
        ),
        "Back-pressure": (
            lines(
                "In flight",
                "short",
                "Records read and not yet settled, below the window of their source.",
                (now(metrics.IN_FLIGHT, OF_PIPELINE, by="pipeline_name, node"), "{{node}} in flight"),
                (now(metrics.WINDOW, OF_PIPELINE, by="pipeline_name, node"), "{{node}} window"),
            ),
            lines(
                "Ages",
                "s",
                "The oldest record that is not settled, and the time since anything was.",
                (now(metrics.OLDEST, OF_PIPELINE, by="pipeline_name, node", how="max"), "{{node}} oldest record"),
                (now(metrics.PROGRESS_AGE, OF_PIPELINE, by="pipeline_name", how="max"), "progress"),
            ),
            lines(
                "Queues",
                "short",
                "Batches that wait before each node.",
                (now(metrics.QUEUE_DEPTH, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Retries and recoveries",
                "cps",
                "Per second: attempts after the first, and starts after an error.",
                (rate(metrics.RETRIES, OF_PIPELINE, by="pipeline_name, node"), "{{node}} retries"),
                (rate(metrics.RECOVERIES, OF_PIPELINE, by="pipeline_name"), "recoveries"),
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)
