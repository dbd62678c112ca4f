"""Diagram: the boxes and arrows of a graph and their layout for every format, and the SVG file."""

import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

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


_HEIGHT = 56
_GAP_X = 72
_GAP_Y = 28
_MARGIN = 40
_TITLE = 44
_STUB = 18
"""The distance of the dashed line of refused records from its layer."""

_HEADING, _ID, _CAPTION = 10.5, 8.4, 6.6
"""The width of a character of each kind of text."""

_STYLE = """
    svg { --page: #ffffff; --box: #ffffff; --ink: #1b2330; --soft: #5d6b7e; --line: #8a97a8; --edge: #c5cedb;
          --source: #2f6fdb; --processor: #7a5bd0; --destination: #1f8f63; --dead: #c8453b; }
    @media (prefers-color-scheme: dark) {
      svg { --page: #12161d; --box: #1b212b; --ink: #e6ebf2; --soft: #98a5b8; --line: #66738a; --edge: #303948;
            --source: #6ea2ff; --processor: #a68cf5; --destination: #4fc795; --dead: #f0837a; }
    }
    text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
    .page { fill: var(--page); }
    .title { font-size: 17px; font-weight: 650; }
    .id { font-size: 14px; font-weight: 600; }
    .caption { font-size: 12px; fill: var(--soft); }
    .box { fill: var(--box); stroke: var(--edge); }
    .source .mark { fill: var(--source); }
    .processor .mark { fill: var(--processor); }
    .destination .mark { fill: var(--destination); }
    .arrow { fill: none; stroke: var(--line); stroke-width: 1.6; }
    .head { fill: var(--line); }
    .refused { fill: none; stroke: var(--dead); stroke-width: 1.2; stroke-dasharray: 3 4; opacity: 0.75; }
    .dead .box { stroke: var(--dead); stroke-dasharray: 5 4; }
    .dead .caption { fill: var(--dead); }
    .dead-head { fill: var(--dead); }
"""


def draw_svg(diagram: Diagram) -> str:
    """Well-formed XML, with a title and a description for screen readers."""
    plan = _Plan(diagram)
    arrows = " ".join(f"{upper} to {box.id}." for box in diagram.boxes for upper in box.inputs)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{plan.width}" height="{plan.height}" '
        f'viewBox="0 0 {plan.width} {plan.height}" role="img">',
        f"  <title>{_text(diagram.title)}</title>",
        f"  <desc>{_text(arrows)}</desc>",
        f"  <style>{_STYLE}  </style>",
        *_heads(),
        f'  <rect class="page" width="{plan.width}" height="{plan.height}" rx="12"/>',
        f'  <text class="title" x="{_MARGIN}" y="{_TITLE}">{_text(diagram.title)}</text>',
        *_refused_lines(plan),
        *_arrows(plan),
        *(line for box, place in plan.boxes.items() for line in _box(box, place)),
        *_dead_letters_box(plan),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Place:
    left: int
    top: int
    width: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def middle(self) -> int:
        return self.top + _HEIGHT // 2


class _Plan:
    """All positions: a column of equally wide boxes for each layer, and the dead letters below the last."""

    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram
        self.layers = layers_of(diagram)
        centers = centers_of(self.layers, lambda slot: _HEIGHT if slot.box else 8, _GAP_Y)
        self.slots: dict[Slot, _Place] = {}
        left = _MARGIN
        for layer in self.layers:
            width = max(_box_width(slot.box) for slot in layer)
            for slot in layer:
                top = _TITLE + 24 + centers[slot] - _HEIGHT // 2
                self.slots[slot] = _Place(left, top, width)
            left += width + _GAP_X
        self.boxes = {slot.box: place for slot, place in self.slots.items() if slot.box}
        lowest = max((place.top for place in self.boxes.values()), default=_TITLE)
        last = self.slots[self.layers[-1][0]] if self.layers else _Place(_MARGIN, 0, 0)
        width = max(last.width, _text_width(diagram.dead_letters, _CAPTION) + 36)
        self.dead = _Place(last.left, lowest + _HEIGHT + _GAP_Y + 16, width)
        self.width = max(last.left + width, _MARGIN + _text_width(diagram.title, _HEADING)) + _MARGIN
        self.height = self.dead.top + 40 + _MARGIN


def _heads() -> Iterator[str]:
    yield "  <defs>"
    for name, style in (("head", "head"), ("dead-head", "dead-head")):
        yield (
            f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="{style}" d="M0 0.5 L8 4 L0 7.5 Z"/></marker>'
        )
    yield "  </defs>"


def _arrows(plan: _Plan) -> Iterator[str]:
    for layer in plan.layers:
        for slot in layer:
            if slot.box:
                for output in slot.outputs:
                    yield f'  <path class="arrow" marker-end="url(#head)" d="{_curve(plan, slot, output)}"/>'


def _curve(plan: _Plan, start: Slot, following: Slot) -> str:
    """From box to box: horizontal where it crosses a layer, curved in between."""
    place = plan.slots[start]
    path = [f"M{place.right} {place.middle}"]
    while True:
        after = plan.slots[following]
        half = (after.left - place.right) // 2
        end = after.left - (2 if following.box else 0)
        path.append(f"C{place.right + half} {place.middle} {after.left - half} {after.middle} {end} {after.middle}")
        if following.box:
            return " ".join(path)
        path.append(f"H{after.right}")
        place, following = after, following.outputs[0]


def _refused_lines(plan: _Plan) -> Iterator[str]:
    """Dashed lines from the lower left of every box, down beside its layer, along the bottom to the dead letters."""
    level = plan.dead.top + 20
    for layer in plan.layers:
        places = [plan.slots[slot] for slot in layer if slot.box]
        for place in places:
            yield f'  <path class="refused" d="M{place.left} {place.top + _HEIGHT - 10} h{-_STUB + 6} q-6 0 -6 6"/>'
        if places:
            left, top = places[0].left - _STUB, min(place.top for place in places) + _HEIGHT - 4
            yield f'  <path class="refused" d="M{left} {top} V{level - 6} q0 6 6 6"/>'
    first = min(place.left for place in plan.boxes.values()) if plan.boxes else plan.dead.left
    start, end = first - _STUB + 6, plan.dead.left - 2
    yield f'  <path class="refused" marker-end="url(#dead-head)" d="M{start} {level} H{end}"/>'


def _box(box: Box, place: _Place) -> Iterator[str]:
    yield f'  <g class="node {box.kind}">'
    yield f'    <rect class="box" x="{place.left}" y="{place.top}" width="{place.width}" height="{_HEIGHT}" rx="9"/>'
    yield f'    <rect class="mark" x="{place.left + 8}" y="{place.top + 11}" width="4" height="{_HEIGHT - 22}" rx="2"/>'
    yield f'    <text class="id" x="{place.left + 22}" y="{place.top + 24}">{_text(box.id)}</text>'
    yield f'    <text class="caption" x="{place.left + 22}" y="{place.top + 42}">{_text(box.caption)}</text>'
    yield "  </g>"


def _dead_letters_box(plan: _Plan) -> Iterator[str]:
    place = plan.dead
    yield '  <g class="dead">'
    yield f'    <rect class="box" x="{place.left}" y="{place.top}" width="{place.width}" height="40" rx="9"/>'
    text = _text(plan.diagram.dead_letters)
    yield f'    <text class="caption" x="{place.left + 18}" y="{place.top + 24}">{text}</text>'
    yield "  </g>"


def _box_width(box: Box | None) -> int:
    return max(_text_width(box.id, _ID), _text_width(box.caption, _CAPTION)) + 40 if box else 0


def _text_width(text: str, advance: float) -> int:
    """The approximate width of a text in a common sans-serif font, rather too large than too small."""
    return int(sum(2 * advance if unicodedata.east_asian_width(char) in "WF" else advance for char in text)) + 1


def _text(text: str) -> str:
    return escape(printable(text))
