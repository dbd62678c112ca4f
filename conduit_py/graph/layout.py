"""Diagram: the boxes and arrows of a graph and their layout, for every format."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from conduit_py.graph.node import Graph, Kind
from conduit_py.pipeline import DeadLetters


@dataclass(frozen=True)
class Box:
    """A node of the diagram."""

    id: str
    kind: Kind
    label: str
    inputs: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The text below the id: the kind, and the plugin unless it is named like the id."""
        return self.kind if self.label == self.id else f"{self.kind} · {self.label}"


@dataclass(frozen=True)
class Diagram:
    """Boxes in topological order, and what handles the records that they refuse.

    The dead-letter handler is not a box: records do not flow there as part of the pipeline, so it is drawn as an
    edge of its own kind.
    """

    title: str
    boxes: tuple[Box, ...]
    dead_letters: str

    @classmethod
    def of(cls, graph: Graph) -> "Diagram":
        boxes = tuple(Box(node.id, node.kind, node.label, tuple(node.inputs)) for node in graph.nodes.values())
        return cls(graph.pipeline.id, boxes, _dead_letters(graph.pipeline.dead_letters))


@dataclass(eq=False)
class Slot:
    """A place in a layer: a box, or a bend of an arrow that crosses this layer."""

    box: Box | None
    inputs: list["Slot"] = field(default_factory=list)
    outputs: list["Slot"] = field(default_factory=list)


def printable(text: str) -> str:
    """Return the text without control characters."""
    # A name from a file could otherwise move the cursor of a terminal, or make XML that no reader accepts.
    return "".join(char if char.isprintable() else "�" for char in text)


def layers_of(diagram: Diagram) -> list[list[Slot]]:
    """Return the slots by layer, ordered for few crossings. Every arrow leads from one layer to the next."""
    layers = _connected_slots(diagram)
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    # Four rounds: more hardly ever help, and a pipeline of hundreds of nodes must be drawn at once.
    for _ in range(4):
        for layer, upper in zip(layers[1:], layers, strict=False):
            _sort_by_neighbours(layer, upper, lambda slot: slot.inputs)
        for layer, lower in zip(layers[-2::-1], layers[:0:-1], strict=False):
            _sort_by_neighbours(layer, lower, lambda slot: slot.outputs)
        if _crossings(layers) < fewest:
            best, fewest = [list(layer) for layer in layers], _crossings(layers)
    return best


def centers_of(layers: Sequence[Sequence[Slot]], size: Callable[[Slot], int], gap: int) -> dict[Slot, int]:
    """Return the centre of each slot in its layer: close to its neighbours, with `gap` between slots."""
    centers: dict[Slot, float] = {}
    for layer in layers:
        centers.update(_spread(layer, [0.0] * len(layer), size, gap))
    for _ in range(4):
        for layer in layers[1:]:
            centers.update(_spread(layer, [_mean(slot.inputs, centers, slot) for slot in layer], size, gap))
        for layer in layers[-2::-1]:
            centers.update(_spread(layer, [_mean(slot.outputs, centers, slot) for slot in layer], size, gap))
    start = min((int(center // 1) - size(slot) // 2 for slot, center in centers.items()), default=0)
    return {slot: int(center // 1) - start for slot, center in centers.items()}


def _connected_slots(diagram: Diagram) -> list[list[Slot]]:
    depth: dict[str, int] = {}
    for box in diagram.boxes:
        depth[box.id] = max((depth[upper] + 1 for upper in box.inputs), default=0)
    layers: list[list[Slot]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    slots: dict[str, Slot] = {}
    for box in diagram.boxes:
        slots[box.id] = Slot(box)
        layers[depth[box.id]].append(slots[box.id])
    for box in diagram.boxes:
        for upper in box.inputs:
            _connect(slots[upper], slots[box.id], layers[depth[upper] + 1 : depth[box.id]])
    return layers


def _connect(upper: Slot, lower: Slot, between: Sequence[list[Slot]]) -> None:
    for layer in between:
        bend = Slot(None)
        layer.append(bend)
        _join(upper, bend)
        upper = bend
    _join(upper, lower)


def _join(upper: Slot, lower: Slot) -> None:
    upper.outputs.append(lower)
    lower.inputs.append(upper)


def _sort_by_neighbours(layer: list[Slot], other: Sequence[Slot], neighbours: Callable[[Slot], list[Slot]]) -> None:
    place = {slot: float(index) for index, slot in enumerate(other)}
    own = {slot: float(index) for index, slot in enumerate(layer)}
    layer.sort(key=lambda slot: _mean(neighbours(slot), place, slot) if neighbours(slot) else own[slot])


def _mean(neighbours: Sequence[Slot], place: dict[Slot, float], slot: Slot) -> float:
    return sum(place[each] for each in neighbours) / len(neighbours) if neighbours else place[slot]


def _crossings(layers: Sequence[Sequence[Slot]]) -> int:
    return sum(_crossings_between(upper, lower) for upper, lower in itertools.pairwise(layers))


def _crossings_between(upper: Sequence[Slot], lower: Sequence[Slot]) -> int:
    place = {slot: index for index, slot in enumerate(lower)}
    ends = [(left, place[slot]) for left, each in enumerate(upper) for slot in each.outputs]
    return sum(a < c and b > d for a, b in ends for c, d in ends)


def _spread(
    layer: Sequence[Slot], wanted: Sequence[float], size: Callable[[Slot], int], gap: int
) -> Iterator[tuple[Slot, float]]:
    """Return the centres nearest to the wanted ones, by least squares, that keep order and distance."""
    offsets = [0]
    for left, right in itertools.pairwise(layer):
        offsets.append(offsets[-1] + size(left) - size(left) // 2 + gap + size(right) // 2)
    # Without their offsets the centres must not decrease, so those that do are pooled at their mean.
    pools: list[tuple[float, int]] = []
    for value, offset in zip(wanted, offsets, strict=True):
        pools.append((value - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, n), (a, m) = pools.pop(), pools.pop()
            pools.append(((a * m + b * n) / (m + n), m + n))
    pooled = [value for value, count in pools for _ in range(count)]
    return zip(layer, (value + offset for value, offset in zip(pooled, offsets, strict=True)), strict=True)


def _dead_letters(dead_letters: DeadLetters) -> str:
    settings = dead_letters.settings
    limit = f", at most {settings.window_nack_threshold} of the last {settings.window_size}"
    return f"dead letters: {dead_letters.policy.label}" + (limit if settings.window_size else "")
