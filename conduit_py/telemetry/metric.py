"""What a metric is: its name, kind, labels and meaning, and the function that reads its value from a sample."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from prometheus_client import ProcessCollector

from conduit_py.lifecycle.fleet import Member
from conduit_py.store.stored_letter import LetterCount, LetterState
from conduit_py.stream.meter import Histogram, Meter, NodeKind, Progress

MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]

Reading: TypeAlias = float | Histogram | Mapping[str, float] | None
"""A number, a histogram, or a number for each value of the metric's own label. None: there is nothing to report."""

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Metric:
    """One family of time series."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    read: Callable[[Any], Reading]
    """Called with the subject of the metric's group while nothing else runs, so it must not block."""
    own_label: str | None = None
    """The label whose values `read` returns as keys; the values of the others follow from the subject."""
    nodes: tuple[NodeKind, ...] = ()
    """Which kinds of nodes have it, for the metrics of nodes."""
    conduit: bool = False
    """True if Conduit has it, under the same name and with the same meaning."""

    @property
    def unit(self) -> str:
        stem = self.name.removesuffix("_total")
        for unit in ("seconds", "records", "batches", "bytes"):
            if stem.endswith(f"_{unit}"):
                return unit
        return "records" if stem.startswith("conduit_records_") else "-"

    @property
    def series(self) -> tuple[str, ...]:
        """The names of the metric in Prometheus."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


@dataclass(frozen=True)
class MetricGroup(Generic[Subject]):
    """Metrics that are read from the same subject and have the same labels, unless a metric says otherwise."""

    title: str
    labels: tuple[str, ...] = ()
    nodes: tuple[NodeKind, ...] = ()
    part: Callable[[Any], Subject | None] | None = None
    """What the metrics are read from, if that is only a part of the sample, which may be missing."""
    metrics: list[Metric] = field(default_factory=list)

    def gauge(
        self,
        name: str,
        meaning: str,
        read: Callable[[Subject], Reading],
        *,
        own_label: str | None = None,
        nodes: tuple[NodeKind, ...] = (),
        conduit: bool = False,
    ) -> Metric:
        """A number that goes up and down; one for each value of `own_label`, if there is one."""
        labels = (*self.labels, own_label) if own_label else self.labels
        return self._add(name, "gauge", labels, meaning, read, own_label, nodes, conduit)

    def counter(
        self,
        name: str,
        meaning: str,
        read: Callable[[Subject], Reading],
        *,
        nodes: tuple[NodeKind, ...] = (),
        conduit: bool = False,
    ) -> Metric:
        """A number that only grows."""
        return self._add(name, "counter", self.labels, meaning, read, None, nodes, conduit)

    def histogram(
        self,
        name: str,
        meaning: str,
        read: Callable[[Subject], Histogram | None],
        *,
        labels: tuple[str, ...] = (),
        nodes: tuple[NodeKind, ...] = (),
        conduit: bool = False,
    ) -> Metric:
        """A histogram; `labels` are those that Conduit gives it, where they differ from the group's."""
        return self._add(name, "histogram", labels or self.labels, meaning, read, None, nodes, conduit)

    def _add(
        self,
        name: str,
        kind: MetricKind,
        labels: tuple[str, ...],
        meaning: str,
        read: Callable[[Subject], Reading],
        own_label: str | None,
        nodes: tuple[NodeKind, ...],
        conduit: bool,
    ) -> Metric:
        part = self.part

        def read_part(sample: Any) -> Reading:
            assert part is not None
            # Read once for each metric: parts are attributes or short loops, and a cache would outlive the sample.
            subject = part(sample)
            return None if subject is None else read(subject)

        reader = read if part is None else read_part
        metric = Metric(name, kind, labels, meaning, reader, own_label, nodes or self.nodes, conduit)
        self.metrics.append(metric)
        return metric


@dataclass(frozen=True)
class PipelineSample:
    """A pipeline at the moment at which its metrics are read."""

    member: Member
    progress: Progress | None
    """None before its first run in this process."""
    letters: Mapping[LetterState, LetterCount]
    """Its dead letters as last counted; a state without any is missing."""

    @property
    def dead_letters(self) -> Meter | None:
        """The meter of its dead-letter handler."""
        nodes = self.progress.nodes if self.progress else ()
        return next((meter for meter in nodes if meter.kind == "dead_letters"), None)

    @property
    def settling(self) -> Histogram | None:
        """How long records took from read to settled, over all its sources."""
        total = None
        for meter in self.progress.nodes if self.progress else ():
            if meter.kind == "source":
                total = meter.settling.plus(total)
        return total


@dataclass(frozen=True)
class ProcessSample:
    """A process of a server at that moment. What the system does not tell is None."""

    pipelines: int
    cpu_seconds: float | None
    resident_bytes: float | None
    open_files: float | None

    @classmethod
    def of(cls, pid: int, pipelines: int) -> "ProcessSample":
        found = ProcessCollector(pid=lambda: pid, registry=None).collect()
        seen = {sample.name: sample.value for metric in found for sample in metric.samples}
        names = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds")
        return cls(pipelines, *map(seen.get, names))
