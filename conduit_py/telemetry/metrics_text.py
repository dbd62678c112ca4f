"""The metrics of a fleet, read when they are asked for: as text for Prometheus, or as data points for OTLP."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, generate_latest

from conduit_py import __version__
from conduit_py.child.supervisor import shared_processes
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.fleet import Fleet, Member
from conduit_py.store.stored_letter import LetterCount, LetterState
from conduit_py.stream.meter import Histogram, Meter, NodeKind, Progress
from conduit_py.telemetry import metrics
from conduit_py.telemetry.metric import Metric, PipelineSample, ProcessSample, Reading

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of `metrics_text`."""

FLEET_METRICS = [metric for group in metrics.FLEET_GROUPS for metric in group.metrics]
PIPELINE_METRICS = [metric for group in metrics.PIPELINE_GROUPS for metric in group.metrics]
NODE_KINDS: tuple[NodeKind, ...] = ("source", "processor", "destination", "dead_letters")
NODE_METRICS = {
    kind: [metric for group in metrics.NODE_GROUPS for metric in group.metrics if kind in metric.nodes]
    for kind in NODE_KINDS
}


def metrics_text(fleet: Fleet) -> bytes:
    """Everything known about the fleet and its process at this instant, in the text format of Prometheus.

    Call it in the event loop in which the fleet runs. What processors and connectors registered with
    prometheus_client on their own is part of it.
    """
    text = MetricsText()
    collect(fleet, text)
    return text.text().encode() + generate_latest(REGISTRY)


def collect(fleet: Fleet, text: "MetricsSink") -> None:
    """Read every metric. Nothing else runs before it returns, so all values are of one instant."""
    # Nothing is awaited below, or counters of one scrape would be of different moments.
    text.add(FLEET_METRICS, fleet, {})
    _add_processes(text, fleet)
    letters: dict[str, dict[LetterState, LetterCount]] = {}
    for count in fleet.letters.store.counts:
        letters.setdefault(count.pipeline, {})[count.state] = count
    for member in fleet:
        _add_pipeline(text, member, letters.get(member.pipeline.id, {}))


def _add_processes(text: "MetricsSink", fleet: Fleet) -> None:
    children = shared_processes(member.supervisor for member in fleet)
    elsewhere = sum(child.runs for child in children.values())
    # Not on Spark, whose pipelines have processes that are gone with them.
    running = sum(member.running and member.pipeline.spark is None for member in fleet)
    samples = {0: ProcessSample.of(os.getpid(), max(running - elsewhere, 0))}
    samples |= {number: ProcessSample.of(child.pid, child.runs) for number, child in children.items()}
    for number, sample in samples.items():
        text.add(metrics.EACH_PROCESS.metrics, sample, {"process": str(number)})


def _add_pipeline(text: "MetricsSink", member: Member, letters: Mapping[LetterState, LetterCount]) -> None:
    name, progress = member.pipeline.id, member.progress()
    sample = PipelineSample(member, progress, letters)
    policy = member.pipeline.dead_letters.policy
    text.add(PIPELINE_METRICS, sample, {"pipeline_name": name, "plugin": policy.label})
    for node in member.graph.nodes:
        text.add(metrics.TAP.metrics, member.taps.point(node), {"pipeline_name": name, "component_id": node})
    if progress is not None:
        add_nodes(text, member.graph, progress)


def add_nodes(text: "MetricsSink", graph: Graph, progress: Progress) -> None:
    """Read the metrics of the nodes of one pipeline."""
    for meter in progress.nodes:
        text.add(NODE_METRICS[meter.kind], meter, _node_labels(graph.pipeline.id, graph, meter))


def _node_labels(pipeline: str, graph: Graph, meter: Meter) -> dict[str, str]:
    # A pipeline that was replaced may still have meters of nodes it no longer has.
    node = graph.nodes.get(meter.node)
    plugin = node.label if node is not None else ""
    return {
        "pipeline_name": pipeline,
        "node": meter.node,
        "component_id": meter.node,
        "plugin": plugin,
        "processor": plugin,
        "type": meter.kind,
    }


class MetricsSink(Protocol):
    """Takes values of metrics in any order."""

    def add(self, declared: Iterable[Metric], subject: object, labels: Mapping[str, str]) -> None:
        """Read the metrics from a subject. `labels` has the value of every label that follows from the subject."""
        ...


class MetricsText:
    """Takes values of the declared metrics in any order, and returns them as one text, family by family."""

    # Not with prometheus_client, which takes ten times as long: 200 pipelines have 40,000 lines, and the event loop
    # stands still while they are written.
    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {metric.name: [] for metric in metrics.all_metrics()}

    def add(self, declared: Iterable[Metric], subject: object, labels: Mapping[str, str]) -> None:
        """Read the metrics from a subject. `labels` has the value of every label that follows from the subject."""
        texts: dict[tuple[str, ...], str] = {}
        for metric in declared:
            names = metric.labels[:-1] if metric.own_label else metric.labels
            # Most metrics of a node share their labels, and escaping them is most of the work.
            if names not in texts:
                texts[names] = labels_text({name: labels[name] for name in names})
            self.put(metric, texts[names], metric.read(subject))

    def put(self, metric: Metric, labels: str, reading: Reading) -> None:
        """Add what was read of one metric. `labels` are as `labels_text` returns them."""
        if reading is None:
            return
        if isinstance(reading, Histogram):
            self._put_histogram(metric, labels, reading)
        elif isinstance(reading, Mapping):
            for value, number in reading.items():
                own = labels_text({metric.own_label or "": value})
                self._put_number(metric, f"{labels},{own}" if labels else own, number)
        else:
            self._put_number(metric, labels, reading)

    def text(self) -> str:
        """Everything so far, with what each metric means."""
        return "".join(self._family(metric) for metric in metrics.all_metrics())

    def _put_number(self, metric: Metric, labels: str, value: float) -> None:
        braced = f"{{{labels}}}" if labels else ""
        self._lines[metric.name].append(f"{metric.name}{braced} {value}")

    def _put_histogram(self, metric: Metric, labels: str, histogram: Histogram) -> None:
        lines, name = self._lines[metric.name], metric.name
        bucket = f'{name}_bucket{{{labels},le="'
        # In this format every bucket also counts the values of those below it.
        reached = 0
        for bound, count in zip(_bounds(histogram.bounds), histogram.counts, strict=True):
            reached += count
            lines.append(f"{bucket}{bound}{reached}")
        lines.append(f"{name}_sum{{{labels}}} {histogram.total}")
        lines.append(f"{name}_count{{{labels}}} {reached}")

    def _family(self, metric: Metric) -> str:
        meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
        head = f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n"
        lines = self._lines[metric.name]
        return head + "\n".join(lines) + "\n" if lines else head


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand between the braces."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    # Backslashes first, or those that the other two add would be doubled.
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'{bound}"}} ' for bound in (*bounds, "+Inf"))


class OtlpMetrics:
    """Takes values of metrics, and returns them as the data of an export, with the names that Prometheus has."""

    def __init__(self, started_ns: int) -> None:
        self._points: dict[str, tuple[Metric, list[Any]]] = {}
        self._times: dict[str, Any] = {"start_time_unix_nano": started_ns, "time_unix_nano": time.time_ns()}

    def add(self, declared: Iterable[Metric], subject: object, labels: Mapping[str, str]) -> None:
        """See MetricsSink."""
        for metric in declared:
            reading = metric.read(subject)
            names = metric.labels[:-1] if metric.own_label else metric.labels
            self._put(metric, {name: labels[name] for name in names}, reading)

    def _put(self, metric: Metric, labels: dict[str, str], reading: Reading) -> None:
        from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

        points = self._points.setdefault(metric.name, (metric, []))[1]
        if isinstance(reading, Histogram):
            # Of the values it is not known which was the smallest and the largest: OTLP has no number then.
            numbers: dict[str, Any] = {"count": reading.count, "sum": reading.total, "min": None, "max": None}
            buckets: dict[str, Any] = {"bucket_counts": reading.counts.copy(), "explicit_bounds": reading.bounds}
            points.append(HistogramDataPoint(labels, **self._times, **numbers, **buckets))
        elif isinstance(reading, Mapping):
            own = metric.own_label or ""
            points += [NumberDataPoint({**labels, own: each}, **self._times, value=n) for each, n in reading.items()]
        elif reading is not None:
            points.append(NumberDataPoint(labels, **self._times, value=reading))

    def data(self, resource: "Resource") -> "MetricsData":
        """Everything so far."""
        from opentelemetry.sdk.metrics import export as otlp
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        total = otlp.AggregationTemporality.CUMULATIVE
        kinds: dict[str, Callable[[list[Any]], Any]] = {
            "counter": lambda points: otlp.Sum(points, total, is_monotonic=True),
            "histogram": lambda points: otlp.Histogram(points, total),
            "gauge": otlp.Gauge,
        }
        families = [
            otlp.Metric(metric.name, metric.meaning, metric.unit.replace("-", "1"), kinds[metric.kind](points))
            for metric, points in self._points.values()
            if points
        ]
        scope = otlp.ScopeMetrics(InstrumentationScope("conduit_py", __version__), families, "")
        return otlp.MetricsData([otlp.ResourceMetrics(resource, [scope], "")])
