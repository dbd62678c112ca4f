"""LogLines: what a server logs, one line each on stderr, for people or for programs."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from conduit_py.config.secrets import redact

LogFormat: TypeAlias = Literal["text", "json"]
OURS = ("conduit_py", "conduit_connectors", "conduit_processors")


def log_lines(format: LogFormat, *, debug: bool) -> None:
    """Ours from INFO on (DEBUG with `debug`), others' from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class TextLines(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, without secrets. A message is one line, whatever a record or client put into it."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.name}: {_one_line(record.getMessage())}"
        return redact(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


class JsonLines(logging.Formatter):
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
    return message.replace("\r", "\\r").replace("\n", "\\n")
