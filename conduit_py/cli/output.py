"""Output: exit codes, lines and tables on stdout, and standard streams that are safe to write to."""

import json
import os
import sys
from collections.abc import Collection, Sequence
from enum import IntEnum
from io import TextIOWrapper
from itertools import zip_longest
from typing import IO, Any, TextIO


def put(line: str, file: IO[str] | None = None) -> None:
    """Write a line at once: a reader on the other end of a pipe waits for it. One that has left is no error."""
    file = file or sys.stdout
    try:
        file.write(line + "\n")
        file.flush()
    except BrokenPipeError:
        forget_reader(file)


def put_json(fields: dict[str, Any], file: IO[str] | None = None) -> None:
    """Write one JSON object on one line, without secrets."""
    # Imported here: `--help` must not pay for it.
    from conduit_py.config.secrets import redact

    put(redact(json.dumps(fields, ensure_ascii=False)), file)


def forget_reader(file: IO[str]) -> None:
    """Let what follows go nowhere: `| head` must not end a pipeline, nor have Python complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


class ExitCode(IntEnum):
    """0 ok · 1 failed · 2 invalid · 3 environment."""

    OK = 0
    """Completed, or stopped gracefully by the user."""
    FAILED = 1
    """A pipeline ended degraded or was cut short, so not everything was delivered."""
    INVALID = 2
    """The arguments, the file or a pipeline in it are wrong; nothing was started."""
    ENVIRONMENT = 3
    """This machine cannot do it as it is: state in use or not writable, a package missing."""


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
    """The text in one line, with what could steer a terminal spelled out: errors quote records."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def ago(seconds: float) -> str:
    """A duration as people say it, in two figures at most."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def prepare_streams() -> None:
    """Make sure that there are three, and that none fails on a character it cannot show.

    A stream that was closed leaves its number free: the next file to be opened would get it, and with it
    what a connector reads from or writes to the stream. What takes its place here fails like a closed one,
    so that no record is read from or lost in it; our own words go nowhere.
    """
    for descriptor, useless in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, useless)
    # Python has None for a stream that was closed when it started.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
