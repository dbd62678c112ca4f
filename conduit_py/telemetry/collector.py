"""Collecting the metrics of a fleet when somebody asks for them."""

import threading
from collections import Counter
from collections.abc import Sequence

import trio

from conduit_py import __version__
from conduit_py.graph.node import Graph, connector_label
from conduit_py.inspect.tap import TapPoint
from conduit_py.lifecycle.fleet import Fleet, Member
from conduit_py.sdk.destination import DestinationConnector
from conduit_py.status import Status
from conduit_py.store.letter_table import LetterCount
from conduit_py.store.stored_letter import LetterState
from conduit_py.stream.meter import Meter, Progress
from conduit_py.telemetry import table
from conduit_py.telemetry.sheet import MetricsText, labels_text
from conduit_py.telemetry.waiting import waits_of


def collect(fleet: Fleet) -> MetricsText:
    """Read the meters of every pipeline; nobody does anything for metrics in between.

    Must be called in the event loop in which the fleet runs. Nothing else happens before it returns,
    so all values are of one instant.
    """
    sheet = MetricsText()
    sheet.put(table.INFO, labels_text(version=__version__), 1)
    sheet.put(table.TASKS, "", trio.lowlevel.current_statistics().tasks_living)
    sheet.put(table.THREADS, "", threading.active_count())
    members = list(fleet)
    _add_fleet(sheet, members)
    _add_letters(sheet, members, fleet.letters.box.counts)
    for member in members:
        _add_member(sheet, member)
    return sheet


def _add_fleet(sheet: MetricsText, members: Sequence[Member]) -> None:
    statuses = Counter(member.state.status for member in members)
    nodes = [node for member in members for node in member.graph.nodes.values()]
    kinds = Counter(node.kind for node in nodes)
    for status in Status:
        sheet.put(table.PIPELINES, labels_text(status=status.value), statuses[status])
    sheet.put(table.CONNECTORS, labels_text(type="source"), kinds["source"])
    sheet.put(table.CONNECTORS, labels_text(type="destination"), kinds["destination"])
    for label, count in Counter(node.label for node in nodes if node.kind == "processor").items():
        sheet.put(table.PROCESSORS, labels_text(type=label), count)


def _add_letters(sheet: MetricsText, members: Sequence[Member], counts: Sequence[LetterCount]) -> None:
    """The letters of every pipeline, as last counted; none is 0."""
    counted = {(tally.pipeline, tally.state): tally for tally in counts}
    for member in members:
        name, size = member.pipeline.id, 0
        for state in LetterState:
            tally = counted.get((name, state))
            labels = labels_text(pipeline_name=name, state=state.value)
            sheet.put(table.LETTERS, labels, tally.letters if tally else 0)
            size += tally.bytes if tally else 0
        sheet.put(table.LETTERS_BYTES, labels_text(pipeline_name=name), size)


def _add_member(sheet: MetricsText, member: Member) -> None:
    name, present = member.pipeline.id, member.state.status
    for status in Status:
        sheet.put(table.PIPELINE_STATUS, labels_text(pipeline_name=name, status=status.value), int(status is present))
    for node in member.graph.nodes:
        _add_taps(sheet, name, node, member.taps.point(node))
    progress = member.progress()
    if progress is not None:
        _add_progress(sheet, name, progress)
        for meter in progress.nodes:
            _add_meter(sheet, name, member.graph, meter)


def _add_taps(sheet: MetricsText, name: str, node: str, point: TapPoint) -> None:
    labels = labels_text(pipeline_name=name, component_id=node)
    sheet.put(table.TAPS, labels, len(point.taps))
    sheet.put(table.TAP_DROPS, labels, point.dropped)


def _add_progress(sheet: MetricsText, name: str, progress: Progress) -> None:
    labels = labels_text(pipeline_name=name)
    sheet.put(table.PROGRESS_AGE, labels, progress.stalled_seconds)
    sheet.put(table.RECOVERIES, labels, progress.recoveries)
    settling = None
    for meter in progress.nodes:
        if meter.kind == "source":
            settling = meter.settling.plus(settling)
    if settling is not None:
        sheet.put_histogram(table.PIPELINE_DURATION, labels, settling)


def _add_meter(sheet: MetricsText, name: str, graph: Graph, meter: Meter) -> None:
    labels = labels_text(pipeline_name=name, node=meter.node)
    for reason, waits in waits_of(meter).items():
        sheet.put(table.WAITING, f'{labels},reason="{reason}"', int(waits))
    if meter.kind == "dead_letters":
        _add_dead_letters(sheet, name, graph, meter)
        return
    sheet.put_histogram(table.BATCH_SIZE, labels, meter.batch_sizes)
    sheet.put(table.NACKED, labels, meter.refused)
    if meter.kind == "source":
        _add_source(sheet, labels, meter)
        return
    sheet.put(table.FILTERED, labels, meter.filtered)
    sheet.put(table.RETRIES, labels, meter.retries)
    sheet.put(table.QUEUE_DEPTH, labels, meter.queued)
    if meter.kind == "processor":
        _add_processor(sheet, name, graph, meter, labels)
    else:
        _add_destination(sheet, name, graph, meter, labels)


def _add_source(sheet: MetricsText, labels: str, meter: Meter) -> None:
    sheet.put(table.READ, labels, meter.records)
    sheet.put(table.ACKED, labels, meter.acked)
    sheet.put(table.IN_FLIGHT, labels, meter.in_flight)
    sheet.put(table.WINDOW, labels, meter.window)
    sheet.put(table.OLDEST, labels, meter.oldest_seconds)
    sheet.put_histogram(table.PERSIST_DURATION, labels, meter.persists)
    sheet.put_histogram(table.CHECKPOINT_DURATION, labels, meter.checkpoints)
    if meter.lag is not None:
        for metric, lag in zip(table.LAGS, (meter.lag.records, meter.lag.bytes, meter.lag.seconds), strict=True):
            if lag is not None:
                sheet.put(metric, labels, lag)
    if meter.tally is not None:
        for name, metric in table.TALLY.items():
            sheet.put(metric, labels, getattr(meter.tally, name))


def _add_processor(sheet: MetricsText, name: str, graph: Graph, meter: Meter, labels: str) -> None:
    sheet.put(table.PROCESSED, labels, meter.records)
    conduits = labels_text(pipeline_name=name, processor=_plugin(graph, meter), component_id=meter.node)
    sheet.put_histogram(table.PROCESSOR_DURATION, conduits, meter.calls)


def _add_destination(sheet: MetricsText, name: str, graph: Graph, meter: Meter, labels: str) -> None:
    sheet.put(table.WRITTEN, labels, meter.records)
    sheet.put_histogram(table.PERSIST_DURATION, labels, meter.persists)
    plugin = _plugin(graph, meter)
    conduits = labels_text(pipeline_name=name, plugin=plugin, type="destination", component_id=meter.node)
    sheet.put_histogram(table.CONNECTOR_DURATION, conduits, meter.calls)


def _add_dead_letters(sheet: MetricsText, name: str, graph: Graph, meter: Meter) -> None:
    sheet.put(table.DEAD_LETTERED, labels_text(pipeline_name=name), meter.records)
    sheet.put(table.REPLAYED, labels_text(pipeline_name=name), meter.acked)
    sheet.put_histogram(table.DLQ_DURATION, labels_text(pipeline_name=name, plugin=_handler_label(graph)), meter.calls)


def _plugin(graph: Graph, meter: Meter) -> str:
    """What does the node's work. A pipeline that was replaced may still have meters of nodes it no longer has."""
    node = graph.nodes.get(meter.node)
    return node.label if node is not None else ""


def _handler_label(graph: Graph) -> str:
    handler = graph.pipeline.dead_letters.handler
    if isinstance(handler, DestinationConnector):
        return connector_label(handler)
    return handler if isinstance(handler, str) else getattr(handler, "__name__", type(handler).__name__)
