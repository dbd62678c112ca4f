"""Every metric there is: declared once, with the function that reads its value.

To add one, declare it here; put it on a board (`*_boards.py`) if people should see it, and generate the reference page
again. Names that Conduit has too mean the same there, so that its dashboards and alerts go on working.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import trio

from conduit_py import __version__
from conduit_py.inspect.tap_point import TapPoint
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk import Lag, QueueCounts
from conduit_py.status import Status
from conduit_py.store.stored_letter import LetterState
from conduit_py.stream.meter import WAIT_REASONS, Meter, Progress, StateGauge
from conduit_py.telemetry.metric import Metric, MetricGroup, PipelineSample, ProcessSample

NODE = ("pipeline_name", "node")
COMPONENT = ("pipeline_name", "component_id")


def _kinds(fleet: Fleet) -> Counter[str]:
    return Counter(node.kind for member in fleet for node in member.graph.nodes.values())


def _processors(fleet: Fleet) -> Counter[str]:
    nodes = (node for member in fleet for node in member.graph.nodes.values())
    return Counter(node.label for node in nodes if node.kind == "processor")


def _statuses(fleet: Fleet) -> dict[str, float]:
    counts = Counter(member.state.status for member in fleet)
    return {status.value: counts[status] for status in Status}


def _waits(meter: Meter) -> dict[str, int]:
    """Each reason that a node of its kind may have, and whether it has it now."""
    # Without the details, which are for people: as labels they would be unbounded.
    waits = {wait.reason.value: 1 for wait in meter.waits}
    return {reason.value: 0 for reason in WAIT_REASONS[meter.kind]} | waits


PROCESS: MetricGroup[Fleet] = MetricGroup("The process")
INFO = PROCESS.gauge(
    "conduit_info",
    "Always 1; the version is in the label.",
    lambda _: {__version__: 1},
    own_label="version",
    conduit=True,
)
TASKS = PROCESS.gauge(
    "conduit_tasks", "Tasks that live in the event loop.", lambda _: trio.lowlevel.current_statistics().tasks_living
)
THREADS = PROCESS.gauge(
    "conduit_threads",
    "Threads of the process; connectors that block have their own.",
    lambda _: threading.active_count(),
)

FLEET: MetricGroup[Fleet] = MetricGroup("The fleet")
PIPELINES = FLEET.gauge(
    "conduit_pipelines", "How many pipelines have this status.", _statuses, own_label="status", conduit=True
)
CONNECTORS = FLEET.gauge(
    "conduit_connectors",
    "How many sources and destinations.",
    lambda fleet: {kind: _kinds(fleet)[kind] for kind in ("source", "destination")},
    own_label="type",
    conduit=True,
)
PROCESSORS = FLEET.gauge(
    "conduit_processors", "How many processors, by what they are.", _processors, own_label="type", conduit=True
)
FILE_PROBLEMS = FLEET.gauge(
    "conduit_file_problems",
    "Problems in the pipeline files: each keeps a definition from taking effect.",
    lambda fleet: len(fleet.problems),
)

EACH_PROCESS: MetricGroup[ProcessSample] = MetricGroup("Each process of a server, of which 0 is its own", ("process",))
EACH_PROCESS_CPU = EACH_PROCESS.counter(
    "conduit_process_cpu_seconds_total", "CPU time, from 0 again when it was lost.", lambda sample: sample.cpu_seconds
)
EACH_PROCESS_MEMORY = EACH_PROCESS.gauge(
    "conduit_process_resident_memory_bytes", "Memory that it holds.", lambda sample: sample.resident_bytes
)
EACH_PROCESS_FILES = EACH_PROCESS.gauge(
    "conduit_process_open_fds", "Open file descriptors.", lambda sample: sample.open_files
)
EACH_PROCESS_PIPELINES = EACH_PROCESS.gauge(
    "conduit_process_pipelines", "Pipelines that run in it now.", lambda sample: sample.pipelines
)

PIPELINE: MetricGroup[PipelineSample] = MetricGroup("A pipeline", ("pipeline_name",))
PIPELINE_STATUS = PIPELINE.gauge(
    "conduit_pipeline_status",
    "1 for the status that the pipeline has, 0 for the others. (Conduit has one series with a number per status.)",
    lambda sample: {status.value: int(status is sample.member.state.status) for status in Status},
    own_label="status",
)
PIPELINE_DURATION = PIPELINE.histogram(
    "conduit_pipeline_execution_duration_seconds",
    "From when a record was read until its source was notified that it is settled, acked or dead-lettered. "
    "The count is of records.",
    lambda sample: sample.settling,
    conduit=True,
)

PROGRESS: MetricGroup[Progress] = MetricGroup("A pipeline", ("pipeline_name",), part=lambda sample: sample.progress)
PROGRESS_AGE = PROGRESS.gauge(
    "conduit_progress_age_seconds",
    "For how long there have been records to settle and none has been. 0 if all are settled, so not idleness.",
    lambda progress: progress.stalled_seconds,
)
RECOVERIES = PROGRESS.counter(
    "conduit_recoveries_total",
    "How often the pipeline was started again after an error.",
    lambda progress: progress.recoveries,
)

CHANGES = PIPELINE.counter(
    "conduit_definition_changes_total",
    "How often a change of the pipeline's file took effect while the server ran.",
    lambda sample: sample.member.log.changes,
)

HANDLER: MetricGroup[Meter] = MetricGroup("Dead letters", ("pipeline_name",), part=lambda sample: sample.dead_letters)
DEAD_LETTERED = HANDLER.counter(
    "conduit_records_dead_lettered_total",
    "Dead letters that the handler took; a split record may have several.",
    lambda meter: meter.records,
)
DLQ_DURATION = HANDLER.histogram(
    "conduit_dlq_execution_duration_seconds",
    "One call of the dead-letter handler, which takes the letters of one commit.",
    lambda meter: meter.calls,
    labels=("pipeline_name", "plugin"),
    conduit=True,
)
REPLAYED = HANDLER.counter(
    "conduit_records_replayed_total", "Dead letters that were sent again and delivered.", lambda meter: meter.acked
)

DEAD_LETTERS: MetricGroup[PipelineSample] = MetricGroup("Dead letters", ("pipeline_name",))
LETTERS = DEAD_LETTERS.gauge(
    "conduit_dead_letters",
    "Dead letters in the journal: kept until somebody acts, or queued to be sent again.",
    lambda sample: {
        state.value: sample.letters[state].letters if state in sample.letters else 0 for state in LetterState
    },
    own_label="state",
)
LETTERS_BYTES = DEAD_LETTERS.gauge(
    "conduit_dead_letters_bytes",
    "What the dead letters in the journal take.",
    lambda sample: sum(count.bytes for count in sample.letters.values()),
)

SOURCE: MetricGroup[Meter] = MetricGroup("A source", NODE, ("source",))
READ = SOURCE.counter("conduit_records_read_total", "Records read from a source.", lambda meter: meter.records)
ACKED = SOURCE.counter(
    "conduit_records_acked_total",
    "Records whose position was saved and acked to the source, dead letters included.",
    lambda meter: meter.acked,
)
IN_FLIGHT = SOURCE.gauge(
    "conduit_in_flight_records", "Records of a source read and not yet settled.", lambda meter: meter.in_flight
)
WINDOW = SOURCE.gauge(
    "conduit_window_records", "How many records of a source may be in flight.", lambda meter: meter.window
)
OLDEST = SOURCE.gauge(
    "conduit_oldest_unsettled_seconds",
    "How long ago the oldest record of a source was read that is not settled; 0 if all are.",
    lambda meter: meter.oldest_seconds,
)
CHECKPOINT_DURATION = SOURCE.histogram(
    "conduit_checkpoint_duration_seconds",
    "What a source's commit took: to save its position and to tell it.",
    lambda meter: meter.checkpoints,
)

LAG: MetricGroup[Lag] = MetricGroup("A source", NODE, ("source",), part=lambda meter: meter.lag)
LAG_RECORDS = LAG.gauge(
    "conduit_source_lag_records",
    "Records that a source has not read yet; of sources that can say so.",
    attrgetter("records"),
)
LAG_PARTITION = LAG.gauge(
    "conduit_source_partition_lag_records",
    "The same for each partition of a source, such as those of a topic.",
    lambda lag: lag.partitions,
    own_label="partition",
)
LAG_BYTES = LAG.gauge(
    "conduit_source_lag_bytes", "Bytes that a source has not read yet; of sources that can say so.", attrgetter("bytes")
)
LAG_RETAINED = LAG.gauge(
    "conduit_source_retained_bytes",
    "What a source's system keeps for it, such as the log behind a replication slot.",
    lambda lag: lag.retained_bytes,
)
LAG_SECONDS = LAG.gauge(
    "conduit_source_lag_seconds",
    "The age of the oldest record that a source has not read yet; of sources that can say so.",
    lambda lag: lag.seconds,
)

QUEUE: MetricGroup[QueueCounts] = MetricGroup(
    "A source over a shared queue", NODE, ("source",), part=lambda meter: meter.queue_counts
)
LEASES_HELD = QUEUE.gauge(
    "conduit_leases_held", "Messages of a shared queue that this source keeps.", attrgetter("held")
)
LEASES_EXTENDED = QUEUE.counter(
    "conduit_leases_extended_total", "How often a lease on a message was extended.", attrgetter("extended")
)
LEASES_LOST = QUEUE.counter(
    "conduit_leases_lost_total", "Leases that ended while the source worked on the message.", attrgetter("lost")
)
WORK_TAKEN_OVER = QUEUE.counter(
    "conduit_work_taken_over_total", "Pieces of work that another process had begun and left.", attrgetter("taken_over")
)
MESSAGES_DUPLICATE = QUEUE.counter(
    "conduit_messages_duplicate_total",
    "Messages that a queue delivered though their work was done, or begun, already.",
    lambda counts: counts.duplicates,
)
MESSAGES_UNREADABLE = QUEUE.counter(
    "conduit_messages_unreadable_total", "Messages of a queue that could not be parsed.", attrgetter("unreadable")
)
OBJECTS_FAILED = QUEUE.counter(
    "conduit_objects_failed_total", "Announced objects that could not be opened or read.", attrgetter("failed")
)

PROCESSOR: MetricGroup[Meter] = MetricGroup("A processor", NODE, ("processor",))
PROCESSED = PROCESSOR.counter(
    "conduit_records_processed_total", "Records given to a processor.", lambda meter: meter.records
)
PROCESSOR_DURATION = PROCESSOR.histogram(
    "conduit_processor_execution_duration_seconds",
    "A processor's work on one batch, once per attempt, pauses between attempts excluded.",
    lambda meter: meter.calls,
    labels=("pipeline_name", "processor", "component_id"),
    conduit=True,
)

STATE: MetricGroup[StateGauge] = MetricGroup("A processor", NODE, ("processor",), part=lambda meter: meter.state)
STATE_KEYS = STATE.gauge("conduit_state_keys", "Keys in the state of a processor.", attrgetter("keys"))
STATE_BYTES = STATE.gauge("conduit_state_bytes", "Keys and values of that state, in bytes.", attrgetter("bytes"))
STATE_CACHED_KEYS = STATE.gauge(
    "conduit_state_cached_keys", "Keys of that state that are in memory.", attrgetter("cached")
)
STATE_READS = STATE.counter(
    "conduit_state_reads_total", "Keys of that state that were not in memory, and read.", attrgetter("reads")
)
WATERMARK = STATE.gauge(
    "conduit_watermark_timestamp_seconds", "Up to which time of records a window is whole.", attrgetter("watermark")
)

DESTINATION: MetricGroup[Meter] = MetricGroup("A destination", NODE, ("destination",))
WRITTEN = DESTINATION.counter(
    "conduit_records_written_total", "Records accepted by a destination.", lambda meter: meter.records
)
CONNECTOR_DURATION = DESTINATION.histogram(
    "conduit_connector_execution_duration_seconds",
    "One call of a destination's write, which takes a batch; also calls that failed.",
    lambda meter: meter.calls,
    labels=("pipeline_name", "plugin", "type", "component_id"),
    conduit=True,
)

ANY_NODE: MetricGroup[Meter] = MetricGroup("Any node", NODE, ("source", "processor", "destination"))
BATCH_SIZE = ANY_NODE.histogram(
    "conduit_batch_records",
    "Records read, processed or written at once. The count is of batches.",
    lambda meter: meter.batch_sizes,
)
FILTERED = ANY_NODE.counter(
    "conduit_records_filtered_total",
    "Records that a processor filtered out, or that the condition of a destination sent elsewhere.",
    lambda meter: meter.filtered,
    nodes=("processor", "destination"),
)
UNWANTED = ANY_NODE.counter(
    "conduit_records_unwanted_total",
    "Records of the source that the conditions of all destinations refused. Not counted on Spark.",
    lambda meter: meter.unwanted,
    nodes=("source",),
)
NACKED = ANY_NODE.counter("conduit_records_nacked_total", "Records that the node refused.", lambda meter: meter.refused)
RETRIES = ANY_NODE.counter(
    "conduit_retries_total",
    "Attempts after the first, by the retry policy of the node.",
    lambda meter: meter.retries,
    nodes=("processor", "destination"),
)
DRIFT = ANY_NODE.counter(
    "conduit_schema_drift_total",
    "Records that schema.validate found to drift, and values that a destination left out. Not counted on Spark.",
    lambda meter: meter.drifted,
    nodes=("processor", "destination"),
)
PERSIST_DURATION = ANY_NODE.histogram(
    "conduit_persist_duration_seconds",
    "What it took to make records durable: a destination's flush, or the save of a source's position in the store.",
    lambda meter: meter.persists,
    nodes=("source", "destination"),
)
QUEUE_DEPTH = ANY_NODE.gauge(
    "conduit_queue_depth_batches",
    "Batches that wait before a node which begins a task of its own.",
    lambda meter: meter.queued,
    nodes=("processor", "destination"),
)
WAITING = ANY_NODE.gauge(
    "conduit_waiting",
    "1 while the node waits for this, else 0: the average over time is the share of time that it waited.",
    _waits,
    own_label="reason",
    nodes=("source", "processor", "destination", "dead_letters"),
)

TAP: MetricGroup[TapPoint] = MetricGroup("Any node", COMPONENT)
TAPS = TAP.gauge(
    "conduit_inspector_sessions", "Taps that look at the node.", lambda point: len(point.taps), conduit=True
)
TAP_DROPS = TAP.counter(
    "conduit_inspector_dropped_records_total",
    "Records that a tap sampled and nobody read in time.",
    lambda point: point.dropped,
    conduit=True,
)

NODE_GROUPS: tuple[MetricGroup[Any], ...] = (SOURCE, LAG, QUEUE, PROCESSOR, STATE, DESTINATION, ANY_NODE)
FLEET_GROUPS: tuple[MetricGroup[Fleet], ...] = (PROCESS, FLEET)
PIPELINE_GROUPS: tuple[MetricGroup[Any], ...] = (PIPELINE, PROGRESS, HANDLER, DEAD_LETTERS)
GROUPS: tuple[MetricGroup[Any], ...] = (*FLEET_GROUPS, EACH_PROCESS, *PIPELINE_GROUPS, *NODE_GROUPS, TAP)
"""In the order in which they are listed and served."""


def all_metrics() -> Iterator[Metric]:
    for group in GROUPS:
        yield from group.metrics
