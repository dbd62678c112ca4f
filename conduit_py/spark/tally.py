"""Tally: what the processors of a pipeline counted on all executors together."""

from collections.abc import Mapping, Sequence

from conduit_py.stream.meter import COUNTERS, Meter


class Tally:
    """The sums of what tasks report, each task once, however often Spark had to try it."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def add(self, counts: Mapping[str, Sequence[int]]) -> None:
        for node, more in counts.items():
            before = self._counts.get(node, [0] * len(COUNTERS))
            self._counts[node] = [each + another for each, another in zip(before, more, strict=True)]

    def meter(self, node: str) -> Meter:
        """The counters of a processor as a meter."""
        meter = Meter(node, "processor")
        for name, count in zip(COUNTERS, self._counts.get(node, ()), strict=False):
            setattr(meter, name, count)
        return meter
