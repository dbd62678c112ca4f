"""Progress points: how far a piece of work has come, as bytes that compare in the right order."""

import re

BEGINNING = b""
_DIGITS = 20
_POINT = re.compile(rb"(\d{20})?|~(\d{20})?")


def offset(number: int) -> bytes:
    """So far: bytes, lines or records, as the reader counts them."""
    if not 0 <= number < 10**_DIGITS:
        raise ValueError(f"an offset must have at most {_DIGITS} digits and no sign, not {number}")
    return b"%020d" % number


def end(number: int | None = None) -> bytes:
    """At the end, after so much. Any end comes after any offset."""
    # A tilde comes after every digit.
    return b"~" if number is None else b"~" + offset(number)


def number_of(point: bytes) -> int:
    """The offset that a point stands for; 0 for the beginning."""
    match = _POINT.fullmatch(point)
    if match is None:
        raise ValueError(f"{point!r} is no progress point")
    return int(match[1] or match[2] or 0)


def is_end(point: bytes) -> bool:
    return point.startswith(b"~")
