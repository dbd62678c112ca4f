"""draw: a graph as text for a terminal, SVG for a page, or Mermaid for a document.

Text has boxes in layers from top to bottom, joined by lines. SVG is in `draw_svg`.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conduit_py.graph.diagram import Box, Diagram, Slot, centers_of, draw_svg, layers_of, printable
from conduit_py.graph.node import Graph

Format: TypeAlias = Literal["text", "mermaid", "svg"]


def draw(graph: Graph, format: Format = "text") -> str:
    """Return the graph in one of the formats. The same pipeline always gives the same drawing."""
    return _DRAW[format](Diagram.of(graph))


def draw_text(diagram: Diagram) -> str:
    """Return the diagram as lines of text. Lines that cross without joining are drawn as a bridge: `─│─`."""
    layers = layers_of(diagram)
    centers = centers_of(layers, _width, _GAP)
    lines: list[str] = []
    exits: dict[Slot, int] = {}
    for upper, layer in zip([[], *layers], layers, strict=False):
        band = _Band(upper, exits, centers)
        lines += band.lines()
        exits = {slot: centers[slot] if slot.box else band.entry(slot) for slot in layer}
        lines += _layer_lines(layer, centers, exits)
    lines += ["", f"every node ╌╌▷ {printable(diagram.dead_letters)}"]
    return "\n".join([printable(diagram.title), *lines]) + "\n"


_GAP = 3
_JOINTS = {
    # up, down, left, right
    (True, True, False, False): "│",
    (False, False, True, True): "─",
    (True, False, False, True): "╰",
    (True, False, True, False): "╯",
    (True, False, True, True): "┴",
    (False, True, False, True): "╭",
    (False, True, True, False): "╮",
    (False, True, True, True): "┬",
    (True, True, True, False): "┤",
    (True, True, False, True): "├",
    (True, True, True, True): "┼",
}


@dataclass
class _Bundle:
    """Slots with the same outputs: their lines join in one bar, and every output gets a line from it."""

    inputs: list[Slot]
    outputs: list[Slot]
    tops: list[int]
    bottoms: dict[Slot, int]
    row: int = 0

    @property
    def left(self) -> int:
        return min(*self.tops, *self.bottoms.values())

    @property
    def right(self) -> int:
        return max(*self.tops, *self.bottoms.values())


class _Band:
    """The lines between two layers.

    No two bundles share a column and no two bars touch, so every line can be followed: lines that join belong
    together, lines that only cross are bridged.
    """

    def __init__(self, upper: Sequence[Slot], exits: dict[Slot, int], centers: dict[Slot, int]) -> None:
        self._centers = centers
        self._taken = set(exits.values())
        self.bundles = _bundles(upper, exits)
        for slot in dict.fromkeys(output for bundle in self.bundles for output in bundle.outputs):
            self._enter(slot)
        self._height = self._assign_rows()

    def entry(self, slot: Slot) -> int:
        """The column in which the line from above reaches a bend."""
        return next(bundle.bottoms[slot] for bundle in self.bundles if slot in bundle.bottoms)

    def lines(self) -> Iterator[str]:
        for row in range(self._height):
            yield _line(self._cells(row))
        if self.bundles:
            yield _line(
                (column, "▼" if slot.box else "│") for each in self.bundles for slot, column in each.bottoms.items()
            )

    def _enter(self, slot: Slot) -> None:
        """Choose the columns in which lines reach a slot: side by side around its centre, in the order they arrive."""
        arriving = sorted(
            (each for each in self.bundles if slot in each.outputs), key=lambda each: sum(each.tops) / len(each.tops)
        )
        for number, bundle in enumerate(arriving):
            wanted = self._centers[slot] + 2 * number - (len(arriving) - 1)
            reach = _width(slot) // 2 - 1 if len(arriving) == len(bundle.tops) == len(bundle.outputs) == 1 else 1
            straight = [top for top in bundle.tops if abs(top - wanted) <= reach]
            bundle.bottoms[slot] = straight[0] if straight else self._free_column(slot, wanted)
            self._taken.add(bundle.bottoms[slot])

    def _free_column(self, slot: Slot, wanted: int) -> int:
        half = _width(slot) // 2 - 1
        columns = range(self._centers[slot] - half, self._centers[slot] + half + 1)
        return min((each for each in columns if each not in self._taken), key=lambda column: abs(column - wanted))

    def _assign_rows(self) -> int:
        """Give every bar the first row that has room for it; returns the number of rows."""
        ends: list[int] = []
        for bundle in sorted(self.bundles, key=lambda each: each.left):
            if bundle.left == bundle.right:
                continue
            bundle.row = next((row for row, end in enumerate(ends) if end < bundle.left), len(ends))
            ends[bundle.row : bundle.row + 1] = [bundle.right]
        return len(ends)

    def _cells(self, row: int) -> Iterator[tuple[int, str]]:
        for bundle in self.bundles:
            if bundle.row == row and bundle.left < bundle.right:
                yield from _bar(bundle)
        # Later cells replace earlier ones, so a vertical line bridges the bars that it crosses.
        for bundle in self.bundles:
            straight = bundle.left == bundle.right
            if straight or row < bundle.row:
                yield from ((column, "│") for column in bundle.tops)
            elif row > bundle.row:
                yield from ((column, "│") for column in bundle.bottoms.values())


def _bundles(upper: Iterable[Slot], exits: dict[Slot, int]) -> list[_Bundle]:
    bundles: dict[tuple[int, ...], _Bundle] = {}
    for slot in upper:
        if slot.outputs:
            key = tuple(sorted(map(id, slot.outputs)))
            bundle = bundles.setdefault(key, _Bundle([], slot.outputs, [], {}))
            bundle.inputs.append(slot)
            bundle.tops.append(exits[slot])
    return list(bundles.values())


def _bar(bundle: _Bundle) -> Iterator[tuple[int, str]]:
    bottoms = set(bundle.bottoms.values())
    for column in range(bundle.left, bundle.right + 1):
        joint = (column in bundle.tops, column in bottoms, column > bundle.left, column < bundle.right)
        yield column, _JOINTS[joint]


def _layer_lines(layer: Sequence[Slot], centers: dict[Slot, int], exits: dict[Slot, int]) -> Iterator[str]:
    for row in range(4):
        yield _line(
            (centers[slot] - _width(slot) // 2, _box_row(slot, row, exits[slot] - centers[slot])) for slot in layer
        )


def _box_row(slot: Slot, row: int, shift: int) -> str:
    inside = _width(slot) - 2
    if slot.box is None:
        return " " * (2 + shift) + "│"
    if row == 0:
        return f"╭{'─' * inside}╮"
    if row == 3:
        exit = _width(slot) // 2 - 1
        return f"╰{'─' * exit}{'┬' if slot.outputs else '─'}{'─' * (inside - exit - 1)}╯"
    return f"│ {_pad(printable(slot.box.id if row == 1 else slot.box.caption), inside - 2)} │"


def _width(slot: Slot) -> int:
    """The columns of a slot, with room for as many lines as can arrive at it."""
    if slot.box is None:
        return 5
    text = max(_columns(printable(slot.box.id)), _columns(printable(slot.box.caption)))
    return max(text + 4, 3 * len(slot.inputs) + 4)


def _line(cells: Iterable[tuple[int, str]]) -> str:
    """Text at columns, from left to right; a later text of one character replaces an earlier one."""
    line, width = "", 0
    for column, text in sorted(dict(cells).items()):
        line += " " * (column - width) + text
        width = max(column, width) + _columns(text)
    return line.rstrip()


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - _columns(text))


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def draw_mermaid(diagram: Diagram) -> str:
    """Return a `flowchart LR`."""
    # Nodes get short ids: one of the pipeline, such as `end`, could break the syntax of Mermaid.
    names = {box.id: f"n{number}" for number, box in enumerate(diagram.boxes, 1)}
    return "\n".join(["flowchart LR", *_nodes(diagram, names), *_arrows(diagram, names), *_CLASSES]) + "\n"


_CLASSES = ["    classDef deadLetters stroke:#c0392b,stroke-dasharray:4 3", "    class dead deadLetters"]
_SHAPES = {"source": ('(["', '"])'), "processor": ('["', '"]'), "destination": ('[("', '")]')}


def _nodes(diagram: Diagram, names: dict[str, str]) -> Iterator[str]:
    for box in diagram.boxes:
        opening, closing = _SHAPES[box.kind]
        yield f"    {names[box.id]}{opening}{_text(box)}{closing}"
    yield f'    dead["{_escape(diagram.dead_letters)}"]'


def _arrows(diagram: Diagram, names: dict[str, str]) -> Iterator[str]:
    for box in diagram.boxes:
        for upper in box.inputs:
            yield f"    {names[upper]} --> {names[box.id]}"
    for box in diagram.boxes:
        yield f"    {names[box.id]} -.-> dead"


def _text(box: Box) -> str:
    return f"{_escape(box.id)}<br/>{_escape(box.caption)}"


def _escape(text: str) -> str:
    """Return the text with every character that is special in Mermaid, Markdown or HTML as a numbered entity."""
    return _RISKY.sub(lambda found: f"#{ord(found[0])};", printable(text))


# Inside a word these three are plain: `web-1`, `read_all`, `base64.encode`.
_RISKY = re.compile(r"(?<![^\W_])[-_.]|[-_.](?![^\W_])|[^\w :,·.-]")
_DRAW = {"text": draw_text, "mermaid": draw_mermaid, "svg": draw_svg}
