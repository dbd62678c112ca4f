"""A picture as Mermaid, for README files and issue trackers that render it."""

import re
from collections.abc import Iterator

from conduit_py.graph.layout import Box, Diagram, printable

_CLASSES = ["    classDef deadLetters stroke:#c0392b,stroke-dasharray:4 3", "    class dead deadLetters"]
_SHAPES = {"source": ('(["', '"])'), "processor": ('["', '"]'), "destination": ('[("', '")]')}


def draw_mermaid(picture: Diagram) -> str:
    """A `flowchart LR`. Nodes get short ids of their own, so that no id of the pipeline can break the syntax."""
    names = {box.id: f"n{number}" for number, box in enumerate(picture.boxes, 1)}
    return "\n".join(["flowchart LR", *_nodes(picture, names), *_arrows(picture, names), *_CLASSES]) + "\n"


def _nodes(picture: Diagram, names: dict[str, str]) -> Iterator[str]:
    for box in picture.boxes:
        opening, closing = _SHAPES[box.kind]
        yield f"    {names[box.id]}{opening}{_text(box)}{closing}"
    yield f'    dead["{_escape(picture.dead_letters)}"]'


def _arrows(picture: Diagram, names: dict[str, str]) -> Iterator[str]:
    for box in picture.boxes:
        for upper in box.inputs:
            yield f"    {names[upper]} --> {names[box.id]}"
    for box in picture.boxes:
        yield f"    {names[box.id]} -.-> dead"


def _text(box: Box) -> str:
    return f"{_escape(box.id)}<br/>{_escape(box.caption)}"


def _escape(text: str) -> str:
    """Every character that could mean something to Mermaid, Markdown or HTML as a numbered entity."""
    return _RISKY.sub(lambda found: f"#{ord(found[0])};", printable(text))


# Inside a word these three are plain: `web-1`, `read_all`, `base64.encode`.
_RISKY = re.compile(r"(?<![^\W_])[-_.]|[-_.](?![^\W_])|[^\w :,·.-]")
