"""What a metric is: its name, kind, labels and meaning, and the function that reads its value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from conduit_py.stream.meter import Histogram, NodeKind

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
        """The names under which Prometheus knows the metric."""
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
