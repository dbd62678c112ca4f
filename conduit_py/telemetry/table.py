"""Every metric there is, in one table: name, kind, unit, labels, meaning.

Names that Conduit has too mean the same there, so that its dashboards and alerts go on working.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]

PIPELINE = ("pipeline_name",)
NODE = ("pipeline_name", "node")
COMPONENT = ("pipeline_name", "component_id")


@dataclass(frozen=True)
class Metric:
    """One family of time series."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    conduit: bool = False
    """Whether Conduit has it, under the same name and with the same meaning."""

    @property
    def unit(self) -> str:
        stem = self.name.removesuffix("_total")
        for unit in ("seconds", "records", "batches", "bytes"):
            if stem.endswith(f"_{unit}"):
                return unit
        return "records" if stem.startswith("conduit_records_") else "-"


INFO = Metric("conduit_info", "gauge", ("version",), "Always 1; the version is in the label.", conduit=True)
TASKS = Metric("conduit_tasks", "gauge", (), "Tasks that live in the event loop.")
THREADS = Metric("conduit_threads", "gauge", (), "Threads of the process; connectors that block have their own.")

PIPELINES = Metric("conduit_pipelines", "gauge", ("status",), "How many pipelines have this status.", conduit=True)
PIPELINE_STATUS = Metric(
    "conduit_pipeline_status",
    "gauge",
    ("pipeline_name", "status"),
    "1 for the status that the pipeline has, 0 for the others. (Conduit has one series with a number per status.)",
)
CONNECTORS = Metric("conduit_connectors", "gauge", ("type",), "How many sources and destinations.", conduit=True)
PROCESSORS = Metric("conduit_processors", "gauge", ("type",), "How many processors, by what they are.", conduit=True)

PIPELINE_DURATION = Metric(
    "conduit_pipeline_execution_duration_seconds",
    "histogram",
    PIPELINE,
    "From when a record was read until its source was told that it is settled, acked or dead-lettered. "
    "The count is of records.",
    conduit=True,
)
CONNECTOR_DURATION = Metric(
    "conduit_connector_execution_duration_seconds",
    "histogram",
    ("pipeline_name", "plugin", "type", "component_id"),
    "One call of a destination's write, which takes a batch; also calls that failed.",
    conduit=True,
)
PROCESSOR_DURATION = Metric(
    "conduit_processor_execution_duration_seconds",
    "histogram",
    ("pipeline_name", "processor", "component_id"),
    "A processor's work on one batch, once per attempt, pauses between attempts excluded.",
    conduit=True,
)
DLQ_DURATION = Metric(
    "conduit_dlq_execution_duration_seconds",
    "histogram",
    ("pipeline_name", "plugin"),
    "One call of the dead-letter handler, which takes the letters of one commit.",
    conduit=True,
)
PERSIST_DURATION = Metric(
    "conduit_persist_duration_seconds",
    "histogram",
    NODE,
    "What it took to make records durable: a destination's flush, or the save of a source's position in the store.",
)
CHECKPOINT_DURATION = Metric(
    "conduit_checkpoint_duration_seconds",
    "histogram",
    NODE,
    "What a source's commit took: to save its position and to tell it.",
)

READ = Metric("conduit_records_read_total", "counter", NODE, "Records read from a source.")
ACKED = Metric(
    "conduit_records_acked_total",
    "counter",
    NODE,
    "Records whose position was saved and acked to the source, dead letters included.",
)
PROCESSED = Metric("conduit_records_processed_total", "counter", NODE, "Records given to a processor.")
WRITTEN = Metric("conduit_records_written_total", "counter", NODE, "Records accepted by a destination.")
FILTERED = Metric(
    "conduit_records_filtered_total",
    "counter",
    NODE,
    "Records that a processor filtered out, or that the condition of a destination sent elsewhere.",
)
NACKED = Metric("conduit_records_nacked_total", "counter", NODE, "Records that the node refused.")
DEAD_LETTERED = Metric(
    "conduit_records_dead_lettered_total",
    "counter",
    PIPELINE,
    "Dead letters that the handler took; a split record may have several.",
)
REPLAYED = Metric(
    "conduit_records_replayed_total", "counter", PIPELINE, "Dead letters that were sent again and delivered."
)
LETTERS = Metric(
    "conduit_dead_letters",
    "gauge",
    ("pipeline_name", "state"),
    "Dead letters in the journal: kept until somebody acts, or queued to be sent again.",
)
LETTERS_BYTES = Metric("conduit_dead_letters_bytes", "gauge", PIPELINE, "What the dead letters in the journal take.")
BATCH_SIZE = Metric(
    "conduit_batch_records", "histogram", NODE, "Records read, processed or written at once. The count is of batches."
)
RETRIES = Metric("conduit_retries_total", "counter", NODE, "Attempts after the first, by the retry policy of the node.")
RECOVERIES = Metric(
    "conduit_recoveries_total", "counter", PIPELINE, "How often the pipeline was started again after an error."
)

IN_FLIGHT = Metric("conduit_in_flight_records", "gauge", NODE, "Records of a source read and not yet settled.")
WINDOW = Metric("conduit_window_records", "gauge", NODE, "How many records of a source may be in flight.")
QUEUE_DEPTH = Metric(
    "conduit_queue_depth_batches", "gauge", NODE, "Batches that wait before a node which begins a task of its own."
)
WAITING = Metric(
    "conduit_waiting",
    "gauge",
    ("pipeline_name", "node", "reason"),
    "1 while the node waits for this, else 0: the average over time is the share of time that it waited.",
)
LAG_RECORDS = Metric(
    "conduit_source_lag_records", "gauge", NODE, "Records that a source has not read yet; of sources that can say so."
)
LAG_BYTES = Metric(
    "conduit_source_lag_bytes", "gauge", NODE, "Bytes that a source has not read yet; of sources that can say so."
)
LAG_SECONDS = Metric(
    "conduit_source_lag_seconds",
    "gauge",
    NODE,
    "The age of the oldest record that a source has not read yet; of sources that can say so.",
)
OLDEST = Metric(
    "conduit_oldest_unsettled_seconds",
    "gauge",
    NODE,
    "How long ago the oldest record of a source was read that is not settled; 0 if all are.",
)
PROGRESS_AGE = Metric(
    "conduit_progress_age_seconds",
    "gauge",
    PIPELINE,
    "For how long there have been records to settle and none has been. 0 if all are settled, so not idleness.",
)

LAGS = (LAG_RECORDS, LAG_BYTES, LAG_SECONDS)
TALLY = {
    "held": Metric("conduit_leases_held", "gauge", NODE, "Messages of a shared queue that this source keeps."),
    "extended": Metric(
        "conduit_leases_extended_total", "counter", NODE, "How often a lease on a message was extended."
    ),
    "lost": Metric(
        "conduit_leases_lost_total", "counter", NODE, "Leases that ended while the source worked on the message."
    ),
    "taken_over": Metric(
        "conduit_work_taken_over_total", "counter", NODE, "Pieces of work that another process had begun and left."
    ),
    "duplicates": Metric(
        "conduit_messages_duplicate_total",
        "counter",
        NODE,
        "Messages that a queue delivered though their work was done, or begun, already.",
    ),
    "unreadable": Metric(
        "conduit_messages_unreadable_total", "counter", NODE, "Messages of a queue that are not what they should be."
    ),
    "failed": Metric(
        "conduit_objects_failed_total", "counter", NODE, "Announced objects that could not be opened or read."
    ),
}
"""By the field of `Tally`."""
TAPS = Metric("conduit_inspector_sessions", "gauge", COMPONENT, "Taps that look at the node.", conduit=True)
TAP_DROPS = Metric(
    "conduit_inspector_dropped_records_total",
    "counter",
    COMPONENT,
    "Records that a tap sampled and nobody read in time.",
    conduit=True,
)

GROUPS: dict[str, tuple[Metric, ...]] = {
    "The process": (INFO, TASKS, THREADS),
    "The fleet": (PIPELINES, CONNECTORS, PROCESSORS),
    "A pipeline": (PIPELINE_STATUS, PIPELINE_DURATION, PROGRESS_AGE, RECOVERIES),
    "Dead letters": (DEAD_LETTERED, DLQ_DURATION, LETTERS, LETTERS_BYTES, REPLAYED),
    "A source": (READ, ACKED, IN_FLIGHT, WINDOW, OLDEST, CHECKPOINT_DURATION, *LAGS),
    "A source over a shared queue": tuple(TALLY.values()),
    "A processor": (PROCESSED, PROCESSOR_DURATION),
    "A destination": (WRITTEN, CONNECTOR_DURATION),
    "Any node": (BATCH_SIZE, FILTERED, NACKED, RETRIES, PERSIST_DURATION, QUEUE_DEPTH, WAITING, TAPS, TAP_DROPS),
}
"""In the order in which they are listed and served."""


def metrics() -> Iterator[Metric]:
    """All of them."""
    for group in GROUPS.values():
        yield from group


def series(metric: Metric) -> tuple[str, ...]:
    """The names under which Prometheus knows the metric."""
    if metric.kind != "histogram":
        return (metric.name,)
    return tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
