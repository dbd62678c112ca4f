"""Drawing graphs: golden pictures, and properties that hold for every graph and every odd name."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Source, sdk
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.diagram import Box, Diagram, draw_svg, printable
from conduit_py.graph.draw import draw, draw_mermaid, draw_text
from conduit_py.graph.node import Kind

SVG = "{http://www.w3.org/2000/svg}"


class Numbers(sdk.SourceConnector[sdk.Options]):
    """A source that is only drawn."""

    def read(self, n: int) -> list[sdk.Record]:
        raise sdk.EndOfSource


class Shelf(sdk.DestinationConnector[sdk.Options]):
    """A destination that is only drawn."""

    def write(self, batch: sdk.Batch) -> None: ...


def cents(record: sdk.Record) -> sdk.Record:
    return record


def boxes(*rows: tuple[str, Kind, str, str]) -> tuple[Box, ...]:
    return tuple(Box(id, kind, label, tuple(inputs.split())) for id, kind, label, inputs in rows)


CHAIN = Diagram(
    "orders",
    boxes(
        ("web", "source", "file", ""), ("cents", "processor", "cents", "web"), ("lake", "destination", "file", "cents")
    ),
    "dead letters: stop",
)

DIAMONDS = Diagram(
    "shops",
    boxes(
        ("a", "source", "file", ""),
        ("b", "source", "file", ""),
        ("c", "source", "file", ""),
        ("p", "processor", "p", "a b"),
        ("q", "processor", "q", "a c"),
        ("x", "destination", "log", "q"),
        ("y", "destination", "file", "p c"),
        ("z", "destination", "log", "p"),
    ),
    "dead letters: drop, at most 5 of the last 100",
)


def test_a_chain_as_text() -> None:
    assert draw_text(CHAIN) == (
        """\
orders
   ╭───────────────╮
   │ web           │
   │ source · file │
   ╰───────┬───────╯
           ▼
     ╭───────────╮
     │ cents     │
     │ processor │
     ╰─────┬─────╯
           ▼
╭────────────────────╮
│ lake               │
│ destination · file │
╰────────────────────╯

every node ╌╌▷ dead letters: stop
"""
    )


def test_fans_long_arrows_and_crossings_as_text() -> None:
    assert draw_text(DIAMONDS) == (
        """\
shops
         ╭───────────────╮   ╭───────────────╮   ╭───────────────╮
         │ b             │   │ a             │   │ c             │
         │ source · file │   │ source · file │   │ source · file │
         ╰───────┬───────╯   ╰───────┬───────╯   ╰───────┬───────╯
                 ╰────────╮ ╭────────┴────╮ ╭────────────┴─╮
                          ▼ ▼             ▼ ▼              │
                     ╭───────────╮   ╭───────────╮         │
                     │ p         │   │ q         │         │
                     │ processor │   │ processor │         │
                     ╰─────┬─────╯   ╰─────┬─────╯         │
          ╭────────────────┴───────────────│──────────────╮│
          ▼                                ▼              ▼▼
╭───────────────────╮   ╭───────────────────╮   ╭────────────────────╮
│ z                 │   │ x                 │   │ y                  │
│ destination · log │   │ destination · log │   │ destination · file │
╰───────────────────╯   ╰───────────────────╯   ╰────────────────────╯

every node ╌╌▷ dead letters: drop, at most 5 of the last 100
"""
    )


def test_a_chain_as_mermaid() -> None:
    assert draw_mermaid(CHAIN) == (
        """\
flowchart LR
    n1(["web<br/>source · file"])
    n2["cents<br/>processor"]
    n3[("lake<br/>destination · file")]
    dead["dead letters: stop"]
    n1 --> n2
    n2 --> n3
    n1 -.-> dead
    n2 -.-> dead
    n3 -.-> dead
    classDef deadLetters stroke:#c0392b,stroke-dasharray:4 3
    class dead deadLetters
"""
    )


def test_a_chain_as_svg_has_its_boxes_from_left_to_right_on_one_line() -> None:
    root = ElementTree.fromstring(draw_svg(CHAIN))
    rects = list(root.iterfind(f"{SVG}g/{SVG}rect[@class='box']"))

    assert [text.text for text in root.iterfind(f"{SVG}g/{SVG}text")] == [
        *("web", "source · file", "cents", "processor", "lake", "destination · file"),
        "dead letters: stop",
    ]
    assert [rect.attrib["y"] for rect in rects[:3]] == ["68", "68", "68"]
    lefts = [int(rect.attrib["x"]) for rect in rects[:3]]
    assert lefts == sorted(set(lefts))
    assert len(root.findall(f"{SVG}path[@class='arrow']")) == 2


def test_a_pipeline_is_drawn_from_its_compiled_graph() -> None:
    pipeline = Pipeline(
        "orders",
        sources=[Source("web", Numbers())],
        processors=[cents],
        destinations=[Destination("lake", Shelf(), processors=[Processor("tidy", cents)])],
        dead_letters=DeadLetters(Shelf(), window_size=100, window_nack_threshold=5),
    )
    graph = compile_pipeline(pipeline)

    mermaid = draw(graph, "mermaid").splitlines()
    assert [line.strip() for line in mermaid if " --> " in line] == ["n1 --> n2", "n2 --> n3", "n3 --> n4"]
    assert draw(graph).endswith(", at most 5 of the last 100\n")
    assert draw(graph, "svg") == draw(compile_pipeline(pipeline), "svg")


odd = st.text(min_size=1, max_size=12)
plain = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@st.composite
def pictures(draw: st.DrawFn, names: st.SearchStrategy[str]) -> Diagram:
    ids = draw(st.lists(names, min_size=1, max_size=9, unique_by=printable))
    drawn: list[Box] = []
    for id in ids:
        inputs = draw(st.lists(st.sampled_from([box.id for box in drawn]), max_size=3, unique=True)) if drawn else []
        kind: Kind = draw(st.sampled_from(("source", "processor", "destination")))
        drawn.append(Box(id, kind, draw(names), tuple(inputs)))
    return Diagram(draw(names), tuple(drawn), f"dead letters: {draw(names)}")


@given(pictures(odd))
def test_svg_is_well_formed_and_names_every_node_once(picture: Diagram) -> None:
    root = ElementTree.fromstring(draw_svg(picture))
    ids = [text.text for text in root.iterfind(f"{SVG}g/{SVG}text[@class='id']")]

    assert Counter(ids) == Counter(printable(box.id) for box in picture.boxes)
    assert len(root.findall(f"{SVG}path[@class='arrow']")) == sum(len(box.inputs) for box in picture.boxes)


@given(pictures(odd))
def test_boxes_of_an_svg_never_overlap_and_stay_on_the_page(picture: Diagram) -> None:
    root = ElementTree.fromstring(draw_svg(picture))
    rects = [
        tuple(int(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in root.iterfind(f"{SVG}g/{SVG}rect[@class='box']")
    ]

    for number, (x, y, width, height) in enumerate(rects):
        assert x >= 0
        assert y >= 0
        assert x + width <= int(root.attrib["width"])
        assert y + height <= int(root.attrib["height"])
        for left, top, right, low in rects[number + 1 :]:
            assert x + width <= left or left + right <= x or y + height <= top or top + low <= y


@given(pictures(odd))
def test_mermaid_keeps_its_syntax_and_names_every_node_once(picture: Diagram) -> None:
    first, *lines = draw_mermaid(picture).splitlines()
    statement = re.compile(
        r'    (?:(n\d+)(?:\(\["|\["|\[\(")([^"<>`|{}\[\]()]*)<br/>[^"<>`|{}\[\]()]*(?:"\]\)|"\]|"\)\])'
        r'|dead\["[^"<>`]*"\]|n\d+ --> n\d+|n\d+ -\.-> dead|classDef [\w :#,-]+|class dead deadLetters)'
    )
    matches = [statement.fullmatch(line) for line in lines]

    assert first == "flowchart LR"
    assert all(matches)
    ids = [unescaped(match[2]) for match in matches if match and match[1]]
    assert ids == [printable(box.id) for box in picture.boxes]


def unescaped(text: str) -> str:
    return re.sub(r"#(\d+);", lambda entity: chr(int(entity[1])), text)


@given(pictures(odd))
def test_text_has_a_box_for_every_node_and_its_id_in_one(picture: Diagram) -> None:
    text = draw_text(picture)

    assert text.count("│ destination") + text.count("│ processor") + text.count("│ source") >= len(picture.boxes)
    for box in picture.boxes:
        assert f"│ {printable(box.id)} " in text


@given(pictures(plain))
def test_following_the_lines_of_the_text_gives_back_the_graph(picture: Diagram) -> None:
    names, arrows = read_back(draw_text(picture))

    assert Counter(names) == Counter(box.id for box in picture.boxes)
    assert arrows == {(upper, box.id) for box in picture.boxes for upper in box.inputs}


def read_back(text: str) -> tuple[list[str], set[tuple[str, str]]]:
    """Find the boxes, and follow every line that leaves one, as a reader would, to those it reaches."""
    rows = text.splitlines()[1:-2]
    grid = {(y, x): char for y, row in enumerate(rows) for x, char in enumerate(row)}
    corners = [
        (y, x) for (y, x), char in grid.items() if char == "╭" and grid.get((y + 3, x)) == "╰" and is_box(grid, y, x)
    ]
    inside: dict[tuple[int, int], str] = {}
    names = []
    for y, x in corners:
        right = next(column for column in range(x + 1, 10_000) if grid[y, column] == "╮")
        name = "".join(grid[y + 1, column] for column in range(x + 1, right)).strip()
        names.append(name)
        inside.update({(row, column): name for row in range(y, y + 4) for column in range(x, right + 1)})
    exits = [
        spot for spot, char in grid.items() if char == "┬" and spot in inside and (spot[0] + 1, spot[1]) not in inside
    ]
    return names, {(inside[spot], end) for spot in exits for end in follow(grid, inside, spot)}


def is_box(grid: dict[tuple[int, int], str], y: int, x: int) -> bool:
    return grid.get((y + 1, x)) == "│" and grid.get((y + 1, x + 1)) == " " and grid.get((y, x + 1)) == "─"


DOWN, LEFT, RIGHT, UP = (1, 0), (0, -1), (0, 1), (-1, 0)
LEAVES = {
    "─": {LEFT, RIGHT},
    "╰": {UP, RIGHT},
    "╯": {UP, LEFT},
    "┴": {UP, LEFT, RIGHT},
    "╭": {DOWN, RIGHT},
    "╮": {DOWN, LEFT},
    "┬": {DOWN, LEFT, RIGHT},
    "┤": {UP, DOWN, LEFT},
    "├": {UP, DOWN, RIGHT},
    "┼": {UP, DOWN, LEFT, RIGHT},
}


def follow(
    grid: dict[tuple[int, int], str], inside: dict[tuple[int, int], str], start: tuple[int, int]
) -> Iterator[str]:
    steps, seen = [(start, DOWN)], set()
    while steps:
        (y, x), (dy, dx) = steps.pop()
        spot = (y + dy, x + dx)
        if (spot, (dy, dx)) in seen or spot in inside:
            continue
        seen.add((spot, (dy, dx)))
        char = grid[spot]
        if char == "▼":
            yield inside[spot[0] + 1, spot[1]]
        elif char == "│":
            steps.append((spot, (dy, dx)))  # straight on, also when it is a bridge over the line we follow
        else:
            steps += [(spot, way) for way in LEAVES[char] if way not in ((-dy, -dx), UP)]
