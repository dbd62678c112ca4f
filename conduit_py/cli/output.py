"""What commands write: lines, tables and JSON on stdout, logs on stderr. Also the exit codes.

Every command imports this module, `--help` too, so it imports nothing heavy.
"""

import json
import logging
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from io import TextIOWrapper
from itertools import zip_longest
from textwrap import indent
from typing import IO, Any, Literal, TextIO, TypeAlias

from conduit_py.defaults import OUR_PACKAGES
from conduit_py.redaction import redact


class ExitCode(IntEnum):
    """0 ok · 1 failed · 2 invalid · 3 environment · 4 dead letters · 5 messages lost."""

    OK = 0
    """Completed, or stopped gracefully by the user."""
    FAILED = 1
    """A pipeline ended degraded or was cut short, so not everything was delivered."""
    INVALID = 2
    """The arguments, the file or a pipeline in it are wrong; nothing was started."""
    ENVIRONMENT = 3
    """This machine lacks something: state in use or not writable, a package missing."""
    DEAD_LETTERS = 4
    """Completed, but records were refused, and `--fail-on-dead-letters` was given."""
    LOST = 5
    """`journal verify`: the journal can be used, but an earlier repair gave messages up."""


def put(line: str, file: IO[str] | None = None) -> None:
    """Write one line, whatever is in it, and flush it. A reader that has left is no error."""
    _write(printable(line), file)


def put_lines(text: str, file: IO[str] | None = None) -> None:
    """Write text of several lines, none of which quotes a record or another program."""
    _write(printable_lines(text), file)


def _write(text: str, file: IO[str] | None) -> None:
    file = file or sys.stdout
    try:
        file.write(text + "\n")
        # At once: in a pipe, a program that waits for this line would otherwise wait for 8 KB of them.
        file.flush()
    except BrokenPipeError:
        forget_reader(file)


def put_json(fields: dict[str, Any], file: IO[str] | None = None) -> None:
    """Write one JSON object on one line, without secrets."""
    _write(json_text(fields), file)


def json_text(value: Any, *, indented: bool = False) -> str:
    """The value as JSON that a terminal can show, without secrets."""
    return printable_json(redact(json.dumps(value, ensure_ascii=False, indent=2 if indented else None)))


def shown(text: str) -> str:
    """A text that may quote a record or another program, in one line and without secrets."""
    return printable(redact(text))


def forget_reader(file: IO[str]) -> None:
    """Discard all further output to a file whose reader has left."""
    # By descriptor: `| head` must not end a pipeline, and Python flushes the old file object at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


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


def ago(seconds: float) -> str:
    """A duration in its largest unit, such as 3h."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def prepare_streams() -> None:
    """Make sure that all three standard streams exist, and that none fails on a character it cannot encode."""
    # A closed stream leaves its number free. The next file to be opened, such as the state database, would get the
    # number. A connector that writes to stdout would write into that file. What takes its place here fails when it is
    # read or written, like a closed stream, so no record is lost in it.
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


def log_to_stderr(*, debug: bool) -> None:
    """Log to stderr: our own messages from INFO on (DEBUG with `debug`), those of libraries from WARNING on."""
    handler = _Stderr()
    handler.setFormatter(TextLogFormatter(_clock))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    _set_levels(debug=debug)


class _Stderr(logging.Handler):
    """Writes to the current `sys.stderr`."""

    # Looked up for each line: a live table replaces sys.stderr, and lines past it would tear the table.
    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + "\n")
            self.stream.flush()
        except Exception:  # a boundary that logging prescribes: a log line never stops the program
            self.handleError(record)


LogFormat: TypeAlias = Literal["text", "json"]


def log_for_server(format: LogFormat, *, debug: bool) -> None:
    """Log to stderr as a server: dated lines or JSON, with the same levels as `log_to_stderr`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if format == "json" else TextLogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    _set_levels(debug=debug)


def _set_levels(*, debug: bool) -> None:
    for name in OUR_PACKAGES:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class TextLogFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, without secrets. A message is one line, whatever a record or client put into it.

    Lines of a traceback are indented: a line that begins at the left is one of ours.
    """

    def __init__(self, clock: Callable[[logging.LogRecord], str] | None = None) -> None:
        super().__init__()
        self._clock = clock or _time

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._clock(record)} {record.levelname} {record.name}: {shown(record.getMessage())}"
        return f"{line}\n{shown_traceback(self.formatException(record.exc_info))}" if record.exc_info else line


def shown_traceback(traceback: str) -> str:
    """A traceback that can be printed among other lines, without secrets: every line is indented."""
    # The message of an exception may have lines that look like those of a log.
    return indent(printable_lines(redact(traceback)).rstrip("\n"), "  ")


class JsonLogFormatter(logging.Formatter):
    """One JSON object a line, without secrets: at, level, logger, message, the facts, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            # What a line is about, for programs: see `pipeline_log`.
            **{name: redact(fact) if isinstance(fact, str) else fact for name, fact in _facts(record).items()},
        }
        if record.exc_info:
            fields["traceback"] = redact(self.formatException(record.exc_info))
        return printable_json(json.dumps(fields, ensure_ascii=False))


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts: dict[str, Any] = getattr(record, "facts", {})
    return facts


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clock(record: logging.LogRecord) -> str:
    return time.strftime("%H:%M:%S", time.localtime(record.created))


# Text that a terminal or a log shows as it is. Records, clients and other programs decide what errors quote: an escape
# sequence could clear a terminal, a control of text direction could show a name backwards. A line break could write a
# line that looks like ours.


def printable(text: str) -> str:
    r"""Return the text in one line, with every other character that is not visible written out, as `\n`."""
    return text if text.isprintable() else _SUSPECT.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the same for text of several lines: line feeds and tabs stay."""
    return _SUSPECT_IN_LINES.sub(_escape, text)


def printable_json(text: str) -> str:
    r"""Return JSON text that means the same, with what is not visible written out in JSON's own way, as `\u009b`."""
    # Outside of its strings, JSON has no such character but line feeds.
    return _SUSPECT_IN_LINES.sub(_escape_json, text)


def _escape(found: re.Match[str]) -> str:
    return "".join(each if _visible(each) else ascii(each)[1:-1] for each in found.group())


def _escape_json(found: re.Match[str]) -> str:
    return "".join(each if _visible(each) else json.dumps(each)[1:-1] for each in found.group())


def _visible(character: str) -> bool:
    # Spaces of other scripts do no harm, and `isprintable` is true for none but " ".
    return character.isprintable() or unicodedata.category(character) == "Zs"


_SUSPECT = re.compile(r"[^ -~]+")
_SUSPECT_IN_LINES = re.compile(r"[^ -~\n\t]+")
"""Everything beyond ASCII is looked at one by one; most text has little of it."""
