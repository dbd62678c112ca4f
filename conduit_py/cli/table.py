"""Table: rows in columns on stdout, whole at any width, so that they can be searched and cut."""

from collections.abc import Collection, Sequence
from itertools import zip_longest

from conduit_py.cli.output import put


def put_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Write the rows under their headings; those columns in `right` are aligned to the right."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    for line in lines:
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ]
        put("  ".join(cells).rstrip())


def printable(text: str) -> str:
    """The text in one line, with what could steer a terminal spelled out: errors quote records, whoever made them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def ago(seconds: float) -> str:
    """A duration as people say it, in two figures at most."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
