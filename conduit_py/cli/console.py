"""Console: rich's console, which prints no character that could steer the terminal, whatever a text quotes."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from conduit_py.printable import printable_lines


class Console(RichConsole):
    """Escapes what texts contain; colours and the movements of live tables are rich's own and stay.

    Line breaks stay too, since rich makes them itself: text that may quote a record goes through `shown` first.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, soft_wrap: bool = True) -> None:
        super().__init__(stderr=stderr, file=file, soft_wrap=soft_wrap, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
