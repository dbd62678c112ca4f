"""The dashboards of a pipeline and of a node: where records are, what they wait for, what is refused."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.metric import Metric
from conduit_py.telemetry.panels import (
    BY_COMPONENT,
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_NODE,
    CHOOSE_PIPELINE,
    OF_COMPONENT,
    OF_NODE,
    OF_PIPELINE,
    Board,
    Panel,
    heat_map,
    lines,
    mean,
    now,
    quantile,
    quantiles,
    rate,
    share_of_time,
    statuses,
)


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
                "Per second: acked to the source, filtered, wanted by no destination, refused, dead-lettered.",
                (rate(metrics.ACKED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} acked"),
                (rate(metrics.FILTERED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} filtered"),
                (rate(metrics.UNWANTED, OF_PIPELINE, by="pipeline_name, node"), "{{node}} wanted by no destination"),
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
            heat_map(
                "Latency of all records",
                "How many records took how long. Two bands are two kinds of records, or of moments.",
                metrics.PIPELINE_DURATION,
                OF_PIPELINE,
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
        "Replication slots, consumer groups and schemas": (
            lines(
                "Log that is kept",
                "bytes",
                "What a database keeps until its source has confirmed it: too much fills the disk of the database.",
                (now(metrics.LAG_RETAINED, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Records behind, by partition",
                "short",
                "One that grows while the others do not has a hot key, or a member of the group that is stuck.",
                (
                    now(metrics.LAG_PARTITION, OF_PIPELINE, by="pipeline_name, node, partition"),
                    "{{node}}: {{partition}}",
                ),
            ),
            lines(
                "Schema drift",
                "short",
                "Records that do not fit their schema, and values that a destination left out: a producer has changed.",
                (rate(metrics.DRIFT, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
        ),
        "State store": (
            lines(
                "Commits",
                "cps",
                "Per second: how often the progress of each source was made durable.",
                (rate(metrics.CHECKPOINT_DURATION, OF_PIPELINE, by="pipeline_name, node", part="count"), BY_NODE),
            ),
            lines(
                "Waiting for the store",
                "percentunit",
                "How long a source waited for the store to save its position: near 100 % the store sets the speed.",
                (share_of_time(metrics.WAITING, f'{OF_PIPELINE}, reason="store"', by="pipeline_name, node"), BY_NODE),
            ),
        ),
        "State and windows": (
            lines(
                "Keys of state",
                "short",
                "Keys that each processor keeps. One that only grows never closes windows. Fewer are in memory.",
                (now(metrics.STATE_KEYS, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
                (now(metrics.STATE_CACHED_KEYS, OF_PIPELINE, by="pipeline_name, node"), f"{BY_NODE} in memory"),
            ),
            lines(
                "Bytes of state",
                "bytes",
                "Keys and values of that state.",
                (now(metrics.STATE_BYTES, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Keys read from the store",
                "cps",
                "Keys of a state that were not in memory. Many of them set the speed: a larger cache needs fewer.",
                (rate(metrics.STATE_READS, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Watermark behind the clock",
                "s",
                "How far the time up to which windows are whole is behind now. If it grows, a source is silent.",
                (f"time() - {now(metrics.WATERMARK, OF_PIPELINE, by='pipeline_name, node', how='min')}", BY_NODE),
            ),
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


NODE = Board(
    "node",
    "node",
    "One node: what its calls take, how large its batches are, what it waits for and what it refuses.",
    {
        "$node": (
            lines(
                "Batches",
                "cps",
                "Per second: read, processed or written by this node.",
                (rate(metrics.BATCH_SIZE, OF_NODE, by="pipeline_name", part="count"), BY_PIPELINE),
            ),
            lines(
                "Waiting",
                "percentunit",
                "The share of time that this node waited for what.",
                (share_of_time(metrics.WAITING, OF_NODE, by="pipeline_name, reason"), f"{BY_PIPELINE}: {{{{reason}}}}"),
            ),
        ),
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
