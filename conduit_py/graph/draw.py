"""draw: a graph as text for a terminal, SVG for a page, or Mermaid for a document. Mermaid is written here."""

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from conduit_py.graph.draw_svg import draw_svg
from conduit_py.graph.draw_text import draw_text
from conduit_py.graph.layout import Box, Diagram, printable
from conduit_py.graph.node import Graph

Format: TypeAlias = Literal["text", "mermaid", "svg"]


def draw(graph: Graph, format: Format = "text") -> str:
    """The graph in one of the formats, the same every time for the same pipeline."""
    return _DRAW[format](Diagram.of(graph))


_CLASSES = ["    classDef deadLetters stroke:#c0392b,stroke-dasharray:4 3", "    class dead deadLetters"]
_SHAPES = {"source": ('(["', '"])'), "processor": ('["', '"]'), "destination": ('[("', '")]')}


def draw_mermaid(diagram: Diagram) -> str:
    """A `flowchart LR`. Nodes get short ids of their own, so that no id of the pipeline can break the syntax."""
    names = {box.id: f"n{number}" for number, box in enumerate(diagram.boxes, 1)}
    return "\n".join(["flowchart LR", *_nodes(diagram, names), *_arrows(diagram, names), *_CLASSES]) + "\n"


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
    """Every character that could mean something to Mermaid, Markdown or HTML as a numbered entity."""
    return _RISKY.sub(lambda found: f"#{ord(found[0])};", printable(text))


# Inside a word these three are plain: `web-1`, `read_all`, `base64.encode`.
_RISKY = re.compile(r"(?<![^\W_])[-_.]|[-_.](?![^\W_])|[^\w :,·.-]")


_DRAW = {"text": draw_text, "mermaid": draw_mermaid, "svg": draw_svg}
