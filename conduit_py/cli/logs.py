"""Logs on stderr without secrets: short lines for `run`, dated text or JSON lines for `serve`."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO, TypeAlias

from conduit_py.config.secrets import redact


def log_to_stderr(*, debug: bool) -> None:
    """Ours from INFO on, others' from WARNING on; with `debug` everything of ours, tracebacks included."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("conduit_py", "conduit_connectors", "conduit_processors"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment: a live table puts itself in its place."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(redact(self.format(record)) + "\n")
            self.stream.flush()
        except Exception:  # the border that logging itself prescribes: a log line never stops the program
            self.handleError(record)


LogFormat: TypeAlias = Literal["text", "json"]
OURS = ("conduit_py", "conduit_connectors", "conduit_processors")


def log_for_server(format: LogFormat, *, debug: bool) -> None:
    """Ours from INFO on (DEBUG with `debug`), others' from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if format == "json" else TextLogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class TextLogFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, without secrets. A message is one line, whatever a record or client put into it."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.name}: {_one_line(record.getMessage())}"
        return redact(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


class JsonLogFormatter(logging.Formatter):
    """One JSON object a line, without secrets: at, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(message: str) -> str:
    # A record or a client could otherwise write lines that look like ours.
    return message.replace("\r", "\\r").replace("\n", "\\n")
