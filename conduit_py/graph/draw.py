"""The drawing of a graph: text for a terminal, Mermaid for a document, SVG for a page."""

from typing import Literal, TypeAlias

from conduit_py.graph.draw_mermaid import draw_mermaid
from conduit_py.graph.draw_svg import draw_svg
from conduit_py.graph.draw_text import draw_text
from conduit_py.graph.layout import Diagram
from conduit_py.graph.node import Graph

Format: TypeAlias = Literal["text", "mermaid", "svg"]


def draw(graph: Graph, format: Format = "text") -> str:
    """The graph in one of the formats, the same every time for the same pipeline."""
    return _DRAW[format](Diagram.of(graph))


_DRAW = {"text": draw_text, "mermaid": draw_mermaid, "svg": draw_svg}
