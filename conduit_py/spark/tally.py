"""Tally: what the nodes of a pipeline counted on all executors together."""

from collections.abc import Mapping, Sequence
from copy import copy

from conduit_py.stream.meter import COUNTERS, Meter, NodeKind

SORTED_OUT = ("filtered", "refused")


class Tally:
    """The sums of what tasks report, each task once, however often Spark had to try it."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.held: set[str] = set()
        """The sources that give out nothing more until something of what they gave is acked."""

    def add(self, counts: Mapping[str, Sequence[int]]) -> None:
        for node, more in counts.items():
            before = self._counts.get(node, [0] * len(COUNTERS))
            self._counts[node] = [each + another for each, another in zip(before, more, strict=True)]

    def seen_by(self, node: str, kind: NodeKind, driver: Meter | None, *, end: bool) -> Meter:
        """What a node did in all. Of an end, which the driver has too, executors count what it sorts out."""
        meter = Meter(node, kind) if driver is None else copy(driver)
        for name, count in zip(COUNTERS, self._counts.get(node, ()), strict=False):
            if driver is None or not end or name in SORTED_OUT:
                setattr(meter, name, getattr(meter, name) + count)
        return meter
