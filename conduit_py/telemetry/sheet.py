"""MetricsText: metrics being written down in the text format of Prometheus."""

from functools import cache

from conduit_py.stream.meter import Histogram
from conduit_py.telemetry.table import Metric, metrics


class MetricsText:
    """Takes values of the metrics of the table in any order, and gives them back as one text, family by family.

    The lines are written here and not by prometheus_client, which takes ten times as long: a fleet of
    200 pipelines has 40,000 lines, and nothing else runs meanwhile.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {metric.name: [] for metric in metrics()}

    def put(self, metric: Metric, labels: str, value: float) -> None:
        """Add one value. `labels` are as `labels_text` gives them."""
        braced = f"{{{labels}}}" if labels else ""
        self._lines[metric.name].append(f"{metric.name}{braced} {value}")

    def put_histogram(self, metric: Metric, labels: str, histogram: Histogram) -> None:
        """Add a histogram, in which every bucket holds those below it too."""
        lines, name = self._lines[metric.name], metric.name
        bucket = f'{name}_bucket{{{labels},le="'
        reached = 0
        for bound, count in zip(_bounds(histogram.bounds), histogram.counts, strict=True):
            reached += count
            lines.append(f"{bucket}{bound}{reached}")
        lines.append(f"{name}_sum{{{labels}}} {histogram.total}")
        lines.append(f"{name}_count{{{labels}}} {reached}")

    def text(self) -> str:
        """Everything so far, with what each metric means."""
        return "".join(self._family(metric) for metric in metrics())

    def _family(self, metric: Metric) -> str:
        meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
        head = f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n"
        lines = self._lines[metric.name]
        return head + "\n".join(lines) + "\n" if lines else head


def labels_text(**labels: str) -> str:
    """Labels as they stand between the braces."""
    return ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'{bound}"}} ' for bound in (*bounds, "+Inf"))
